#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/option_value.h"
#include "config/options.h"

namespace lockstep {

struct OptionRow {
  std::string name;      // without dashes
  std::string argument;  // "N"
  OptionValue value;
  std::string help;
  std::string default_text = {};  // where it depends on something else
};

struct OptionGroup {
  std::string title;
  std::vector<OptionRow> rows;
};

// Every option, bound to the fields of `options`, in the order of --help. The
// one place where options are listed. `sync_names` is what --sync accepts.
std::vector<OptionGroup> option_table(
    Options& options, std::span<const std::string_view> sync_names);

}  // namespace lockstep
