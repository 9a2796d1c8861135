#include "trainer/step_details.h"

#include <fmt/format.h>

#include <span>
#include <sstream>
#include <string>

namespace lockstep {
namespace {

// A report as numbers that travel, and back.
std::vector<double> packed(const RankReport& report) {
  const RankFigures& figures = report.figures;
  std::vector<double> row = {report.loss, report.gradient_norm,
                             double(report.stop_signal), double(report.saves)};
  row.insert(row.end(), figures.phase_ms.begin(), figures.phase_ms.end());
  row.insert(row.end(),
             {figures.comm_busy_ms, figures.comm_exposed_ms,
              double(figures.comm_calls), double(figures.comm_bytes),
              double(figures.memory.total), double(figures.memory.peak)});
  row.insert(row.end(), figures.memory.bytes.begin(),
             figures.memory.bytes.end());
  return row;
}

RankReport unpacked(std::span<const double> row) {
  auto next = row.begin();
  const auto real = [&] { return *next++; };
  const auto whole = [&] { return static_cast<std::int64_t>(*next++); };
  RankReport report;
  report.loss = real();
  report.gradient_norm = real();
  report.stop_signal = static_cast<int>(whole());
  report.saves = whole() != 0;
  RankFigures& figures = report.figures;
  for (double& ms : figures.phase_ms) ms = real();
  figures.comm_busy_ms = real();
  figures.comm_exposed_ms = real();
  figures.comm_calls = whole();
  figures.comm_bytes = whole();
  figures.memory.total = whole();
  figures.memory.peak = whole();
  for (std::int64_t& bytes : figures.memory.bytes) bytes = whole();
  return report;
}

}  // namespace

std::vector<RankReport> gather(const RankReport& mine, World& world) {
  const std::vector<double> row = packed(mine);
  const std::vector<double> rows = world.all_gather(row);
  std::vector<RankReport> all;
  for (int rank = 0; rank < world.size(); ++rank) {
    all.push_back(unpacked({&rows[rank * row.size()], row.size()}));
  }
  return all;
}

// Traces and timelines travel as lines of text: numbers first, the name last,
// since it may have spaces.

std::vector<std::vector<TraceRow>> gather(const std::vector<TraceRow>& mine,
                                          World& world) {
  std::string text;
  for (const TraceRow& row : mine) {
    text += fmt::format("{} {} {} {} {} {}\n", row.depth, row.bytes,
                        row.begin_us, row.duration_us, row.lane, row.name);
  }
  std::vector<std::vector<TraceRow>> all;
  for (const std::string& theirs : world.all_gather(text)) {
    std::istringstream lines(theirs);
    std::vector<TraceRow>& rows = all.emplace_back();
    for (TraceRow row; lines >> row.depth >> row.bytes >> row.begin_us >>
                           row.duration_us >> row.lane &&
                       std::getline(lines >> std::ws, row.name);) {
      rows.push_back(row);
    }
  }
  return all;
}

std::vector<MemoryTimeline> gather(const MemoryTimeline& mine, World& world) {
  std::string text = fmt::format("{} {}\n", mine.begin_us, mine.end_us);
  for (const MemoryEvent& event : mine.events) {
    text += fmt::format("{} {} {} {}\n", event.time_us, event.delta_bytes,
                        static_cast<int>(event.category), event.name);
  }
  std::vector<MemoryTimeline> all;
  for (const std::string& theirs : world.all_gather(text)) {
    std::istringstream lines(theirs);
    MemoryTimeline& timeline = all.emplace_back();
    lines >> timeline.begin_us >> timeline.end_us;
    MemoryEvent event;
    for (int category = 0;
         lines >> event.time_us >> event.delta_bytes >> category &&
         std::getline(lines >> std::ws, event.name);) {
      event.category = static_cast<Category>(category);
      timeline.events.push_back(event);
    }
  }
  return all;
}

}  // namespace lockstep
