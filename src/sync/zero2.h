#pragma once

#include <optional>
#include <vector>

#include "sync/flat_buffer.h"
#include "sync/gradient_ring.h"
#include "sync/gradient_sync.h"
#include "sync/unit_shards.h"

namespace lockstep {

// ZeRO stage 2 (Rajbhandari et al. 2020, section 5.2): parameters whole,
// gradients and optimizer state 1/W. A unit's full gradients live from its
// backward pass to their reduce-scatter, in every micro-step; updated
// parameters are all-gathered unit by unit, beside the next forward pass.
class Zero2 : public GradientSync {
 public:
  explicit Zero2(const SyncContext& context);

  void begin_step() override;
  void acquire(Unit& unit, Pass pass) override;
  void release(Unit& unit, Pass pass) override;
  void finish() override;
  std::span<Shard> owned() override { return shards_; }
  void publish() override;
  bool sharded() const override { return true; }

 protected:
  void take(Unit& unit, const Tensor& values) override;

 private:
  FlatBuffer parameters_;
  ShardBuffer gradients_;
  std::vector<Shard> shards_;
  std::optional<GradientRing> ring_;
};

}  // namespace lockstep
