#include "config/step_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace lockstep {
namespace {

// The number at the front of `text`, which it is taken off.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || value < 1) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  return value;
}

bool take(std::string_view& text, char wanted) {
  if (!text.starts_with(wanted)) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

std::optional<StepSet> StepSet::parse(std::string_view text) {
  StepSet steps;
  if (text.empty()) return steps;
  do {
    const auto first = take_number(text);
    if (!first) return std::nullopt;
    const auto last = take(text, '-') ? take_number(text) : first;
    if (!last || *last < *first) return std::nullopt;
    steps.ranges_.push_back({*first, *last});
  } while (take(text, ','));
  if (!text.empty()) return std::nullopt;
  return steps;
}

bool StepSet::contains(std::int64_t step) const {
  return std::ranges::any_of(ranges_, [&](const Range& range) {
    return range.first <= step && step <= range.last;
  });
}

std::string StepSet::text() const {
  std::string text;
  for (const Range& range : ranges_) {
    if (!text.empty()) text += ',';
    text += range.first == range.last
                ? fmt::format("{}", range.first)
                : fmt::format("{}-{}", range.first, range.last);
  }
  return text;
}

}  // namespace lockstep
