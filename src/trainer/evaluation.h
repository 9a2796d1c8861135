#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/options.h"
#include "data/batches.h"
#include "model/transformer.h"
#include "mpi/world.h"

namespace lockstep {

// Forward passes between steps, for validation and for text. The options,
// device and model outlive it.
class Evaluation {
 public:
  // Allocates what they need.
  Evaluation(const Options& options, Device& device, Transformer& model);

  // The mean loss over all batches of all ranks. Collective.
  double loss(const Batches& batches, World& world);

  // `prompt` and `count` tokens sampled from the model after it, at
  // temperature 0.8. Collective, since parameters may be spread over ranks.
  std::vector<std::int32_t> generate(std::span<const std::int32_t> prompt,
                                     std::int64_t count);

 private:
  const Options& options_;
  Device& device_;
  Transformer& model_;
  Buffer memory_;
  Tensor loss_;    // f64[1]
  Tensor tokens_;  // i32[2, N]
};

}  // namespace lockstep
