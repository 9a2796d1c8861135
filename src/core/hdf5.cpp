#include "core/hdf5.h"

#include <hdf5.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/error.h"

namespace lockstep::hdf5 {
namespace {

static_assert(sizeof(hid_t) == sizeof(std::int64_t));

// The innermost description on HDF5's error stack.
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

// Passes an identifier or a status on; negative is an Error.
template <class Status>
Status checked(Status status, const std::string& what) {
  if (status < 0) fail("HDF5: cannot {}: {}", what, reason());
  return status;
}

Id type_id(hid_t id) { return {id, H5Tclose}; }
Id space_id(hid_t id) { return {id, H5Sclose}; }
Id attribute_id(hid_t id) { return {id, H5Aclose}; }
Id property_id(hid_t id) { return {id, H5Pclose}; }

template <class T>
hid_t native();
template <>
hid_t native<double>() { return H5T_NATIVE_DOUBLE; }
template <>
hid_t native<float>() { return H5T_NATIVE_FLOAT; }
template <>
hid_t native<std::int64_t>() { return H5T_NATIVE_INT64; }
template <>
hid_t native<std::int32_t>() { return H5T_NATIVE_INT32; }

std::vector<hsize_t> extents_of(hid_t space) {
  std::vector<hsize_t> extents(
      std::max(0, H5Sget_simple_extent_ndims(space)));
  H5Sget_simple_extent_dims(space, extents.data(), nullptr);
  return extents;
}

hsize_t product(std::span<const hsize_t> extents) {
  hsize_t all = 1;
  for (const hsize_t extent : extents) all *= extent;
  return all;
}

// One attribute of any type, written anew.
void write_attribute(hid_t object, const std::string& owner,
                     const std::string& name, hid_t type, hid_t space,
                     const void* value) {
  if (H5Aexists(object, name.c_str()) > 0) H5Adelete(object, name.c_str());
  const Id attribute = attribute_id(
      checked(H5Acreate2(object, name.c_str(), type, space, H5P_DEFAULT,
                         H5P_DEFAULT),
              fmt::format("create attribute '{}' of {}", name, owner)));
  checked(H5Awrite(attribute, type, value),
          fmt::format("write attribute '{}' of {}", name, owner));
}

Id string_type() {
  Id type = type_id(H5Tcopy(H5T_C_S1));
  H5Tset_size(type, H5T_VARIABLE);
  H5Tset_cset(type, H5T_CSET_UTF8);
  return type;
}

// Access properties under which following a link to another file fails, also
// where it hides behind a soft link.
Id inside_the_file(hid_t property_class) {
  Id properties = property_id(H5Pcreate(property_class));
  H5Pset_elink_cb(
      properties,
      [](const char*, const char*, const char*, const char*, unsigned*, hid_t,
         void*) -> herr_t { return -1; },
      nullptr);
  return properties;
}

// Refuses a path on which a link leads to another file, by its name.
void refuse_external_links(hid_t group, const std::string& owner,
                           const std::string& path) {
  const Id access = inside_the_file(H5P_LINK_ACCESS);
  std::size_t end = 0;
  while (end != std::string::npos) {
    end = path.find('/', end + 1);
    const std::string part = path.substr(0, end);
    if (part.empty() || part == "/") continue;
    H5L_info_t info;
    if (H5Lget_info(group, part.c_str(), &info, access) < 0) return;
    require(info.type != H5L_TYPE_EXTERNAL,
            "{}{} is a link to another file, which is not followed", owner,
            part);
  }
}

}  // namespace

void Object::set_attribute(const std::string& name, std::string_view value) {
  const std::string text(value);
  const char* const pointer = text.c_str();
  const Id space = space_id(H5Screate(H5S_SCALAR));
  write_attribute(id_, name_, name, string_type(), space, &pointer);
}

void Object::set_attribute(const std::string& name, double value) {
  const Id space = space_id(H5Screate(H5S_SCALAR));
  write_attribute(id_, name_, name, H5T_NATIVE_DOUBLE, space, &value);
}

void Object::set_attribute(const std::string& name, std::int64_t value) {
  const Id space = space_id(H5Screate(H5S_SCALAR));
  write_attribute(id_, name_, name, H5T_NATIVE_INT64, space, &value);
}

void Object::set_attribute(const std::string& name,
                           const std::vector<std::string>& values) {
  std::vector<const char*> pointers;
  for (const std::string& value : values) pointers.push_back(value.c_str());
  pointers.push_back(nullptr);  // HDF5 wants an address even for none
  const hsize_t count = values.size();
  const Id space = space_id(H5Screate_simple(1, &count, nullptr));
  write_attribute(id_, name_, name, string_type(), space, pointers.data());
}

bool Object::has_attribute(const std::string& name) const {
  return H5Aexists(id_, name.c_str()) > 0;
}

namespace {

// Reads one number, whatever number, boolean or enumeration is stored.
template <class T>
T number_attribute(hid_t object, const std::string& owner,
                   const std::string& name) {
  const std::string what = fmt::format("read attribute '{}' of {}", name, owner);
  const Id attribute =
      attribute_id(checked(H5Aopen(object, name.c_str(), H5P_DEFAULT), what));
  const Id space = space_id(H5Aget_space(attribute));
  require(H5Sget_simple_extent_npoints(space) == 1,
          "attribute '{}' of {} is not one number", name, owner);
  Id type = type_id(H5Aget_type(attribute));
  if (H5Tget_class(type) == H5T_ENUM) {
    // h5py's booleans: the integer underneath, through its own buffer.
    std::int64_t value = 0;
    const Id base = type_id(H5Tget_super(type));
    require(H5Tget_size(type) <= sizeof value,
            "attribute '{}' of {} is too wide", name, owner);
    checked(H5Aread(attribute, type, &value), what);
    checked(H5Tconvert(base, H5T_NATIVE_INT64, 1, &value, nullptr,
                       H5P_DEFAULT),
            what);
    return static_cast<T>(value);
  }
  T value{};
  checked(H5Aread(attribute, native<T>(), &value), what);
  return value;
}

}  // namespace

template <>
double Object::attribute<double>(const std::string& name) const {
  return number_attribute<double>(id_, name_, name);
}

template <>
std::int64_t Object::attribute<std::int64_t>(const std::string& name) const {
  return number_attribute<std::int64_t>(id_, name_, name);
}

template <>
std::string Object::attribute<std::string>(const std::string& name) const {
  const std::string what = fmt::format("read attribute '{}' of {}", name, name_);
  const Id attribute =
      attribute_id(checked(H5Aopen(id_, name.c_str(), H5P_DEFAULT), what));
  const Id type = type_id(H5Aget_type(attribute));
  const Id space = space_id(H5Aget_space(attribute));
  require(H5Tget_class(type) == H5T_STRING &&
              H5Sget_simple_extent_npoints(space) == 1,
          "attribute '{}' of {} is not one text", name, name_);
  if (H5Tis_variable_str(type) > 0) {
    char* text = nullptr;
    checked(H5Aread(attribute, string_type(), &text), what);
    std::string value = text == nullptr ? "" : text;
    H5free_memory(text);
    return value;
  }
  std::string value(H5Tget_size(type), '\0');
  checked(H5Aread(attribute, type, value.data()), what);
  return value.substr(0, value.find('\0'));
}

template <>
std::vector<std::string> Object::attribute<std::vector<std::string>>(
    const std::string& name) const {
  const std::string what = fmt::format("read attribute '{}' of {}", name, name_);
  const Id attribute =
      attribute_id(checked(H5Aopen(id_, name.c_str(), H5P_DEFAULT), what));
  const Id type = type_id(H5Aget_type(attribute));
  require(H5Tis_variable_str(type) > 0,
          "attribute '{}' of {} is not a list of texts", name, name_);
  const Id space = space_id(H5Aget_space(attribute));
  std::vector<char*> texts(H5Sget_simple_extent_npoints(space) + 1);
  checked(H5Aread(attribute, string_type(), texts.data()), what);
  texts.pop_back();  // it was there so that none has an address too
  std::vector<std::string> values;
  for (char* text : texts) {
    values.emplace_back(text == nullptr ? "" : text);
    H5free_memory(text);
  }
  return values;
}

std::vector<std::int64_t> Dataset::shape() const {
  const Id space = space_id(H5Dget_space(id_));
  const auto extents = extents_of(space);
  return {extents.begin(), extents.end()};
}

Dataset::Storage Dataset::storage() const {
  const Id type = type_id(H5Dget_type(id_));
  const int bytes = static_cast<int>(H5Tget_size(type));
  switch (H5Tget_class(type)) {
    case H5T_INTEGER: {
      const bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
      return {true, is_signed, bytes,
              fmt::format("{}int{}", is_signed ? "" : "u", 8 * bytes)};
    }
    case H5T_FLOAT:
      return {false, true, bytes, fmt::format("float{}", 8 * bytes)};
    default:
      return {false, false, bytes, "other"};
  }
}

template <class T>
std::vector<T> Dataset::read() const {
  const Id space = space_id(H5Dget_space(id_));
  std::vector<T> values(H5Sget_simple_extent_npoints(space));
  checked(H5Dread(id_, native<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT,
                  values.data()),
          "read " + name_);
  return values;
}

template <class T>
void Dataset::read(std::int64_t begin, std::span<T> out) const {
  const Id space = space_id(H5Dget_space(id_));
  require(H5Sget_simple_extent_ndims(space) == 1, "{} has not one axis", name_);
  const hsize_t start = static_cast<hsize_t>(begin);
  const hsize_t count = out.size();
  checked(H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, nullptr, &count,
                              nullptr),
          "select in " + name_);
  const Id memory = space_id(H5Screate_simple(1, &count, nullptr));
  checked(H5Dread(id_, native<T>(), memory, space, H5P_DEFAULT, out.data()),
          "read " + name_);
}

