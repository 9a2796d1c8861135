#pragma once

#include <array>
#include <cstdint>

#include "core/device.h"
#include "data/batches.h"

namespace lockstep {

// Brings token batches to the device ahead of their use: while one micro-step
// computes, the next one's tokens are copied beside it.
class BatchFeeder {
 public:
  struct Batch {
    Tensor inputs;   // i32[N]
    Tensor targets;  // i32[N]
  };

  // Feeds micro-steps 0, 1, 2, … of `batches`, N = batch · context tokens
  // each, `accumulation` of them a step.
  BatchFeeder(Device& device, const Batches& batches,
              std::int64_t tokens_per_micro_step, std::int64_t accumulation);

  // The next micro-step's batch; the compute lane has it after this call. It
  // stays valid for what is issued before the next call of release().
  Batch next();
  // The batch of the last next() has had its last use issued. Prepares the
  // one after it, on the host and on the transfer lane.
  void release();

 private:
  struct Slot {
    Tensor tokens;         // i32[2, N]: inputs, targets
    std::int32_t* staged;  // the same in host memory
    Event arrived;         // the copy is done
    Event used;            // the compute lane is done with it
  };
  void prepare();

  Device& device_;
  const Batches& batches_;
  std::int64_t tokens_;
  std::int64_t accumulation_;
  std::int64_t prepared_ = 0;  // micro-steps prepared so far
  std::int64_t taken_ = 0;
  HostBuffer host_memory_;
  Buffer memory_;
  std::array<Slot, 2> slots_;
};

}  // namespace lockstep
