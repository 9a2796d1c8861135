#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "config/option_parser.h"
#include "config/options.h"

namespace lockstep {

// Every option, bound to the fields of `options`, in the order of --help. The
// one place where options are listed. `sync_names` is what --sync accepts.
std::vector<OptionGroup> option_table(
    Options& options, std::span<const std::string_view> sync_names);

}  // namespace lockstep
