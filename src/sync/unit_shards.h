#pragma once

#include <algorithm>
#include <vector>

#include "sync/gradient_sync.h"

namespace lockstep {

// Where rank `rank` of `size` has its equal share of a unit's flat buffer:
// units are padded so that it comes out even.
struct ShardBounds {
  std::int64_t begin;
  std::int64_t count;
};
inline ShardBounds shard_bounds(const Unit& unit, const Communicator& comm) {
  const std::int64_t count = unit.elements / comm.size();
  return {comm.rank() * count, count};
}

// All units' shares of this rank in one buffer: a flat buffer of shards.
class ShardBuffer {
 public:
  ShardBuffer() = default;
  ShardBuffer(const SyncContext& context, Dtype dtype, Category category,
              const char* name) {
    std::int64_t elements = 0;
    for (const Unit& unit : context.store.units()) {
      begins_.push_back(elements);
      elements += shard_bounds(unit, context.comm).count;
    }
    begins_.push_back(elements);
    memory_ = context.device.allocate(dtype, {elements}, category, name);
    all_ = memory_.tensor(dtype, {elements});
  }
  const Tensor& all() const { return all_; }
  Tensor of(const Unit& unit) const {
    return all_ ? all_.range(begins_[unit.index],
                             begins_[unit.index + 1] - begins_[unit.index])
                : Tensor();
  }

 private:
  Buffer memory_;
  Tensor all_;
  std::vector<std::int64_t> begins_;  // by unit
};

// The most elements that any unit has.
inline std::int64_t largest_unit(const ParameterStore& store) {
  std::int64_t most = 0;
  for (const Unit& unit : store.units()) most = std::max(most, unit.elements);
  return most;
}

}  // namespace lockstep
