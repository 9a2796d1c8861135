#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/memory_ledger.h"
#include "record/run_facts.h"

namespace lockstep {

// The phases of a step, in order, as they are called on the console, in the
// run record, in profiler ranges and in every table. `step` is the whole.
enum class Phase {
  data,
  zero_grad,
  forward,
  loss,
  backward,
  grad_sync,
  optimizer,
  step
};
constexpr int phase_count = 8;
constexpr std::array<std::string_view, phase_count> phase_names = {
    "data",     "zero_grad", "forward",   "loss",
    "backward", "grad_sync", "optimizer", "step"};

// What one rank measured in one step.
struct RankFigures {
  std::array<double, phase_count> phase_ms{};
  double comm_busy_ms = 0;
  double comm_exposed_ms = 0;
  std::int64_t comm_calls = 0;
  std::int64_t comm_bytes = 0;
  MemoryFigures memory;
};

// One step of the whole run.
struct StepFigures {
  std::int64_t step = 0;  // 1, 2, …
  double loss = 0;        // mean over the global batch, before the update
  double learning_rate = 0;
  double gradient_norm = 0;  // global, before clipping
  std::int64_t tokens = 0;   // of the global batch
  std::vector<RankFigures> ranks;
};

// A stretch of work on one of a rank's lanes.
struct TraceRow {
  std::string lane;  // "compute", "communication" or "exposed"
  std::string name;  // a phase, a unit, a group of kernels, a collective
  std::int64_t depth = 0;
  std::int64_t bytes = 0;
  double begin_us = 0;  // since the rank's step began
  double duration_us = 0;
};

// One rank's memory events of a step, from what it held at the step's
// beginning on, and when the step began and ended on their clock.
struct MemoryTimeline {
  double begin_us = 0;
  double end_us = 0;
  std::vector<MemoryEvent> events;
};

// The HDF5 file that a run leaves behind; see docs/run-record.md for the
// layout. Rank 0 owns it. The file on disk is always whole: each flush writes
// the record so far to a temporary name beside it and renames that over the
// last one, so a killed run leaves its last flush, and a reader, however long
// it holds the file, neither waits nor makes the run wait.
class RunRecord {
 public:
  // Writes the first state of the file at once, so that a path that cannot be
  // written is an Error before training starts. A run that resumes after step
  // `done` goes on with the record that is there, from which later steps are
  // dropped; where that cannot be (other ranks, no record), with a new one, and
  // the one that is there gets another name.
  RunRecord(std::string path, const RunFacts& facts, int world_size,
            std::int64_t done = 0);
  // Flushes what was not written yet, also while an error unwinds.
  ~RunRecord();
  RunRecord(const RunRecord&) = delete;
  RunRecord& operator=(const RunRecord&) = delete;

  void add_step(const StepFigures& figures);
  void add_validation(std::int64_t step, double loss);
  void add_memory_timeline(std::int64_t step, int rank,
                           const MemoryTimeline& timeline);
  void add_trace(std::int64_t step, int rank, std::span<const TraceRow> rows);
  // How the run ended, until when the record says "running": "finished", or
  // "failed" with the error. To be flushed.
  void set_status(std::string_view status, std::string_view error);
  // Flushes when it is due: every second at first, more rarely as the file
  // grows, so that writing stays below 2% of the time.
  void flush_if_due();
  // A write that fails is kept for the next try and gives a warning line once
  // per cause through take_warnings(); training goes on.
  void flush();
  std::vector<std::string> take_warnings();
  // Whether the file holds everything that was added.
  bool is_whole() const;

  const std::string& path() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
