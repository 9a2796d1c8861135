#include "checkpoint/tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <vector>

#include "core/error.h"

namespace lockstep {
namespace {

constexpr std::int64_t chunk_elements = 1 << 18;  // a MiB

}  // namespace

void check_tensors(const hdf5::Group& group, const std::string& source,
                   const ParameterStore& store) {
  std::set<std::string> expected;
  for (const Unit& unit : store.units()) {
    for (const Parameter& parameter : unit.members) {
      expected.insert(parameter.name);
      require(group.has(parameter.name), "{} has no tensor '{}'", source,
              parameter.name);
      const Shape& shape = parameter.shape;
      const auto found = group.dataset(parameter.name).shape();
      const bool same = std::ssize(found) == shape.rank() &&
                        std::equal(found.begin(), found.end(), shape.begin());
      require(same, "{}: tensor '{}' is [{}], the model's is {}", source,
              parameter.name, fmt::join(found, ", "), shape.text());
    }
  }
  for (const hdf5::Child& child : group.children()) {
    require(!child.is_dataset() || expected.contains(child.name),
            "{}: tensor '{}' is not one of this model's", source, child.name);
  }
}

void read_tensors(const hdf5::Group& group, const Unit& unit,
                  std::span<float> values) {
  for (const Parameter& parameter : unit.members) {
    const auto tensor = group.dataset(parameter.name).read<float>();
    require(std::ssize(tensor) == parameter.elements(),
            "tensor '{}' has {} elements, not {}", parameter.name,
            tensor.size(), parameter.elements());
    std::copy(tensor.begin(), tensor.end(), values.begin() + parameter.offset);
  }
}

void write_tensors(hdf5::Group& file, const std::string& path, const Unit& unit,
                   std::span<const float> values) {
  for (const Parameter& parameter : unit.members) {
    const Shape& shape = parameter.shape;
    const std::vector<std::int64_t> row_shape(shape.begin() + 1, shape.end());
    const std::int64_t width = parameter.elements() / shape[0];
    const std::int64_t rows =
        std::clamp<std::int64_t>(chunk_elements / width, 1, shape[0]);
    auto dataset = file.create_extendible<float>(path + "/" + parameter.name,
                                                 row_shape, rows);
    // A chunk at a time, as other threads wait for HDF5 meanwhile.
    auto rest = values.subspan(parameter.offset, parameter.elements());
    while (!rest.empty()) {
      const auto chunk = rest.first(std::min<std::size_t>(
          rest.size(), static_cast<std::size_t>(rows * width)));
      dataset.append(chunk);
      rest = rest.subspan(chunk.size());
    }
  }
}

}  // namespace lockstep
