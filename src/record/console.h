#pragma once

#include <cstdint>
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
  std::string device;  // "NVIDIA H200 (0000:01:00.0)", "CPU"
  int threads = 1;
  std::string cores;  // "0-1"
};

// What a run says on the terminal; only rank 0 has one that speaks. Text goes
// to standard output, warnings to standard error.
class Console {
 public:
  // `progress` off silences everything but the final summary.
  Console(Progress progress, bool speaks);

  void ranks(const std::vector<RankRow>& rows);
  // Parameters, FLOPs per token, tokens per step, memory by category.
  void model(const ModelConfig& config, const Options& options,
             const MemoryFigures& memory, int world_size);
  // A line per step or so: step, loss, learning rate, gradient norm, tokens/s,
  // ms, MFU where peak_flops (all ranks together) is known, ETA. A bar that
  // redraws itself on a terminal, plain lines at most one a second when piped.
  void start_training(std::int64_t steps, double flops_per_token,
                      double peak_flops);
  void step(const StepFigures& figures);
  void validation(std::int64_t step, double loss);
  // Phase table (mean, standard deviation, min, median, max over steps, of
  // the slowest rank), the loss before and after, tokens/s.
  void finish();
  void generated(const std::string& text);
  void note(const std::string& line);
  void warn(const std::string& line);

 private:
  bool speaks_;
  bool terminal_;
  Progress progress_;
  std::int64_t steps_ = 0;
  double flops_per_token_ = 0;
  double peak_flops_ = 0;
  double last_line_s_ = 0;
  bool bar_drawn_ = false;
  std::vector<StepFigures> seen_;
};

}  // namespace lockstep
