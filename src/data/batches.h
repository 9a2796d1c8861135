#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "data/token_source.h"

namespace lockstep {

// The batch geometry of one run.
struct BatchShape {
  std::int64_t batch = 1;         // sequences per rank and micro-step
  std::int64_t context = 1;       // T
  std::int64_t accumulation = 1;  // micro-steps per step
  std::int64_t vocabulary = 1;
  int rank = 0;
  int world_size = 1;
  std::int64_t first_sample = 0;  // where step 0 begins
};

// Gives every micro-step's tokens. Global sample k of the run, k = 0, 1, 2, …
// in order of step, micro-step, rank and position in the rank's batch, is the
// same sequence whatever the number of ranks that share the work.
class Batches {
 public:
  virtual ~Batches() = default;

  // inputs and targets (one later) of a micro-step for this rank: each
  // [batch · context], row-major. step counts from 0. Error for a token
  // outside the vocabulary, naming its position.
  virtual void fill(std::int64_t step, std::int64_t micro_step,
                    std::span<std::int32_t> inputs,
                    std::span<std::int32_t> targets) const = 0;
};

// --sampler sequential: sample k is tokens[k·T … k·T+T) with targets one
// later; after the last whole sample it wraps to the start.
std::unique_ptr<Batches> sequential_batches(const TokenSource& source,
                                            const BatchShape& shape);
// --sampler random: sample k starts at a uniform position drawn from the seed.
std::unique_ptr<Batches> random_batches(const TokenSource& source,
                                        const BatchShape& shape,
                                        std::uint64_t seed);
// --data random: uniform random tokens, fresh for each sample.
std::unique_ptr<Batches> noise_batches(const BatchShape& shape,
                                       std::uint64_t seed);

}  // namespace lockstep
