#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "config/options.h"
#include "data/batches.h"
#include "model/transformer.h"
#include "mpi/communicator.h"
#include "optim/adamw.h"
#include "optim/schedule.h"
#include "record/run_record.h"
#include "sync/gradient_sync.h"
#include "trainer/batch_feeder.h"
#include "trainer/phase_clock.h"

namespace lockstep {

// The geometry of the batches that a rank of a run is fed.
BatchShape batch_shape(const Options& options, int rank, int world_size);

// What one rank needs for a training step, and the step itself: model,
// strategy and optimizer on one device. Steps are issued without waiting for
// them; up to `in_flight` may be under way. The options, backend, communicator
// and batches outlive it.
class StepEngine {
 public:
  static constexpr int in_flight = PhaseClock::slots;

  // Allocates everything that steps need. Weights are zero until loaded.
  StepEngine(const Options& options, Backend& backend, Communicator& comm,
             const Batches& batches);

  // Step 1, 2, …: data, forward, loss, backward, grad_sync, optimizer, as far
  // as --mode goes.
  void issue(std::int64_t step);

  // What a step that was issued gave, once it is done: this call waits.
  struct Result {
    double loss = 0;           // this rank's mean over its micro-steps
    double gradient_norm = 0;  // global, before clipping; NaN without update
    RankFigures figures;
  };
  Result wait(std::int64_t step);

  double learning_rate(std::int64_t step) const;
  ParameterStore& store() { return store_; }
  GradientSync& sync() { return *sync_; }
  Transformer& model() { return model_; }

 private:
  // Where a step leaves its numbers.
  struct Numbers {
    Tensor loss;          // f64[1]
    Tensor norm_squared;  // f64[1]
    double* read_back;    // the same two in host memory, once done
    Event done;
  };
  bool trains() const { return options_.mode != Mode::forward; }

  const Options& options_;
  Device& device_;
  Communicator& comm_;
  CosineSchedule schedule_;
  ParameterStore store_;
  std::unique_ptr<GradientSync> sync_;
  Adamw optimizer_;
  Transformer model_;
  BatchFeeder feeder_;
  PhaseClock clock_;
  Buffer numbers_memory_;
  HostBuffer read_back_memory_;
  std::array<Numbers, in_flight> numbers_;
};

}  // namespace lockstep
