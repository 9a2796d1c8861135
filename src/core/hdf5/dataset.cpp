#include "core/hdf5/library.h"

#include <algorithm>

namespace lockstep::hdf5 {
namespace {

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

}  // namespace

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

#define LOCKSTEP_HDF5_TYPE(T)                                       \
  template std::vector<T> Dataset::read<T>() const;                 \
  template void Dataset::read<T>(std::int64_t, std::span<T>) const; \
  template void Dataset::write<T>(std::span<const T>);              \
  template void Dataset::append<T>(std::span<const T>);
LOCKSTEP_HDF5_TYPE(double)
LOCKSTEP_HDF5_TYPE(float)
LOCKSTEP_HDF5_TYPE(std::int64_t)
LOCKSTEP_HDF5_TYPE(std::int32_t)
#undef LOCKSTEP_HDF5_TYPE

}  // namespace lockstep::hdf5
