#include "core/hdf5/library.h"

#include <algorithm>

namespace lockstep::hdf5 {

std::recursive_mutex& Lock::mutex() {
  static std::recursive_mutex only;
  return only;
}

std::string reason() {
  std::string text;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned n, const H5E_error2_t* error, void* out) -> herr_t {
        if (n == 0 && error->desc != nullptr) {
          *static_cast<std::string*>(out) = error->desc;
        }
        return 0;
      },
      &text);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text.empty() ? "no reason given" : text;
}

Id::~Id() {
  if (close_ == nullptr) return;
  const Lock lock;
  close_(id_);
}

std::size_t points_of(hid_t space, const std::string& owner) {
  return static_cast<std::size_t>(checked(H5Sget_simple_extent_npoints(space),
                                          "tell the size of " + owner));
}

std::string relative(const std::string& path) {
  const auto begin = path.find_first_not_of('/');
  const auto end = path.find_last_not_of('/');
  return begin == std::string::npos ? "." : path.substr(begin, end + 1 - begin);
}

std::string joined(const std::string& owner, const std::string& path) {
  return path == "." ? owner : owner + path;
}

Id with_intermediates() {
  Id properties = property_id(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_create_intermediate_group(properties, 1);
  return properties;
}

Id ordered_attributes(hid_t property_class) {
  Id properties = property_id(H5Pcreate(property_class));
  H5Pset_attr_creation_order(properties, H5P_CRT_ORDER_TRACKED);
  return properties;
}

Id new_dataset(hid_t group, const std::string& name, const std::string& path,
               hid_t type, hid_t space, hid_t properties) {
  return {checked(H5Dcreate2(group, relative(path).c_str(), type, space,
                             with_intermediates(), properties, H5P_DEFAULT),
                  "create dataset " + name),
          H5Dclose};
}

std::string version() {
  const Lock lock;
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

}  // namespace lockstep::hdf5
