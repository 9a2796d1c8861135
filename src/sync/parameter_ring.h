#pragma once

#include <vector>

#include "sync/gradient_sync.h"

namespace lockstep {

// Whole parameters for strategies that keep only a shard of them: one buffer
// of the largest unit's size for the unit in use and one for each unit that is
// gathered ahead. Units take the buffers in turn; what was gathered is
// forgotten on release.
class ParameterRing {
 public:
  // shards[i] is this rank's share of unit i, with its fp32 weights.
  ParameterRing(const SyncContext& context, std::span<Shard> shards);

  // The unit's parameters are whole on the compute lane after this; those of
  // the units that follow in this pass are on their way.
  void acquire(Unit& unit, Pass pass);
  void release(Unit& unit);

 private:
  struct Slot {
    Tensor parameters;  // compute dtype
    Unit* unit = nullptr;
    Event arrived;
  };
  Slot& gathered(Unit& unit);
  bool has_room() const;

  SyncContext context_;
  std::span<Shard> shards_;
  Buffer memory_;
  std::vector<Slot> slots_;
};

}  // namespace lockstep