template <class T>
void Dataset::write(std::span<const T> values) {
  const Id space = space_id(H5Dget_space(id_));
  require(H5Sget_simple_extent_npoints(space) == std::ssize(values),
          "{} values for {}", values.size(), name_);
  checked(H5Dwrite(id_, native<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT,
                   values.data()),
          "write " + name_);
}

template <class T>
void Dataset::append(std::span<const T> rows) {
  std::vector<hsize_t> extents;
  {
    const Id space = space_id(H5Dget_space(id_));
    extents = extents_of(space);
  }
  require(!extents.empty(), "{} has no rows to append to", name_);
  if (rows.empty()) return;
  const hsize_t width = product(std::span(extents).subspan(1));
  require(width > 0 && rows.size() % width == 0,
          "{} values are no whole rows of {}", rows.size(), name_);
  std::vector<hsize_t> start(extents.size(), 0), count = extents;
  start[0] = extents[0];
  count[0] = rows.size() / width;
  extents[0] += count[0];
  checked(H5Dset_extent(id_, extents.data()), "extend " + name_);
  const Id space = space_id(H5Dget_space(id_));
  checked(H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr,
                              count.data(), nullptr),
          "select in " + name_);
  const Id memory = space_id(H5Screate_simple(
      static_cast<int>(count.size()), count.data(), nullptr));
  checked(H5Dwrite(id_, native<T>(), memory, space, H5P_DEFAULT, rows.data()),
          "append to " + name_);
}

