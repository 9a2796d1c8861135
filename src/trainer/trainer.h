#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/resume.h"
#include "checkpoint/saver.h"
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
// a part of them; training begins at `first_sample`. Errors on any rank are
// errors on all.
RunData open_data(const Options& options, std::int64_t first_sample,
                  World& world);

// Where a run's results go on rank 0; null on the others.
struct Outputs {
  RunRecord* record = nullptr;
  CheckpointSaver* saver = nullptr;  // null without --checkpoint, too
};

// One rank's part of a run: the loop over steps, validation and sampling. The
// options, world, backend, communicator and data outlive it.
class Trainer {
 public:
  // Allocates everything a step needs.
  Trainer(const Options& options, World& world, Backend& backend,
          Communicator& comm, const RunData& data, const Position& start);

  // Loads or draws the initial weights, or all of the state that the run
  // resumes. Every rank calls.
  void set_initial_state(const Start& start);

  // All steps from where the run starts on, with checkpoints between them and
  // at the end. A stop signal to any rank ends it sooner, after the same step
  // on all. A loss that is not finite ends the run with an Error on all ranks,
  // after its step was recorded.
  void run(const Outputs& outputs, Console& console);

  // Steps done.
  std::int64_t step() const { return reported_; }
  // The signal that ended run(), or 0.
  int stopped_by() const { return stopped_by_; }

  // `prompt` and `count` tokens sampled from the model after it. Every rank
  // calls.
  std::vector<std::int32_t> generate(std::span<const std::int32_t> prompt,
                                     std::int64_t count);

  ParameterStore& store() { return engine_->store(); }
  GradientSync& sync() { return engine_->sync(); }

 private:
  // Waits for the steps up to this one, records and shows them.
  void report_up_to(std::int64_t step, const Outputs& outputs,
                    Console& console);
  void report(std::int64_t step, const Outputs& outputs, Console& console);
  std::int64_t samples_per_step() const;  // of all ranks
  // Says what was not finite in a step, and ends the run unless it may go on.
  void handle_non_finite(const StepFigures& figures, RunRecord* record,
                         Console& console);
  void verify_replicas(Console& console);
  bool checkpoint_is_due(std::int64_t step) const;
  void save_checkpoint(const Outputs& outputs);
  double validate();

  const Options& options_;
  World& world_;
  Device& device_;
  Communicator& comm_;
  const RunData& data_;
  Position start_;
  std::unique_ptr<StepEngine> engine_;

  std::int64_t reported_;    // the last step that is known to be done
  std::int64_t saved_;       // the last one whose checkpoint was begun
  bool saver_busy_ = false;  // as of that step, as is the next
  int stopped_by_ = 0;

  Buffer evaluation_memory_;
  Tensor evaluation_loss_;    // f64[1]
  Tensor evaluation_tokens_;  // i32[2, N], for validation and generation
};

}  // namespace lockstep
