#include "config/option_value.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

// Damerau-Levenshtein distance in its "optimal string alignment" form.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1),
      row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = last;
    last = row;
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + !same});
      const bool swapped =
          i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

OptionValue whole_list(std::vector<std::int64_t>& field, std::int64_t low,
                       std::int64_t high) {
  return {fmt::format("whole numbers from {} to {}, as a list 1,2,3 or 1..8, "
                      "which doubles",
                      low, high),
          [&field, low, high](const std::string& given) {
            std::vector<std::int64_t> values;
            for (const std::string& part : split_list(given)) {
              const std::size_t dots = part.find("..");
              std::int64_t first = 0, last = 0;
              if (!whole(first, low, high).set(part.substr(0, dots))) {
                return false;
              }
              last = first;
              if (dots != std::string::npos &&
                  (!whole(last, low, high).set(part.substr(dots + 2)) ||
                   first == 0)) {
                return false;
              }
              for (std::int64_t value = first; value <= last; value *= 2) {
                values.push_back(value);
                if (value == 0) break;
              }
            }
            if (values.empty()) return false;
            field = values;
            return true;
          },
          [&field] { return fmt::format("{}", fmt::join(field, ",")); }};
}

OptionValue number(double& field, const NumberRange& range) {
  return {std::string(range.accepts),
          [&field, contains = range.contains](const std::string& given) {
            double value = 0;
            const char* end = given.data() + given.size();
            const auto [stop, error] =
                std::from_chars(given.data(), end, value);
            if (error != std::errc() || stop != end) return false;
            const auto single = static_cast<float>(value);
            if (!std::isfinite(single) || !contains(single)) return false;
            field = value;
            return true;
          },
          [&field] { return fmt::format("{}", field); }};
}

OptionValue text(std::string& field) {
  return {"any text",
          [&field](const std::string& given) {
            field = given;
            return true;
          },
          [&field] { return field; }};
}

OptionValue path(std::string& field) {
  OptionValue value = text(field);
  value.accepts = "a file name";
  value.set = [set = value.set](const std::string& given) {
    return !given.empty() && set(given);
  };
  return value;
}

OptionValue name(std::string& field, std::vector<std::string_view> names) {
  return {one_of(names),
          [&field, names](const std::string& given) {
            if (std::ranges::find(names, given) == names.end()) return false;
            field = given;
            return true;
          },
          [&field] { return field; }, names};
}

std::string one_of(std::span<const std::string_view> names) {
  if (names.size() < 2) return fmt::format("{}", fmt::join(names, ""));
  return fmt::format("{} or {}", fmt::join(names.first(names.size() - 1), ", "),
                     names.back());
}

std::string_view nearest(std::string_view given,
                         std::span<const std::string_view> candidates) {
  const auto distance = [&](std::string_view candidate) {
    const bool abbreviated = !given.empty() && candidate.starts_with(given);
    return abbreviated ? 0 : edit_distance(given, candidate);
  };
  return *std::ranges::min_element(candidates, {}, distance);
}

}  // namespace lockstep
