#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/ops.h"
#include "optim/shard.h"

namespace lockstep {

struct AdamwSettings {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  bool decay_norms = true;
  double clip = 1.0;  // largest global gradient norm; 0: off
};

// AdamW over the shards that a rank owns, gradients clipped by their global
// norm. Numbers that change from step to step are read from device memory.
class Adamw {
 public:
  // The shards stay where they are for the optimizer's life.
  Adamw(const AdamwSettings& settings, Device& device, Ops& ops,
        std::span<Shard> shards);

  // total f64[1] += this rank's part of the squared global gradient norm.
  void add_norm_squared(const Tensor& total);
  // Update t = 1, 2, … with the squared global norm, f64[1] in device memory.
  // Its numbers come first: prepare() leaves them in host memory, where the
  // device reads them when it gets to the update. A captured step() of t does
  // for t + in_flight, t + 2·in_flight, … too.
  void prepare(std::int64_t t, double learning_rate);
  void step(std::int64_t t, const Tensor& norm_squared);

  // Updates that may be prepared and not yet done.
  static constexpr int in_flight = 4;

 private:
  AdamwSettings settings_;
  Device& device_;
  Ops& ops_;
  std::span<Shard> shards_;
  std::vector<AdamwRange> ranges_;

  AdamwScalars& staged(std::int64_t t) const {
    return static_cast<AdamwScalars*>(staged_.get())[t % in_flight];
  }

  HostBuffer staged_;  // AdamwScalars[in_flight]
  Buffer memory_;
  Tensor scalars_;  // f32[8], AdamwScalars
  Tensor factor_;   // f32[1], what clipping multiplies gradients by
};

}  // namespace lockstep
