#include "core/memory_ledger.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

namespace lockstep {
namespace {

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

}  // namespace

MemoryLedger::MemoryLedger() : start_ns_(now_ns()) {}

void MemoryLedger::add(std::int64_t bytes, Category category,
                       std::string_view name) {
  const std::lock_guard lock(mutex_);
  const MemoryEvent event{now_us(), bytes, category, std::string(name)};
  held_.push_back(event);
  book(event);
}

void MemoryLedger::remove(std::int64_t bytes, Category category,
                          std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto it =
      std::find_if(held_.rbegin(), held_.rend(), [&](const MemoryEvent& held) {
        return held.delta_bytes == bytes && held.category == category &&
               held.name == name;
      });
  if (it != held_.rend()) held_.erase(std::next(it).base());
  book({now_us(), -bytes, category, std::string(name)});
}

void MemoryLedger::book(const MemoryEvent& event) {
  figures_.bytes[static_cast<int>(event.category)] += event.delta_bytes;
  figures_.total += event.delta_bytes;
  figures_.peak = std::max(figures_.peak, figures_.total);
  ++changes_;
  if (keeping_timeline_) timeline_.push_back(event);
}

double MemoryLedger::now_us() const {
  return static_cast<double>(now_ns() - start_ns_) / 1e3;
}

MemoryFigures MemoryLedger::figures() const {
  const std::lock_guard lock(mutex_);
  return figures_;
}

std::int64_t MemoryLedger::changes() const {
  const std::lock_guard lock(mutex_);
  return changes_;
}

void MemoryLedger::start_timeline() {
  const std::lock_guard lock(mutex_);
  keeping_timeline_ = true;
  timeline_ = held_;
}

std::vector<MemoryEvent> MemoryLedger::take_timeline() {
  const std::lock_guard lock(mutex_);
  keeping_timeline_ = false;
  return std::exchange(timeline_, {});
}

std::string MemoryLedger::summary() const {
  const MemoryFigures now = figures();
  std::array<int, category_count> order{};
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return now.bytes[a] > now.bytes[b]; });
  std::vector<std::string> parts;
  for (const int i : order) {
    if (now.bytes[i] == 0) continue;
    parts.push_back(fmt::format("{} {}", category_names[i],
                                format_bytes(double(now.bytes[i]))));
  }
  return parts.empty() ? "nothing" : fmt::format("{}", fmt::join(parts, ", "));
}

std::string format_bytes(double bytes) {
  constexpr std::array units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  // 1023.5 would already round to 1024.
  while (bytes >= 1023.5 && unit + 1 < units.size()) {
    bytes /= 1024;
    ++unit;
  }
  const int decimals = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", bytes, decimals, units[unit]);
}

}  // namespace lockstep