bool Group::has(const std::string& path) const {
  const Id access = inside_the_file(H5P_LINK_ACCESS);
  std::size_t end = 0;
  while (end != std::string::npos) {
    end = path.find('/', end + 1);
    const std::string part = path.substr(0, end);
    if (part.empty() || part == "/") continue;
    if (H5Lexists(id_, part.c_str(), access) <= 0) return false;
  }
  return true;
}

Group Group::group(const std::string& path) const {
  refuse_external_links(id_, name_, path);
  return {{checked(H5Gopen2(id_, path.c_str(), inside_the_file(H5P_GROUP_ACCESS)),
                   fmt::format("open group {}{}", name_, path)),
           H5Gclose},
          name_ + path + (path.ends_with('/') ? "" : "/")};
}

Dataset Group::dataset(const std::string& path) const {
  refuse_external_links(id_, name_, path);
  return {{checked(H5Dopen2(id_, path.c_str(), inside_the_file(H5P_DATASET_ACCESS)),
                   fmt::format("open dataset {}{}", name_, path)),
           H5Dclose},
          name_ + path};
}

std::vector<Child> Group::children() const {
  std::vector<Child> children;
  checked(H5Literate(
              id_, H5_INDEX_NAME, H5_ITER_INC, nullptr,
              [](hid_t group, const char* name, const H5L_info_t* info,
                 void* out) -> herr_t {
                Child child{name};
                H5O_info_t object;
                if (info->type == H5L_TYPE_HARD &&
                    H5Oget_info_by_name(group, name, &object, H5P_DEFAULT) >=
                        0) {
                  child.kind = object.type == H5O_TYPE_DATASET
                                   ? Child::Kind::dataset
                               : object.type == H5O_TYPE_GROUP
                                   ? Child::Kind::group
                                   : Child::Kind::other;
                }
                static_cast<std::vector<Child>*>(out)->push_back(child);
                return 0;
              },
              &children),
          "list " + name_);
  return children;
}

