#pragma once

#include "sync/replica.h"

namespace lockstep {

// ZeRO stage 1 (Rajbhandari et al. 2020, section 5.1): parameters and
// gradients whole, optimizer state 1/W. A unit's gradients are
// reduce-scattered, in place, as soon as the backward pass leaves the unit;
// updated parameters are all-gathered unit by unit, beside the next forward
// pass.
class Zero1 : public Replica {
 public:
  explicit Zero1(const SyncContext& context);

  void release(Unit& unit, Pass pass) override;
  void finish() override;
  void publish() override;
  bool sharded() const override { return true; }
};

}  // namespace lockstep
