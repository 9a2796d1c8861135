#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "config/options.h"
#include "data/batches.h"
#include "model/transformer.h"
#include "mpi/communicator.h"
#include "mpi/world.h"
#include "optim/adamw.h"
#include "optim/schedule.h"
#include "record/console.h"
#include "record/run_record.h"
#include "sync/gradient_sync.h"
#include "trainer/batch_feeder.h"
#include "trainer/phase_clock.h"

namespace lockstep {

// What a run trains and validates on. `source` and `validation_source` are
// empty for random tokens and without validation.
struct RunData {
  std::unique_ptr<TokenSource> source;
  std::unique_ptr<TokenSource> validation_source;
  std::unique_ptr<Batches> training;
  std::unique_ptr<Batches> validation;
};
// Opens the sources and checks every token against the vocabulary, each rank
// a part of them. Errors on any rank are errors on all.
RunData open_data(const Options& options, World& world);

// One rank's part of a run: model, strategy, optimizer and the step loop. The
// options, world, backend, communicator and data outlive it.
class Trainer {
 public:
  // Allocates everything a step needs and loads or draws the initial weights.
  Trainer(const Options& options, World& world, Backend& backend,
          Communicator& comm, const RunData& data);

  // All steps. `record` is null on all ranks but 0. A loss that is not finite
  // ends the run with an Error on all ranks, after its step was recorded.
  void run(RunRecord* record, Console& console);

  // `count` tokens sampled from the model after `prompt`. Every rank calls.
  std::vector<std::int32_t> generate(std::span<const std::int32_t> prompt,
                                     std::int64_t count);

  ParameterStore& store() { return store_; }
  GradientSync& sync() { return *sync_; }

 private:
  // Where a step that has been issued leaves its numbers.
  struct InFlight {
    Tensor loss;          // f64[1], this rank's mean
    Tensor norm_squared;  // f64[1], global
    double* read_back;    // the same two in host memory, once done
    Event done;
  };

  void issue(std::int64_t step);
  void report(std::int64_t step, RunRecord* record, Console& console);
  double validate();
  double learning_rate(std::int64_t step) const;
  bool trains() const { return options_.mode != Mode::forward; }

  const Options& options_;
  World& world_;
  Device& device_;
  Ops& ops_;
  Communicator& comm_;
  const RunData& data_;

  CosineSchedule schedule_;
  ParameterStore store_;
  std::unique_ptr<GradientSync> sync_;
  Adamw optimizer_;
  Transformer model_;
  BatchFeeder feeder_;
  PhaseClock clock_;

  Buffer results_memory_;
  HostBuffer read_back_memory_;
  std::array<InFlight, PhaseClock::slots> in_flight_;
  Buffer evaluation_memory_;
  Tensor evaluation_tokens_;  // i32[2, N], for validation and generation
  Tensor evaluation_loss_;    // f64[1]
};

}  // namespace lockstep
