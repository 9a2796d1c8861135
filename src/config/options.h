#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/option_parser.h"
#include "config/step_set.h"
#include "core/dtype.h"
#include "model/model_config.h"
#include "ops/attention.h"

namespace lockstep {

enum class Mode { train, forward, forward_backward };
enum class DeviceChoice { automatic, cpu, cuda };
enum class SamplerKind { random, sequential };
enum class Timing { events, sync };
enum class GraphUse { automatic, on, off };
enum class OnNonFinite { stop, skip };
enum class OnDrift { stop, repair };
enum class DryRun { off, text, csv };
enum class Progress { automatic, plain, off };

// Everything a user can choose for `train`, after the command line has
// overridden the configuration file and the file the defaults.
struct Options {
  ModelConfig model;
  std::string model_size = "small";  // what --model-size said

  std::string data;  // SOURCE, see open_token_source()
  std::string validation_data;
  std::int64_t validation_every = 0;  // steps; 0: never
  std::int64_t validation_batches = 8;
  SamplerKind sampler = SamplerKind::random;

  std::int64_t steps = 100;
  std::int64_t warmup_iterations = 0;  // steps before these, not measured
  std::int64_t batch_size = 4;         // sequences per rank and micro-step
  std::int64_t grad_accumulation = 1;
  std::uint64_t seed = 1;
  Mode mode = Mode::train;
  Recompute recompute;
  AttentionKind attention = AttentionKind::flash;

  double lr = 3e-4;
  double min_lr = 3e-5;  // resolved: the default is a tenth of `lr`
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;  // resolved: the default is last_step()
  double weight_decay = 0.1;
  bool decay_norms = true;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double adam_eps = 1e-8;
  double clip = 1.0;  // 0: off

  DeviceChoice device = DeviceChoice::automatic;
  Precision precision = Precision::fp32;
  std::string sync;       // resolved: `none` on one rank, `naive` on several
  double bucket_mb = 25;  // MiB of gradients
  Dtype grad_dtype = Dtype::f32;    // bf16 with Precision::bf16 alone
  Dtype reduce_dtype = Dtype::f32;  // resolved: the default is grad_dtype
  int fsdp_prefetch = 1;            // units
  std::int64_t local_steps = 8;
  bool share_gpu = false;
  int threads = 0;  // resolved by World's share of the cores; 0 until then

  GraphUse graph = GraphUse::automatic;
  std::string gemm_cache;
  double timeout = 600;  // seconds for a collective; 0: no watch

  std::string checkpoint;               // folder
  std::int64_t checkpoint_every = 100;  // steps; 0: at the end alone
  std::int64_t keep = 3;
  std::string resume;  // auto, a file or a folder

  OnNonFinite on_nonfinite = OnNonFinite::stop;
  std::int64_t verify_every = 0;  // steps; 0: never
  OnDrift on_drift = OnDrift::stop;

  bool print_world = false;
  DryRun dry_run = DryRun::off;
  int world_size = 0;  // of a dry run; 0: the ranks there are

  std::string output = "run.h5";
  Timing timing = Timing::events;
  StepSet memory_timeline;  // steps whose memory events are recorded
  StepSet trace;            // steps whose spans of work are recorded
  std::string save_weights;
  std::string init;  // FILE.h5[:/group]
  std::int64_t generate = 0;
  Progress progress = Progress::automatic;

  // Steps count from 1 to this; those of the warm-up come first.
  std::int64_t last_step() const { return warmup_iterations + steps; }

  // Every option with its value in effect, in the order of --help, as text:
  // for the record, and to compare ranks.
  std::vector<std::pair<std::string, std::string>> entries() const;
};

struct CommandLine {
  Action action = Action::run;
  Options options;
};

// `train [CONFIG.cfg] [options]`, for a run of `world_size` ranks where --sync
// accepts `sync_names`. UsageError with one line for an unknown option (naming
// the nearest), a value that does not parse or lies outside its range (naming
// option, value and range), or options that contradict each other.
CommandLine parse_command_line(int argc, const char* const* argv,
                               int world_size,
                               std::span<const std::string_view> sync_names);

// --help: grouped, with defaults and units.
std::string help_text(std::span<const std::string_view> sync_names);

}  // namespace lockstep
