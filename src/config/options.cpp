#include "config/options.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <set>

#include "config/option_table.h"

namespace lockstep {
namespace {

// Applies one layer, file or command line. A named size goes first, so that
// it gives way to the shape values of its own layer and replaces those of the
// layer before.
void apply_all(std::vector<Setting> settings,
               const std::vector<OptionGroup>& table) {
  std::stable_partition(
      settings.begin(), settings.end(),
      [](const Setting& setting) { return setting.name == "model-size"; });
  for (const Setting& setting : settings) apply(setting, table);
}

// The defaults that depend on other values.
void resolve(Options& o, const std::set<std::string>& given, int world_size) {
  if (!given.contains("min-lr")) o.min_lr = o.lr / 10;
  if (!given.contains("decay-steps")) o.decay_steps = o.last_step();
  if (!given.contains("reduce-dtype")) o.reduce_dtype = o.grad_dtype;
  if (o.world_size == 0) o.world_size = world_size;
  if (!given.contains("sync")) o.sync = o.world_size == 1 ? "none" : "naive";
}

// The file of "FILE.h5:/dataset".
std::filesystem::path file_of(const std::string& source) {
  std::filesystem::path file = source.substr(0, source.find(":/"));
  std::error_code failed;  // as for a source that is nothing but ":/"
  const auto whole = std::filesystem::absolute(file, failed);
  if (failed) return file;
  const auto path = std::filesystem::weakly_canonical(whole, failed);
  return failed ? whole : path;
}

void refuse_same_file(std::string_view written, const std::string& target,
                      std::string_view other, const std::string& source) {
  if (target.empty() || source.empty()) return;
  if (file_of(target) != file_of(source)) return;
  usage_error("--{} would overwrite {} '{}'", written, other, source);
}

void check_files(const Options& o, const std::string& config_file) {
  refuse_same_file("save-weights", o.save_weights, "--output", o.output);
  for (const auto& [written, target] :
       {std::pair("output", o.output), {"save-weights", o.save_weights}}) {
    refuse_same_file(written, target, "--data", o.data);
    refuse_same_file(written, target, "--validation-data", o.validation_data);
    refuse_same_file(written, target, "the configuration file", config_file);
  }
  refuse_same_file("output", o.output, "--init", o.init);
}

void check_together(const Options& o, int world_size) {
  try {
    o.model.validate();
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
  constexpr std::int64_t most_tokens = std::numeric_limits<int>::max();
  if (o.batch_size > most_tokens / o.model.context_length) {
    usage_error(
        "--batch-size {} × --context-length {} is above {} tokens; "
        "use --grad-accumulation for larger batches",
        o.batch_size, o.model.context_length, most_tokens);
  }
  const bool dry = o.dry_run != DryRun::off;
  if (o.world_size != world_size && !dry) {
    usage_error("--world-size {} is for --dry-run; mpirun -np sets the ranks",
                o.world_size);
  }
  if (o.data.empty() && !dry && !o.print_world) {
    usage_error("--data is missing: give a file of tokens, or --data random");
  }
  if (o.data == "random" && o.sampler == SamplerKind::sequential) {
    usage_error(
        "--sampler sequential has no order to follow in --data "
        "random");
  }
  if (o.validation_every > 0 && o.validation_data.empty()) {
    usage_error("--validation-every {} needs --validation-data",
                o.validation_every);
  }
  if (o.validation_every == 0 && !o.validation_data.empty()) {
    usage_error("--validation-data needs --validation-every");
  }
  if (o.min_lr > o.lr) {
    usage_error("--min-lr {} is above --lr {}", o.min_lr, o.lr);
  }
  if (o.warmup_steps > o.decay_steps) {
    usage_error(
        "--warmup-steps {} is above --decay-steps {}, which by default is the "
        "number of steps; give fewer --warmup-steps",
        o.warmup_steps, o.decay_steps);
  }
  const bool keeps_state = !o.checkpoint.empty() || !o.resume.empty();
  if (o.mode != Mode::train && keeps_state && !dry) {
    usage_error("--checkpoint and --resume are for --mode train");
  }
  if (o.resume == "auto" && o.checkpoint.empty()) {
    usage_error("--resume auto needs --checkpoint, where it looks");
  }
  if (!o.resume.empty() && o.resume != "auto" && !o.init.empty()) {
    usage_error("--init {} and --resume {} both say where weights are from",
                o.init, o.resume);
  }
  if (o.generate > 0 && o.mode != Mode::train && o.init.empty()) {
    usage_error(
        "--generate {} would sample from an untrained model: use "
        "--mode train, or give weights with --init",
        o.generate);
  }
  if (o.grad_dtype == Dtype::bf16 && o.precision != Precision::bf16) {
    usage_error(
        "--grad-dtype bf16 needs --precision bf16; with {}, gradients are fp32",
        name_of(o.precision));
  }
  if (o.device != DeviceChoice::cpu) return;
  if (o.precision == Precision::tf32) {
    usage_error(
        "--precision tf32 needs a GPU; use fp32 or bf16 with --device "
        "cpu");
  }
  if (o.share_gpu) usage_error("--share-gpu makes no sense with --device cpu");
}

}  // namespace

std::vector<std::pair<std::string, std::string>> Options::entries() const {
  Options copy = *this;
  std::vector<std::pair<std::string, std::string>> entries;
  for (const OptionGroup& group : option_table(copy, {})) {
    for (const OptionRow& row : group.rows) {
      entries.emplace_back(row.name, row.value.get());
    }
  }
  return entries;
}

CommandLine parse_command_line(int argc, const char* const* argv,
                               int world_size,
                               std::span<const std::string_view> sync_names) {
  CommandLine result;
  const std::vector<OptionGroup> table =
      option_table(result.options, sync_names);
  const Arguments arguments = parse_arguments(argc, argv, table);
  result.action = arguments.action;
  if (result.action != Action::run) return result;

  std::vector<Setting> from_file;
  if (!arguments.config_file.empty()) {
    from_file = parse_file(arguments.config_file, table);
  }
  std::set<std::string> given;
  for (const auto& layer : {from_file, arguments.settings}) {
    apply_all(layer, table);
    for (const Setting& setting : layer) given.insert(setting.name);
  }
  resolve(result.options, given, world_size);
  check_together(result.options, world_size);
  check_files(result.options, arguments.config_file);
  return result;
}

std::string help_text(std::span<const std::string_view> sync_names) {
  Options defaults;
  return "Trains a transformer language model data-parallel under MPI.\n\n"
         "Usage: train [CONFIG.cfg] [options]\n\n"
         "CONFIG.cfg holds lines of `option = value`, without dashes; the "
         "command line\noverrides it. (=...) is the default.\n" +
         options_text(option_table(defaults, sync_names)) +
         "\nExamples:\n"
         "  mpirun -np 8 train inputs/quickstart.cfg --sync=naive\n"
         "  mpirun -np 2 train --data tokens.bin --vocab-size 50257 "
         "--precision bf16\n"
         "  train --data book.txt --vocab-size 256 --model-size test "
         "--generate 200\n";
}

}  // namespace lockstep
