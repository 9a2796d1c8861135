#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <string>
#include <vector>

#include "config/options.h"
#include "core/memory_ledger.h"
#include "model/model_config.h"
#include "record/run_record.h"

namespace lockstep {

struct RankRow {
  int rank = 0;
  std::string host;
  int local_rank = 0;
  std::string device;  // "NVIDIA H200 (0000:01:00.0, NUMA 1)", "CPU"
  int threads = 1;
  std::string cores;  // those it may run on, "0-1", "0-31 (NUMA 0)"
};

// The times of the latest steps and their table: mean, deviation, least, median
// and most of each phase in ms, and its share of the step. All of them are of
// the ranks' mean in each step, so that phases add up to the step. The warm-up
// is left out; without one, the first step is if there are more than two.
// Memory does not grow with the ranks, nor beyond `most_steps`.
class PhaseTable {
 public:
  static constexpr std::size_t most_steps = 10'000;

  explicit PhaseTable(std::int64_t warmup_iterations = 0)
      : warmup_iterations_(warmup_iterations) {}

  void add(const StepFigures& figures);
  // Ends with what it is over; "" before the first step.
  std::string text() const;
  // Over the same steps, as fast as their slowest rank, without what lies
  // between them, such as validation.
  double tokens_per_second() const;

 private:
  static constexpr int comm_busy = phase_count;
  static constexpr int comm_exposed = phase_count + 1;
  struct Row {
    std::array<double, phase_count + 2> ms{};  // phases, then the above
    double slowest_ms = 0;                     // the step, of that rank
    std::int64_t tokens = 0;
  };
  std::int64_t left_out() const;  // of those added, at the front
  std::deque<Row>::const_iterator measured() const;  // the first such row
  std::string row_text(std::string_view name, int column,
                       double mean_step_ms) const;

  std::int64_t warmup_iterations_;
  std::deque<Row> rows_;
  std::int64_t added_ = 0;
  std::size_t ranks_ = 0;
};

// What a run says. Only rank 0's speaks: text to standard output, warnings to
// standard error. Progress::off leaves the summary at the end.
class Console {
 public:
  Console(Progress progress, bool speaks, std::FILE* out = stdout);

  void ranks(const std::vector<RankRow>& rows);
  void model(const ModelConfig& config, const Options& options,
             const MemoryFigures& memory, int world_size);

  // Progress: on a terminal a line that redraws itself, at most ten times a
  // second; otherwise plain lines for the first and last step and, about one
  // a second, for round ones.
  // steps: the last one's number, those of the warm-up included. peak_flops: of
  // all ranks' devices together, 0 where it isn't known.
  void start_training(std::int64_t steps, double flops_per_token,
                      double peak_flops, std::int64_t warmup_iterations = 0);
  void step(const StepFigures& figures);
  void validation(std::int64_t step, double loss);
  // The table of phases, the loss before and after, and tokens/s in the steps.
  void finish();

  void note(const std::string& line);
  void warn(const std::string& line);

 private:
  // Text as it is. A full disk or a closed pipe does not end the run.
  void put(const std::string& text);
  void line(const std::string& text);  // below the progress line
  bool is_due(const StepFigures& figures) const;
  void draw(const StepFigures& figures, bool last);

  using Clock = std::chrono::steady_clock;
  bool speaks_;
  std::FILE* out_;
  bool terminal_;
  Progress progress_;
  std::int64_t steps_ = 0;
  double flops_per_token_ = 0;
  double peak_flops_ = 0;
  Clock::time_point started_;
  // When a line of progress was last shown, as of which step, and how many
  // after the one before.
  Clock::time_point drawn_;
  std::int64_t drawn_step_ = 0;
  std::int64_t lines_apart_ = 0;
  bool unfinished_line_ = false;
  PhaseTable phases_;
  std::int64_t steps_seen_ = 0;
  double tokens_ = 0;
  double first_loss_ = 0;
  double last_loss_ = 0;
};

// The text parts, for themselves. The table leaves out ranks in the middle
// where there are more than `most` of them.
std::string rank_table(const std::vector<RankRow>& rows, std::size_t most = 16);
std::string model_summary(const ModelConfig& config, const Options& options,
                          const MemoryFigures& memory, int world_size);
// One step in a line; seconds_left < 0: not known.
std::string step_line(const StepFigures& figures, std::int64_t steps,
                      double flops_per_token, double peak_flops,
                      double seconds_left);
// Whether a step's number is round for lines so many steps apart: a multiple of
// the largest of 1, 2, 5, 10, 20 … that is no more than these.
bool is_round(std::int64_t step, std::int64_t apart);
// A bar that shows how far it is and the line after it, in a terminal of so
// many columns: the bar shrinks and the line ends early rather than wrap.
std::string progress_line(const std::string& line, std::int64_t step,
                          std::int64_t steps, int columns);

}  // namespace lockstep
