#pragma once

#include <cstdint>
#include <memory>

#include "checkpoint/resume.h"
#include "config/options.h"
#include "mpi/communicator.h"
#include "mpi/world.h"
#include "record/console.h"
#include "trainer/evaluation.h"
#include "trainer/outputs.h"
#include "trainer/run_data.h"
#include "trainer/step_engine.h"

namespace lockstep {

// One rank's part of a run: the loop over steps and what comes between them.
// The options, world, backend, communicator and data outlive it.
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
  void run(Outputs& outputs, Console& console);

  // Steps done.
  std::int64_t step() const { return reported_; }
  // The signal that ended run(), or 0.
  int stopped_by() const { return stopped_by_; }

  ParameterStore& store() { return engine_->store(); }
  GradientSync& sync() { return engine_->sync(); }
  Evaluation& evaluation() { return *evaluation_; }

 private:
  // Waits for the steps up to this one, records and shows them.
  void report_up_to(std::int64_t step, Outputs& outputs, Console& console);
  void report(std::int64_t step, Outputs& outputs, Console& console);
  std::int64_t samples_per_step() const;  // of all ranks
  // Says what was not finite in a step, and ends the run unless it may go on.
  void handle_non_finite(const StepFigures& figures, Console& console);
  void verify_replicas(Console& console);
  bool checkpoint_is_due(std::int64_t step) const;
  void save_checkpoint(Outputs& outputs);

  const Options& options_;
  World& world_;
  Device& device_;
  Communicator& comm_;
  const RunData& data_;
  Position start_;
  std::unique_ptr<StepEngine> engine_;
  std::unique_ptr<Evaluation> evaluation_;

  std::int64_t reported_;    // the last step that is known to be done
  std::int64_t saved_;       // the last one whose checkpoint was begun
  bool saver_busy_ = false;  // as of that step, as is the next
  int stopped_by_ = 0;
};

}  // namespace lockstep