namespace {

Id with_intermediates() {
  Id properties = property_id(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_create_intermediate_group(properties, 1);
  return properties;
}

}  // namespace

Group Group::create_group(const std::string& path) {
  return {{checked(H5Gcreate2(id_, path.c_str(), with_intermediates(),
                              H5P_DEFAULT, H5P_DEFAULT),
                   fmt::format("create group {}{}", name_, path)),
           H5Gclose},
          name_ + path + "/"};
}

template <class T>
Dataset Group::create_dataset(const std::string& path,
                              const std::vector<std::int64_t>& shape) {
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  const Id space = space_id(H5Screate_simple(static_cast<int>(extents.size()),
                                             extents.data(), nullptr));
  return {{checked(H5Dcreate2(id_, path.c_str(), native<T>(), space,
                              with_intermediates(), H5P_DEFAULT, H5P_DEFAULT),
                   fmt::format("create dataset {}{}", name_, path)),
           H5Dclose},
          name_ + path};
}

template <class T>
Dataset Group::create_extendible(const std::string& path,
                                 const std::vector<std::int64_t>& row_shape,
                                 std::int64_t rows_a_chunk) {
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
  return {{checked(H5Dcreate2(id_, path.c_str(), native<T>(), space,
                              with_intermediates(), properties, H5P_DEFAULT),
                   fmt::format("create dataset {}{}", name_, path)),
           H5Dclose},
          name_ + path};
}

namespace {

Id open_file(const std::string& path, Access access) {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // errors are ours to print
  if (access == Access::read) {
    // The plain reason where there is one; HDF5's own is roundabout.
    errno = 0;
    require(std::ifstream(path, std::ios::binary).good(), "cannot open {}: {}",
            path, std::strerror(errno));
    return {checked(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT),
                    fmt::format("open {}", path)),
            H5Fclose};
  }
  const Id properties = property_id(H5Pcreate(H5P_FILE_ACCESS));
  std::string name = path;
  if (access == Access::in_memory) {
    constexpr std::size_t growth = 1 << 20;
    H5Pset_fapl_core(properties, growth, /*backing_store=*/0);
    name += ", in memory";  // HDF5 would read a file of that name first
  }
  return {checked(H5Fcreate(name.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT,
                            properties),
                  fmt::format("create {}", path)),
          H5Fclose};
}

}  // namespace

File::File(const std::string& path, Access access)
    : Group(open_file(path, access), path + ":/") {}

std::vector<std::byte> File::image() const {
  checked(H5Fflush(id_, H5F_SCOPE_LOCAL), "flush " + name_);
  const auto bytes =
      checked(H5Fget_file_image(id_, nullptr, 0), "take the image of " + name_);
  std::vector<std::byte> image(static_cast<std::size_t>(bytes));
  checked(H5Fget_file_image(id_, image.data(), image.size()),
          "take the image of " + name_);
  return image;
}

std::string version() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

#define LOCKSTEP_HDF5_TYPE(T)                                                \
  template std::vector<T> Dataset::read<T>() const;                          \
  template void Dataset::read<T>(std::int64_t, std::span<T>) const;          \
  template void Dataset::write<T>(std::span<const T>);                       \
  template void Dataset::append<T>(std::span<const T>);                      \
  template Dataset Group::create_dataset<T>(const std::string&,              \
                                            const std::vector<std::int64_t>&); \
  template Dataset Group::create_extendible<T>(                              \
      const std::string&, const std::vector<std::int64_t>&, std::int64_t);
LOCKSTEP_HDF5_TYPE(double)
LOCKSTEP_HDF5_TYPE(float)
LOCKSTEP_HDF5_TYPE(std::int64_t)
LOCKSTEP_HDF5_TYPE(std::int32_t)
#undef LOCKSTEP_HDF5_TYPE

}  // namespace lockstep::hdf5
