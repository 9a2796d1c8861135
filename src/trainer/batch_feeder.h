#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/device.h"
#include "data/batches.h"

namespace lockstep {

// Brings token batches to the device ahead of their use: while one step
// computes, the next one's tokens are copied beside it.
class BatchFeeder {
 public:
  struct Batch {
    Tensor inputs;   // i32[N]
    Tensor targets;  // i32[N]
  };

  // Feeds steps 0, 1, 2, … of `batches`: `accumulation` micro-steps each, of
  // N = batch · context tokens.
  BatchFeeder(Device& device, const Batches& batches,
              std::int64_t tokens_per_micro_step, std::int64_t accumulation);

  // The next step's batches, one a micro-step; the compute lane has them after
  // this call. They stay valid for what is issued before the next call of
  // release(), and lie where those of two steps before lay.
  std::span<const Batch> next();
  // The batches of the last next() have had their last use issued. Prepares
  // those after them, on the host and on the transfer lane.
  void release();

 private:
  struct Slot {
    Tensor tokens;               // i32[accumulation, 2, N]: inputs, targets
    std::vector<Batch> batches;  // its parts
    std::int32_t* staged;        // the same as tokens in host memory
    Event arrived;               // the copy is done
    Event used;                  // the compute lane is done with it
  };
  void prepare();

  Device& device_;
  const Batches& batches_;
  std::int64_t tokens_;
  std::int64_t accumulation_;
  std::int64_t prepared_ = 0;  // steps prepared so far
  std::int64_t taken_ = 0;
  HostBuffer host_memory_;
  Buffer memory_;
  std::array<Slot, 2> slots_;
};

}  // namespace lockstep
