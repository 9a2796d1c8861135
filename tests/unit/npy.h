#pragma once

#include <cstdint>
#include <string>

#include "unit/files.h"

namespace lockstep::test {

// An .npy header around a dictionary, padded to 64 bytes as NumPy does.
inline std::string npy_with(std::string dictionary, int format = 1) {
  const std::size_t before = format == 1 ? 10 : 12;
  dictionary.append(63 - (before + dictionary.size()) % 64, ' ');
  dictionary += '\n';
  const std::string length =
      format == 1
          ? bytes_of_value(static_cast<std::uint16_t>(dictionary.size()))
          : bytes_of_value(static_cast<std::uint32_t>(dictionary.size()));
  return "\x93NUMPY" + std::string{static_cast<char>(format), '\0'} + length +
         dictionary;
}

inline std::string npy_header(const std::string& descr,
                              const std::string& shape, int format = 1,
                              bool fortran_order = false) {
  return npy_with("{'descr': '" + descr + "', 'fortran_order': " +
                      (fortran_order ? "True" : "False") +
                      ", 'shape': " + shape + ", }",
                  format);
}

}  // namespace lockstep::test
