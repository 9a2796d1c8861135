#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/saver.h"
#include "config/options.h"
#include "mpi/world.h"
#include "record/console.h"
#include "record/run_record.h"

namespace lockstep {

// What a run leaves behind: its record and, with --checkpoint, checkpoints.
// Rank 0 has them; on the other ranks nothing is open and calls do nothing. All
// ranks make those that are collective.
class Outputs {
 public:
  // Error on all ranks if a file that the options name cannot be written. The
  // options, world and folder, which is null on other ranks and without
  // --checkpoint, outlive it. Collective.
  Outputs(const Options& options, RunFacts facts, std::int64_t first_step,
          CheckpointFolder* folder, World& world);

  // From now on there is a record. `layout`, which outlives it, is of the
  // state that checkpoints hold. Collective.
  void open(const ParameterStore& layout);

  // What `work` gives. An error is noted in the record on its way; one before
  // open() is a record, too. Collective.
  template <class Work>
  auto with_errors_recorded(Work work) {
    try {
      return work();
    } catch (const std::exception& error) {
      record_error(error);
      throw;
    }
  }

  // What the record is of; it is written when that is due.
  void add_traces(std::int64_t step,
                  std::span<const std::vector<TraceRow>> of_ranks);
  void add_memory_timelines(std::int64_t step,
                            std::span<const MemoryTimeline> of_ranks);
  void add_step(const StepFigures& figures);
  void add_validation(std::int64_t step, double loss);
  void flush_record();

  // Whether a checkpoint is still being written; save() then waits.
  bool saves() const { return saver_ && saver_->busy(); }
  // The record is never behind the checkpoint.
  void save(const Position& position, std::vector<UnitState> state);

  void show_warnings(Console& console);
  // Waits for what is being written and writes the rest.
  void finish(bool all_steps, Console& console);
  // After finish(): says where the record is. Error on all ranks if it or the
  // last checkpoint could not be written. Collective.
  void require_whole(Console& console);

 private:
  void open_record();
  void record_error(const std::exception& error);

  const Options& options_;
  RunFacts facts_;
  std::int64_t first_step_;
  CheckpointFolder* folder_;
  World& world_;
  bool is_open_ = false;  // on every rank
  std::unique_ptr<RunRecord> record_;
  std::unique_ptr<CheckpointSaver> saver_;
  bool recorded_ = true;
  bool saved_ = true;
};

}  // namespace lockstep
