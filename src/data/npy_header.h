#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// What an .npy file's header says of a one-axis little-endian array.
struct NpyHeader {
  std::string type;  // "u2", "i8": kind and bytes
  std::int64_t item_bytes = 0;
  std::int64_t count = 0;
  std::int64_t data_offset = 0;
};

// Reads the header at the start of `bytes` (format 1.0, 2.0 or 3.0; NumPy
// enhancement proposal 1). Errors name the file and what was found: another
// format, a header that doesn't parse, big-endian values, several axes.
NpyHeader parse_npy_header(std::string_view bytes, const std::string& name);

}  // namespace lockstep
