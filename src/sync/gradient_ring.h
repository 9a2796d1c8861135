#pragma once

#include <array>

#include "sync/gradient_sync.h"

namespace lockstep {

// Full gradients for strategies that keep only a shard of them: two buffers of
// the largest unit's size that the units of the backward pass take in turn.
// When a unit is done its gradients are reduce-scattered, beside the next
// unit's backward pass, and the mean of this rank's part is added to its
// shard's gradients.
class GradientRing {
 public:
  // shards[i] is this rank's share of unit i.
  GradientRing(const SyncContext& context, std::span<Shard> shards);

  void acquire(Unit& unit);  // memory for its gradients
  void release(Unit& unit);  // they are complete for this micro-step
  void finish();             // every shard has its sums

 private:
  struct Slot {
    Tensor gradients;
    Tensor wire;             // what is sent: the gradients, or a copy
    Tensor received;         // this rank's part, in the wire's dtype
    Shard* shard = nullptr;  // that the received part belongs to
    Event done;
  };
  void complete(Slot& slot);

  SyncContext context_;
  std::span<Shard> shards_;
  Buffer gradients_memory_;
  Buffer wire_memory_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;
};

}  // namespace lockstep
