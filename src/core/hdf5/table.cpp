#include "core/hdf5/library.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace lockstep::hdf5 {
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

template std::vector<double> Dataset::read_column(const std::string&) const;
template std::vector<std::int64_t> Dataset::read_column(
    const std::string&) const;

}  // namespace lockstep::hdf5
