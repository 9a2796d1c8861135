#include "core/hdf5/library.h"

namespace lockstep::hdf5 {
namespace {

Id attribute_id(hid_t id) {
  return {id, H5Aclose};
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

}  // namespace lockstep::hdf5
