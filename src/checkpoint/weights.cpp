#include "checkpoint/weights.h"

#include <memory>
#include <vector>

#include "checkpoint/checkpoint_file.h"
#include "checkpoint/state.h"
#include "checkpoint/tensors.h"
#include "core/atomic_file.h"
#include "core/hdf5.h"

namespace lockstep {
namespace {

// "file.h5:/a/b" → {"file.h5", "/a/b"}. Where no group is named, it is the
// root, or that of a checkpoint's weights.
std::pair<std::string, std::string> split_source(const std::string& source) {
  const auto colon = source.rfind(":/");
  if (colon == std::string::npos) {
    return {source, is_checkpoint(source) ? "/weights" : "/"};
  }
  return {source.substr(0, colon), source.substr(colon + 1)};
}

}  // namespace

void initialise_weights(ParameterStore& store, GradientSync& sync,
                        std::uint64_t seed) {
  std::vector<float> values;
  for (Unit& unit : store.units()) {
    values.resize(unit.elements);
    initial_values(unit, seed, values);
    sync.load(unit, StatePart::weights, values);
  }
}

void load_weights(const std::string& source, ParameterStore& store,
                  GradientSync& sync, World& world) {
  std::unique_ptr<hdf5::Group> group;  // on rank 0
  world.together([&] {
    if (!world.root()) return;
    const auto [path, name] = split_source(source);
    if (is_checkpoint(path)) verify_checkpoint(path);
    const hdf5::File file(path, hdf5::Access::read);
    group = std::make_unique<hdf5::Group>(file.group(name));
    check_tensors(*group, source, store);
  });
  scatter_state(store, sync, world, std::span(all_state).first(1),
                [&](const Unit& unit, StatePart, std::span<float> values) {
                  read_tensors(*group, unit, values);
                });
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
      if (world.root()) write_tensors(*file, "", unit, values);
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
