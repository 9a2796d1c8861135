#include "checkpoint/replicas.h"

#include <algorithm>
#include <map>

#include "checkpoint/state.h"
#include "core/digest.h"

namespace lockstep {
namespace {

void add(Sha256& digest, Device& device, const Tensor& tensor) {
  if (!tensor || tensor.elements() == 0) return;
  std::vector<std::byte> bytes(tensor.bytes());
  device.copy_to_host(bytes.data(), tensor);
  device.synchronize();
  digest.add(bytes);
}

std::string digest_of(const Unit& unit, GradientSync& sync, Device& device) {
  Sha256 digest;
  add(digest, device, unit.parameters);
  if (!sync.sharded()) {
    for (const Shard& shard : sync.owned()) {
      if (shard.unit != &unit) continue;
      add(digest, device, shard.remainder);
      add(digest, device, shard.first_moment);
      add(digest, device, shard.second_moment);
    }
  }
  return digest.hex();
}

std::string most_frequent(const std::vector<std::string>& texts) {
  std::map<std::string, int> counts;
  for (const std::string& text : texts) ++counts[text];
  std::string most = texts.front();
  for (const auto& [text, count] : counts) {
    if (count > counts[most]) most = text;
  }
  return most;
}

}  // namespace

Drift find_drift(const ParameterStore& store, GradientSync& sync,
                 Device& device, Communicator& comm, World& world) {
  Drift drift;
  if (sync.ranks_differ()) return drift;
  comm.synchronize();  // parameters may still be on their way
  device.synchronize();
  for (const Unit& unit : store.units()) {
    const auto all = world.all_gather(digest_of(unit, sync, device));
    const std::string right = most_frequent(all);
    for (int rank = 0; rank < world.size(); ++rank) {
      if (all[rank] != right) drift.ranks.push_back(rank);
    }
    if (drift.ranks.empty()) continue;
    drift.unit = unit.name;
    return drift;
  }
  return drift;
}

void repair_replicas(ParameterStore& store, GradientSync& sync, World& world) {
  std::vector<UnitState> state;
  gather_state(store, sync, world, state);
  scatter_state(store, sync, world, all_state,
                [&](const Unit& unit, StatePart part, std::span<float> values) {
                  std::ranges::copy(state[unit.index][int(part)],
                                    values.begin());
                });
}

}  // namespace lockstep
