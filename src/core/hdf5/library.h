#pragma once

// Newer releases then offer the calls of 1.10 under their names of then.
#define H5_USE_110_API
#include <hdf5.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <type_traits>

#include "core/error.h"
#include "core/hdf5.h"

// What the files of this folder share: HDF5's own header, the lock around the
// library, its errors and its types.
namespace lockstep::hdf5 {

static_assert(sizeof(hid_t) == sizeof(std::int64_t));

// Held by whoever calls the library.
class Lock {
 public:
  Lock() : guard_(mutex()) {}

 private:
  static std::recursive_mutex& mutex();
  std::lock_guard<std::recursive_mutex> guard_;
};

// The innermost description on HDF5's error stack.
std::string reason();

// Passes an identifier or a status on; negative is an Error.
template <class Status>
Status checked(Status status, const std::string& what) {
  if (status < 0) fail("HDF5: cannot {}: {}", what, reason());
  return status;
}

inline Id type_id(hid_t id) {
  return {id, H5Tclose};
}
inline Id space_id(hid_t id) {
  return {id, H5Sclose};
}
inline Id property_id(hid_t id) {
  return {id, H5Pclose};
}

// HDF5's name for T.
template <class T>
hid_t native() {
  if constexpr (std::is_same_v<T, double>) {
    return H5T_NATIVE_DOUBLE;
  } else if constexpr (std::is_same_v<T, float>) {
    return H5T_NATIVE_FLOAT;
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return H5T_NATIVE_INT64;
  } else {
    static_assert(std::is_same_v<T, std::int32_t>);
    return H5T_NATIVE_INT32;
  }
}

// How many elements a dataspace has; `owner` is for messages.
std::size_t points_of(hid_t space, const std::string& owner);

// A path as it is meant everywhere here: from the group on, "." for itself.
std::string relative(const std::string& path);

// "file.h5:/a/" and "b/c" are "file.h5:/a/b/c".
std::string joined(const std::string& owner, const std::string& path);

// Creation properties of a link to an object in groups that may not exist yet.
Id with_intermediates();

// Creation properties of a group whose attributes keep their order. With it
// comes a layout that takes attributes of more than 64 KiB.
Id ordered_attributes(hid_t property_class);

// A dataset at a path from the group on; `name` is for messages.
Id new_dataset(hid_t group, const std::string& name, const std::string& path,
               hid_t type, hid_t space, hid_t properties);

}  // namespace lockstep::hdf5
