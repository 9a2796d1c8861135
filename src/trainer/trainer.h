#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "config/options.h"
#include "data/batches.h"
#include "mpi/communicator.h"
#include "mpi/world.h"
#include "record/console.h"
#include "record/run_record.h"
#include "trainer/step_engine.h"

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

// One rank's part of a run: the loop over steps, validation and sampling. The
// options, world, backend, communicator and data outlive it.
class Trainer {
 public:
  // Allocates everything a step needs.
  Trainer(const Options& options, World& world, Backend& backend,
          Communicator& comm, const RunData& data);

  // Loads or draws the initial weights. Every rank calls.
  void set_initial_weights();

  // All steps. `record` is null on all ranks but 0. A loss that is not finite
  // ends the run with an Error on all ranks, after its step was recorded.
  void run(RunRecord* record, Console& console);

  // `prompt` and `count` tokens sampled from the model after it. Every rank
  // calls.
  std::vector<std::int32_t> generate(std::span<const std::int32_t> prompt,
                                     std::int64_t count);

  ParameterStore& store() { return engine_->store(); }
  GradientSync& sync() { return engine_->sync(); }

 private:
  void report(std::int64_t step, RunRecord* record, Console& console);
  double validate();

  const Options& options_;
  World& world_;
  Device& device_;
  const RunData& data_;
  std::unique_ptr<StepEngine> engine_;

  Buffer evaluation_memory_;
  Tensor evaluation_loss_;    // f64[1]
  Tensor evaluation_tokens_;  // i32[2, N], for validation and generation
};

}  // namespace lockstep
