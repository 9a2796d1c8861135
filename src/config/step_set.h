#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Some steps of a run, as a user writes them: "3", "1,5-8", "" for none.
class StepSet {
 public:
  // Steps and ranges of them, from 1 on, separated by commas; nullopt for
  // anything else.
  static std::optional<StepSet> parse(std::string_view text);

  bool contains(std::int64_t step) const;
  bool empty() const { return ranges_.empty(); }
  std::string text() const;  // what parse() takes

 private:
  struct Range {
    std::int64_t first = 0;
    std::int64_t last = 0;  // included
  };
  std::vector<Range> ranges_;
};

}  // namespace lockstep
