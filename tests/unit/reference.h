#pragma once

#include <string>
#include <vector>

#include "core/hdf5.h"

namespace lockstep::test {

// A dataset of the reference file, which holds float64 results of PyTorch.
template <class T = float>
std::vector<T> reference(const std::string& name) {
  return hdf5::File(LOCKSTEP_REFERENCE, hdf5::Access::read)
      .dataset(name)
      .read<T>();
}
inline std::vector<std::int64_t> reference_shape(const std::string& name) {
  return hdf5::File(LOCKSTEP_REFERENCE, hdf5::Access::read)
      .dataset(name)
      .shape();
}

inline bool reference_flag(const std::string& group, const std::string& name) {
  return hdf5::File(LOCKSTEP_REFERENCE, hdf5::Access::read)
             .group(group)
             .attribute<double>(name) != 0;
}

}  // namespace lockstep::test
