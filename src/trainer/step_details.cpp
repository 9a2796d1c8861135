#include "trainer/step_details.h"

#include <fmt/format.h>

#include <sstream>
#include <string>

namespace lockstep {

// They travel as lines of text: numbers first, the name last, since it may
// have spaces.

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
