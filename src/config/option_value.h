#pragma once

#include <charconv>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace lockstep {

// How one option's text becomes its field and the other way round. `set`
// returns false for text that is not accepted and leaves the field alone; what
// `get` returns is always accepted by `set`.
struct OptionValue {
  std::string accepts;  // "a number above 0"
  std::function<bool(const std::string&)> set;
  std::function<std::string()> get;
  std::vector<std::string_view> choices = {};  // where the names are few
};

// A whole number from `low` to `high`.
template <class Integer>
OptionValue whole(Integer& field, Integer low, Integer high) {
  return {fmt::format("a whole number from {} to {}", low, high),
          [&field, low, high](const std::string& text) {
            Integer value{};
            const char* end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data(), end, value);
            if (error != std::errc() || stop != end) return false;
            if (value < low || value > high) return false;
            field = value;
            return true;
          },
          [&field] { return fmt::format("{}", field); }};
}

// Whole numbers, "256,1024" or "128..65536", which doubles from the first to
// the last.
OptionValue whole_list(std::vector<std::int64_t>& field, std::int64_t low,
                       std::int64_t high);

// A finite number. It is tested as the fp32 value that computes with it, so
// that "above 0" stays above 0.
struct NumberRange {
  std::string_view accepts;
  bool (*contains)(float);
};
OptionValue number(double& field, const NumberRange& range);

// Any text, or any but the empty one.
OptionValue text(std::string& field);
OptionValue path(std::string& field);

// One of a few names, kept as such.
OptionValue name(std::string& field, std::vector<std::string_view> names);

// One of a few names, kept as the value it stands for.
template <class T>
struct Choice {
  std::string_view name;
  T value;
};
std::string one_of(std::span<const std::string_view> names);
template <class T, std::size_t count>
OptionValue choice(T& field, const Choice<T> (&choices)[count]) {
  std::vector<std::string_view> names;
  for (const Choice<T>& each : choices) names.push_back(each.name);
  return {one_of(names),
          [&field, &choices](const std::string& given) {
            for (const Choice<T>& each : choices) {
              if (each.name != given) continue;
              field = each.value;
              return true;
            }
            return false;
          },
          [&field, &choices] {
            for (const Choice<T>& each : choices) {
              if (each.value == field) return std::string(each.name);
            }
            return std::string();
          },
          names};
}

// Several of a few names, "flash,naive".
template <class T, std::size_t count>
OptionValue choice_list(std::vector<T>& field,
                        const Choice<T> (&choices)[count]);

// The candidate that a user most likely meant: one that starts with `given`,
// or else the one with the fewest letters to insert, drop, replace or swap.
// `candidates` is not empty.
std::string_view nearest(std::string_view given,
                         std::span<const std::string_view> candidates);

// The parts of "a,b,c"; an empty text is one empty part.
std::vector<std::string> split_list(const std::string& text);

template <class T, std::size_t count>
OptionValue choice_list(std::vector<T>& field,
                        const Choice<T> (&choices)[count]) {
  T scratch{};
  std::string names = choice(scratch, choices).accepts;
  return {"a list of " + names,
          [&field, &choices](const std::string& given) {
            std::vector<T> values;
            for (const std::string& part : split_list(given)) {
              T value{};
              if (!choice(value, choices).set(part)) return false;
              values.push_back(value);
            }
            field = values;
            return true;
          },
          [&field, &choices] {
            std::string text;
            for (T value : field) {
              if (!text.empty()) text += ',';
              text += choice(value, choices).get();
            }
            return text;
          }};
}

}  // namespace lockstep
