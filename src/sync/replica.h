#pragma once

#include <vector>

#include "sync/gradient_sync.h"

namespace lockstep {

// Whole parameters, gradients and optimizer state on every rank, in one flat
// buffer each: what all replicated strategies (DDP) hold. Alone it
// synchronises nothing, which is `--sync none`.
class Replica : public GradientSync {
 public:
  explicit Replica(const SyncContext& context);

  void load(Unit& unit, std::span<const float> values) override;
  void save(const Unit& unit, std::span<float> values) override;
  void broadcast_parameters() override;
  void begin_step() override;
  void finish() override {}
  std::span<Shard> owned() override { return shards_; }

 protected:
  // All units' parameters and gradients, one after the other.
  Tensor parameters_;
  Tensor gradients_;

 private:
  Buffer parameters_memory_;
  Buffer gradients_memory_;
  std::vector<Shard> shards_;
};

}  // namespace lockstep
