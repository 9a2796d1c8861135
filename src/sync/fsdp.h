#pragma once

#include <optional>
#include <vector>

#include "sync/gradient_ring.h"
#include "sync/gradient_sync.h"
#include "sync/parameter_ring.h"
#include "sync/unit_shards.h"

namespace lockstep {

// Fully sharded data parallelism (ZeRO stage 3; Zhao et al. 2023): each rank
// keeps 1/W of everything, the weights in fp32 alone. A unit is gathered in
// the compute dtype just before use, while the one before it computes, and
// forgotten right after, in the forward and again in the backward pass; its
// gradients are reduce-scattered in every micro-step.
class Fsdp : public GradientSync {
 public:
  explicit Fsdp(const SyncContext& context);

  void begin_step() override;
  void acquire(Unit& unit, Pass pass) override;
  void release(Unit& unit, Pass pass) override;
  void finish() override;
  std::span<Shard> owned() override { return shards_; }
  bool sharded() const override { return true; }

 private:
  ShardBuffer weights_;
  ShardBuffer gradients_;
  std::vector<Shard> shards_;
  std::optional<ParameterRing> parameter_ring_;
  std::optional<GradientRing> gradient_ring_;
};

}  // namespace lockstep
