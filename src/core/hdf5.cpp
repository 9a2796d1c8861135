#include "core/hdf5.h"

// Newer releases then offer the calls of 1.10 under their names of then.
#define H5_USE_110_API
#include <fcntl.h>
#include <hdf5.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <mutex>
#include <new>

#include "core/error.h"

namespace lockstep::hdf5 {
namespace {

static_assert(sizeof(hid_t) == sizeof(std::int64_t));

// Held by whoever calls the library.
class Lock {
 public:
  Lock() : guard_(mutex()) {}

 private:
  static std::recursive_mutex& mutex() {
    static std::recursive_mutex only;
    return only;
  }
  std::lock_guard<std::recursive_mutex> guard_;
};

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

Id type_id(hid_t id) {
  return {id, H5Tclose};
}
Id space_id(hid_t id) {
  return {id, H5Sclose};
}
Id attribute_id(hid_t id) {
  return {id, H5Aclose};
}
Id property_id(hid_t id) {
  return {id, H5Pclose};
}

template <class T>
hid_t native();
template <>
hid_t native<double>() {
  return H5T_NATIVE_DOUBLE;
}
template <>
hid_t native<float>() {
  return H5T_NATIVE_FLOAT;
}
template <>
hid_t native<std::int64_t>() {
  return H5T_NATIVE_INT64;
}
template <>
hid_t native<std::int32_t>() {
  return H5T_NATIVE_INT32;
}

std::vector<hsize_t> extents_of(hid_t space) {
  std::vector<hsize_t> extents(std::max(0, H5Sget_simple_extent_ndims(space)));
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
  const Id attribute = attribute_id(checked(
      H5Acreate2(object, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT),
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

// A path as it is meant everywhere here: from the group on, "." for itself.
std::string relative(const std::string& path) {
  const auto begin = path.find_first_not_of('/');
  const auto end = path.find_last_not_of('/');
  return begin == std::string::npos ? "." : path.substr(begin, end + 1 - begin);
}

// "file.h5:/a/" and "b/c" are "file.h5:/a/b/c".
std::string joined(const std::string& owner, const std::string& path) {
  return path == "." ? owner : owner + path;
}

// How many elements a dataspace has.
std::size_t points_of(hid_t space, const std::string& owner) {
  return static_cast<std::size_t>(checked(H5Sget_simple_extent_npoints(space),
                                          "tell the size of " + owner));
}

}  // namespace

Id::~Id() {
  if (close_ == nullptr) return;
  const Lock lock;
  close_(id_);
}

void Object::set_attribute(const std::string& name, std::string_view value) {
  const Lock lock;
  const std::string text(value);
  const char* const pointer = text.c_str();
  const Id space = space_id(H5Screate(H5S_SCALAR));
  write_attribute(id_, name_, name, string_type(), space, &pointer);
}

void Object::set_attribute(const std::string& name, double value) {
  const Lock lock;
  const Id space = space_id(H5Screate(H5S_SCALAR));
  write_attribute(id_, name_, name, H5T_NATIVE_DOUBLE, space, &value);
}

void Object::set_attribute(const std::string& name, std::int64_t value) {
  const Lock lock;
  const Id space = space_id(H5Screate(H5S_SCALAR));
  write_attribute(id_, name_, name, H5T_NATIVE_INT64, space, &value);
}

void Object::set_attribute(const std::string& name,
                           const std::vector<std::string>& values) {
  const Lock lock;
  std::vector<const char*> pointers;
  for (const std::string& value : values) pointers.push_back(value.c_str());
  const hsize_t count = values.size();
  pointers.push_back(nullptr);  // never without an address
  const Id space = space_id(H5Screate_simple(1, &count, nullptr));
  write_attribute(id_, name_, name, string_type(), space, pointers.data());
}

bool Object::has_attribute(const std::string& name) const {
  const Lock lock;
  return H5Aexists(id_, name.c_str()) > 0;
}

std::vector<std::string> Object::attributes() const {
  const Lock lock;
  std::vector<std::string> names;
  checked(H5Aiterate2(
              id_, H5_INDEX_NAME, H5_ITER_INC, nullptr,
              [](hid_t, const char* name, const H5A_info_t*, void* out) {
                static_cast<std::vector<std::string>*>(out)->push_back(name);
                return herr_t{0};
              },
              &names),
          "list the attributes of " + name_);
  return names;
}

namespace {

// Reads one number, whatever number, boolean or enumeration is stored.
template <class T>
T number_attribute(hid_t object, const std::string& owner,
                   const std::string& name) {
  const std::string what =
      fmt::format("read attribute '{}' of {}", name, owner);
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
    checked(H5Tconvert(base, H5T_NATIVE_INT64, 1, &value, nullptr, H5P_DEFAULT),
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
  const Lock lock;
  return number_attribute<double>(id_, name_, name);
}

template <>
std::int64_t Object::attribute<std::int64_t>(const std::string& name) const {
  const Lock lock;
  return number_attribute<std::int64_t>(id_, name_, name);
}

template <>
std::vector<std::string> Object::attribute<std::vector<std::string>>(
    const std::string& name) const {
  const Lock lock;
  const std::string what =
      fmt::format("read attribute '{}' of {}", name, name_);
  const Id attribute =
      attribute_id(checked(H5Aopen(id_, name.c_str(), H5P_DEFAULT), what));
  const Id space = space_id(H5Aget_space(attribute));
  const Id type = type_id(H5Aget_type(attribute));
  require(H5Tget_class(type) == H5T_STRING, "attribute '{}' of {} is not text",
          name, name_);
  const std::size_t count = points_of(space, name_);
  std::vector<std::string> values;
  if (H5Tis_variable_str(type) > 0) {
    std::vector<char*> texts(count + 1);
    checked(H5Aread(attribute, type, texts.data()), what);
    texts.pop_back();
    for (const char* text : texts) values.emplace_back(text ? text : "");
    H5Dvlen_reclaim(type, space, H5P_DEFAULT, texts.data());
    return values;
  }
  const std::size_t width = H5Tget_size(type);
  std::string texts(count * width + 1, '\0');
  checked(H5Aread(attribute, type, texts.data()), what);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string text = texts.substr(i * width, width);
    values.push_back(text.substr(0, text.find('\0')));
  }
  return values;
}

template <>
std::string Object::attribute<std::string>(const std::string& name) const {
  const Lock lock;
  auto values = attribute<std::vector<std::string>>(name);
  require(values.size() == 1, "attribute '{}' of {} is not one text", name,
          name_);
  return std::move(values.front());
}

std::vector<std::int64_t> Dataset::shape() const {
  const Lock lock;
  const Id space = space_id(H5Dget_space(id_));
  const auto extents = extents_of(space);
  return {extents.begin(), extents.end()};
}

Dataset::Storage Dataset::storage() const {
  const Lock lock;
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
  const Lock lock;
  const Id space = space_id(H5Dget_space(id_));
  const std::size_t count = points_of(space, name_);
  std::vector<T> values;
  try {
    values.resize(count);
  } catch (const std::exception&) {
    fail("{} has {} elements, more than memory takes", name_, count);
  }
  if (count == 0) return values;
  checked(
      H5Dread(id_, native<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
      "read " + name_);
  return values;
}

template <class T>
void Dataset::read(std::int64_t begin, std::span<T> out) const {
  const Lock lock;
  if (out.empty()) return;
  const Id space = space_id(H5Dget_space(id_));
  require(H5Sget_simple_extent_ndims(space) == 1, "{} has not one axis", name_);
  const std::size_t elements = points_of(space, name_);
  require(begin >= 0 && out.size() <= elements &&
              static_cast<std::size_t>(begin) <= elements - out.size(),
          "{}: elements {} to {} of {} were asked for", name_, begin,
          begin + std::ssize(out), elements);
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
std::vector<T> Dataset::read_column(const std::string& name) const {
  const Lock lock;
  const Id space = space_id(H5Dget_space(id_));
  std::vector<T> values(points_of(space, name_));
  if (values.empty()) return values;
  const Id type = type_id(H5Tcreate(H5T_COMPOUND, sizeof(T)));
  const std::string what = fmt::format("read column '{}' of {}", name, name_);
  checked(H5Tinsert(type, name.c_str(), 0, native<T>()), what);
  checked(H5Dread(id_, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
          what);
  return values;
}

template <class T>
void Dataset::write(std::span<const T> values) {
  const Lock lock;
  const Id space = space_id(H5Dget_space(id_));
  const std::size_t count = points_of(space, name_);
  require(count == values.size(), "{} values for the {} of {}", values.size(),
          count, name_);
  if (count == 0) return;
  checked(
      H5Dwrite(id_, native<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
      "write " + name_);
}

template <class T>
void Dataset::append(std::span<const T> rows) {
  const Lock lock;
  std::vector<hsize_t> extents;
  {
    const Id space = space_id(H5Dget_space(id_));
    extents = extents_of(space);
  }
  require(!extents.empty(), "{} has no rows to append to", name_);
  if (rows.empty()) return;
  const hsize_t width = product(std::span(extents).subspan(1));
  require(width > 0 && rows.size() % width == 0,
          "{} values are no whole rows of {}, which have {}", rows.size(),
          name_, width);
  std::vector<hsize_t> start(extents.size(), 0), count = extents;
  start[0] = extents[0];
  count[0] = rows.size() / width;
  extents[0] += count[0];
  checked(H5Dset_extent(id_, extents.data()), "extend " + name_);
  const Id space = space_id(H5Dget_space(id_));
  checked(H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr,
                              count.data(), nullptr),
          "select in " + name_);
  const Id memory = space_id(
      H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr));
  checked(H5Dwrite(id_, native<T>(), memory, space, H5P_DEFAULT, rows.data()),
          "append to " + name_);
}

void Dataset::keep_rows(std::int64_t rows) {
  const Lock lock;
  std::vector<hsize_t> extents;
  {
    const Id space = space_id(H5Dget_space(id_));
    extents = extents_of(space);
  }
  require(!extents.empty() && rows >= 0 && hsize_t(rows) <= extents[0],
          "{} has not {} rows to keep", name_, rows);
  extents[0] = hsize_t(rows);
  checked(H5Dset_extent(id_, extents.data()), "shorten " + name_);
}

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

namespace {

Id with_intermediates() {
  Id properties = property_id(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_create_intermediate_group(properties, 1);
  return properties;
}

// Creation properties of a group whose attributes keep their order. With it
// comes a layout that takes attributes of more than 64 KiB.
Id ordered_attributes(hid_t property_class) {
  Id properties = property_id(H5Pcreate(property_class));
  H5Pset_attr_creation_order(properties, H5P_CRT_ORDER_TRACKED);
  return properties;
}

}  // namespace

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

namespace {

Id new_dataset(hid_t group, const std::string& name, const std::string& path,
               hid_t type, hid_t space, hid_t properties) {
  return {checked(H5Dcreate2(group, relative(path).c_str(), type, space,
                             with_intermediates(), properties, H5P_DEFAULT),
                  "create dataset " + name),
          H5Dclose};
}

}  // namespace

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

namespace {

// A column as it lies in the rows of a table.
struct TableMember {
  Id type;
  std::size_t bytes = 0;
  std::function<void(std::size_t row, std::byte* to)> put;
};

template <class T>
TableMember table_member(const std::vector<T>& values) {
  return {type_id(H5Tcopy(native<T>())), sizeof(T),
          [&values](std::size_t row, std::byte* to) {
            std::memcpy(to, &values[row], sizeof(T));
          }};
}

TableMember table_member(const std::vector<std::string>& values) {
  std::size_t width = 1;
  for (const std::string& value : values) width = std::max(width, value.size());
  Id type = type_id(H5Tcopy(H5T_C_S1));
  H5Tset_size(type, width);
  H5Tset_strpad(type, H5T_STR_NULLPAD);
  H5Tset_cset(type, H5T_CSET_UTF8);
  return {std::move(type), width, [&values](std::size_t row, std::byte* to) {
            std::memcpy(to, values[row].data(), values[row].size());
          }};
}

}  // namespace

Dataset Group::create_table(const std::string& path,
                            const std::vector<TableColumn>& columns) {
  const Lock lock;
  std::vector<TableMember> members;
  std::size_t rows = 0, width = 0;
  for (const TableColumn& column : columns) {
    std::visit(
        [&](const auto& values) {
          require(members.empty() || values.size() == rows,
                  "column '{}' of {}{} has {} rows, others {}", column.name,
                  name_, path, values.size(), rows);
          rows = values.size();
          members.push_back(table_member(values));
        },
        column.values);
    width += members.back().bytes;
  }

  const Id type = type_id(H5Tcreate(H5T_COMPOUND, width));
  std::vector<std::byte> packed(rows * width);
  std::size_t offset = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    checked(H5Tinsert(type, columns[i].name.c_str(), offset, members[i].type),
            "make a table of " + name_ + path);
    for (std::size_t row = 0; row < rows; ++row) {
      members[i].put(row, packed.data() + row * width + offset);
    }
    offset += members[i].bytes;
  }

  const hsize_t extent = rows;
  const Id space = space_id(H5Screate_simple(1, &extent, nullptr));
  const std::string name = joined(name_, relative(path));
  Id id = new_dataset(id_, name, path, type, space, H5P_DEFAULT);
  if (rows > 0) {
    checked(H5Dwrite(id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, packed.data()),
            "write " + name);
  }
  return {std::move(id), name};
}

namespace {

// HDF5's own reasons are roundabout where there is a plain one.
void check_readable(const std::string& path) {
  // Without O_NONBLOCK a pipe of that name would be waited for.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  require(file >= 0, "cannot open {}: {}", path, std::strerror(errno));
  struct stat facts {};
  const bool regular = fstat(file, &facts) == 0 && S_ISREG(facts.st_mode);
  close(file);
  require(regular, "cannot open {}: it is not a regular file", path);
  require(H5Fis_hdf5(path.c_str()) > 0,
          "cannot open {}: it is not an HDF5 file", path);
}

Id open_to_read(const std::string& path) {
  check_readable(path);
  const Id properties = property_id(H5Pcreate(H5P_FILE_ACCESS));
  // HDF5 locks a file to see that no one writes it. A lock that another holds
  // is an error; a file system that knows no locks does not stop a reader.
  hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, properties);
  if (file < 0 && reason().find("unable to lock") != std::string::npos) {
    require(reason().find(std::strerror(EAGAIN)) == std::string::npos,
            "cannot open {}: another process has it open for writing", path);
    H5Pset_file_locking(properties, /*use=*/false, /*ignore=*/true);
    file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, properties);
  }
  return {checked(file, "open " + path), H5Fclose};
}

Id in_memory() {
  constexpr std::size_t growth = 1 << 20;
  Id properties = property_id(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_fapl_core(properties, growth, /*backing_store=*/0);
  return properties;
}

Id copy_in_memory(const std::string& path) {
  check_readable(path);
  return {
      checked(H5Fopen(path.c_str(), H5F_ACC_RDWR, in_memory()), "open " + path),
      H5Fclose};
}

Id create_file(const std::string& path, Access access, std::size_t user_block) {
  const Id creation = ordered_attributes(H5P_FILE_CREATE);
  H5Pset_userblock(creation, user_block);
  const bool on_disk = access == Access::create;
  const Id properties =
      on_disk ? property_id(H5Pcreate(H5P_FILE_ACCESS)) : in_memory();
  // HDF5 would first read a file of that name.
  const std::string name = on_disk ? path : path + ", in memory";
  return {checked(H5Fcreate(name.c_str(), H5F_ACC_TRUNC, creation, properties),
                  "create " + path),
          H5Fclose};
}

Id open_file(const std::string& path, Access access, std::size_t user_block) {
  const Lock lock;
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // errors are ours to print
  switch (access) {
    case Access::read:
      return open_to_read(path);
    case Access::copy_in_memory:
      return copy_in_memory(path);
    default:
      return create_file(path, access, user_block);
  }
}

}  // namespace

File::File(const std::string& path, Access access, std::size_t user_block)
    : Group(open_file(path, access, user_block), path + ":/") {}

void File::flush() {
  const Lock lock;
  checked(H5Fflush(id_, H5F_SCOPE_LOCAL), "write " + name_);
}

std::span<const std::byte> File::bytes() const {
  const Lock lock;
  const std::string what = "take the bytes of " + name_;
  checked(H5Fflush(id_, H5F_SCOPE_LOCAL), what);
  // The user block, and the file proper. Memory may be larger.
  hsize_t user_block = 0;
  const Id creation = property_id(checked(H5Fget_create_plist(id_), what));
  checked(H5Pget_userblock(creation, &user_block), what);
  const auto proper = checked(H5Fget_file_image(id_, nullptr, 0), what);
  void* handle = nullptr;  // of a file in memory: where its address is
  checked(H5Fget_vfd_handle(id_, H5P_DEFAULT, &handle), what);
  return {
      *static_cast<std::byte**>(handle),
      static_cast<std::size_t>(user_block) + static_cast<std::size_t>(proper)};
}

std::string version() {
  const Lock lock;
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

#define LOCKSTEP_HDF5_TYPE(T)                                                  \
  template std::vector<T> Dataset::read<T>() const;                            \
  template void Dataset::read<T>(std::int64_t, std::span<T>) const;            \
  template std::vector<T> Dataset::read_column<T>(const std::string&) const;   \
  template void Dataset::write<T>(std::span<const T>);                         \
  template void Dataset::append<T>(std::span<const T>);                        \
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
