#include "core/hdf5/library.h"

namespace lockstep::hdf5 {
namespace {

// Makes HDF5 stop where a link leads to another file.
herr_t refuse_link(const char*, const char*, const char* file, const char*,
                   unsigned*, hid_t, void*) {
  H5Epush2(H5E_DEFAULT, "", "", 0, H5E_ERR_CLS, H5E_LINK, H5E_TRAVERSE,
           "it leads to another file, %s, and such links are not followed",
           file);
  return -1;
}

// Access properties, of the class that a call asks for, that stay in the file.
Id inside_the_file(hid_t property_class) {
  Id properties = property_id(H5Pcreate(property_class));
  H5Pset_elink_cb(properties, refuse_link, nullptr);
  return properties;
}

}  // namespace

bool Group::has(const std::string& path) const {
  const Lock lock;
  const std::string whole = relative(path);
  if (whole == ".") return true;
  const Id access = inside_the_file(H5P_LINK_ACCESS);
  std::size_t end = 0;
  while (end != std::string::npos) {
    end = whole.find('/', end + 1);
    if (H5Lexists(id_, whole.substr(0, end).c_str(), access) <= 0) return false;
  }
  return true;
}

Group Group::group(const std::string& path) const {
  const Lock lock;
  const std::string where = relative(path);
  std::string name = joined(name_, where);
  const Id access = inside_the_file(H5P_GROUP_ACCESS);
  Id id(checked(H5Gopen2(id_, where.c_str(), access), "open group " + name),
        H5Gclose);
  if (!name.ends_with('/')) name += '/';
  return {std::move(id), name};
}

Dataset Group::dataset(const std::string& path) const {
  const Lock lock;
  const std::string where = relative(path);
  const std::string name = joined(name_, where);
  const Id access = inside_the_file(H5P_DATASET_ACCESS);
  Id id(checked(H5Dopen2(id_, where.c_str(), access), "open dataset " + name),
        H5Dclose);
  const Id properties = property_id(H5Dget_create_plist(id));
  require(H5Pget_layout(properties) != H5D_VIRTUAL &&
              H5Pget_external_count(properties) <= 0,
          "{} keeps its values in other files, which are not followed", name);
  return {std::move(id), name};
}

std::vector<Child> Group::children() const {
  const Lock lock;
  std::vector<Child> children;
  checked(
      H5Literate(
          id_, H5_INDEX_NAME, H5_ITER_INC, nullptr,
          [](hid_t group, const char* name, const H5L_info_t* info,
             void* out) -> herr_t {
            Child child{name};
            H5O_info_t object;
            if (info->type == H5L_TYPE_HARD &&
                H5Oget_info_by_name(group, name, &object, H5P_DEFAULT) >= 0) {
              child.kind = object.type == H5O_TYPE_DATASET
                               ? Child::Kind::dataset
                           : object.type == H5O_TYPE_GROUP ? Child::Kind::group
                                                           : Child::Kind::other;
            }
            static_cast<std::vector<Child>*>(out)->push_back(child);
            return 0;
          },
          &children),
      "list " + name_);
  return children;
}

void Group::remove(const std::string& path) {
  const Lock lock;
  const std::string where = relative(path);
  checked(H5Ldelete(id_, where.c_str(), H5P_DEFAULT),
          "remove " + joined(name_, where));
}

Group Group::create_group(const std::string& path) {
  const Lock lock;
  const std::string where = relative(path);
  const std::string name = joined(name_, where);
  return {
      {checked(H5Gcreate2(id_, where.c_str(), with_intermediates(),
                          ordered_attributes(H5P_GROUP_CREATE), H5P_DEFAULT),
               "create group " + name),
       H5Gclose},
      name + "/"};
}

template <class T>
Dataset Group::create_dataset(const std::string& path,
                              const std::vector<std::int64_t>& shape) {
  const Lock lock;
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  const Id space = space_id(H5Screate_simple(static_cast<int>(extents.size()),
                                             extents.data(), nullptr));
  const std::string name = joined(name_, relative(path));
  return {new_dataset(id_, name, path, native<T>(), space, H5P_DEFAULT), name};
}

template <class T>
Dataset Group::create_extendible(const std::string& path,
                                 const std::vector<std::int64_t>& row_shape,
                                 std::int64_t rows_a_chunk) {
  const Lock lock;
  std::vector<hsize_t> extents = {0}, chunk = {hsize_t(rows_a_chunk)};
  std::vector<hsize_t> limits = {H5S_UNLIMITED};
  for (const std::int64_t extent : row_shape) {
    extents.push_back(hsize_t(extent));
    chunk.push_back(hsize_t(extent));
    limits.push_back(hsize_t(extent));
  }
  const Id space = space_id(H5Screate_simple(static_cast<int>(extents.size()),
                                             extents.data(), limits.data()));
  const Id properties = property_id(H5Pcreate(H5P_DATASET_CREATE));
  H5Pset_chunk(properties, static_cast<int>(chunk.size()), chunk.data());
  H5Pset_fletcher32(properties);
  const std::string name = joined(name_, relative(path));
  return {new_dataset(id_, name, path, native<T>(), space, properties), name};
}

#define LOCKSTEP_HDF5_TYPE(T)                                                  \
  template Dataset Group::create_dataset<T>(const std::string&,                \
                                            const std::vector<std::int64_t>&); \
  template Dataset Group::create_extendible<T>(                                \
      const std::string&, const std::vector<std::int64_t>&, std::int64_t);
LOCKSTEP_HDF5_TYPE(double)
LOCKSTEP_HDF5_TYPE(float)
LOCKSTEP_HDF5_TYPE(std::int64_t)
LOCKSTEP_HDF5_TYPE(std::int32_t)
#undef LOCKSTEP_HDF5_TYPE

}  // namespace lockstep::hdf5
