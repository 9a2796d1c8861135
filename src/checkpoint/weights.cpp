#include "checkpoint/weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <vector>

#include "core/atomic_file.h"
#include "core/hdf5.h"

namespace lockstep {
namespace {

// "file.h5:/a/b" → {"file.h5", "/a/b"}; the root group where none is named.
std::pair<std::string, std::string> split_source(const std::string& source) {
  const auto colon = source.rfind(":/");
  if (colon == std::string::npos) return {source, "/"};
  return {source.substr(0, colon), source.substr(colon + 1)};
}

// The file holds these tensors and no others, each in its shape.
void check_tensors(const hdf5::Group& group, const std::string& source,
                   ParameterStore& store) {
  std::set<std::string> expected;
  for (const Parameter* parameter : store.parameters()) {
    expected.insert(parameter->name);
    require(group.has(parameter->name), "{} has no tensor '{}'", source,
            parameter->name);
    const Shape& shape = parameter->shape;
    const std::vector<std::int64_t> found =
        group.dataset(parameter->name).shape();
    const bool same = std::ssize(found) == shape.rank() &&
                      std::equal(found.begin(), found.end(), shape.begin());
    require(same, "{}: tensor '{}' is [{}], the model's is {}", source,
            parameter->name, fmt::join(found, ", "), shape.text());
  }
  for (const hdf5::Child& child : group.children()) {
    require(!child.is_dataset() || expected.contains(child.name),
            "{}: tensor '{}' is not one of this model's", source, child.name);
  }
}

}  // namespace

void initialise_weights(ParameterStore& store, GradientSync& sync,
                        std::uint64_t seed) {
  std::vector<float> values;
  for (Unit& unit : store.units()) {
    values.resize(unit.elements);
    initial_values(unit, seed, values);
    sync.load(unit, values);
  }
}

void load_weights(const std::string& source, ParameterStore& store,
                  GradientSync& sync, World& world) {
  const auto [path, group_name] = split_source(source);
  std::unique_ptr<hdf5::Group> group;  // on rank 0
  world.together([&, path = path, group_name = group_name] {
    if (!world.root()) return;
    const hdf5::File file(path, hdf5::Access::read);
    group = std::make_unique<hdf5::Group>(file.group(group_name));
    check_tensors(*group, source, store);
  });

  std::vector<float> values;
  for (Unit& unit : store.units()) {
    values.assign(unit.elements, 0.0f);
    world.together([&] {
      if (!world.root()) return;
      for (const Parameter& parameter : unit.members) {
        const auto tensor = group->dataset(parameter.name).read<float>();
        std::copy(tensor.begin(), tensor.end(),
                  values.begin() + parameter.offset);
      }
    });
    sync.load(unit, values);
  }
}

void save_weights(const std::string& path, ParameterStore& store,
                  GradientSync& sync, World& world) {
  PendingFile pending(path);
  std::unique_ptr<hdf5::File> file;  // on rank 0
  world.together([&] {
    if (!world.root()) return;
    file =
        std::make_unique<hdf5::File>(pending.temporary(), hdf5::Access::create);
  });
  std::vector<float> values;
  for (const Unit& unit : store.units()) {
    values.resize(unit.elements);
    sync.save(unit, values);
    world.together([&] {
      if (!world.root()) return;
      for (const Parameter& parameter : unit.members) {
        const Shape& shape = parameter.shape;
        file->create_dataset<float>(parameter.name,
                                    {shape.begin(), shape.end()})
            .write(std::span<const float>(values).subspan(
                parameter.offset, parameter.elements()));
      }
    });
  }
  world.together([&] {
    if (!world.root()) return;
    file->flush();
    file.reset();
    pending.install();
  });
}

}  // namespace lockstep
