#include "config/options.h"

#include <boost/program_options.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include "config/option_table.h"

namespace po = boost::program_options;

namespace lockstep {
namespace {

template <class... Args>
[[noreturn]] void usage_error(fmt::format_string<Args...> message,
                              Args&&... args) {
  throw UsageError(fmt::format(message, std::forward<Args>(args)...));
}

// One option as the user gave it. `where` is how a message calls it.
struct Setting {
  std::string name;
  std::string text;
  std::string where;
};

const OptionRow* find_row(const std::vector<OptionGroup>& table,
                          std::string_view name) {
  for (const OptionGroup& group : table) {
    const auto row = std::ranges::find(group.rows, name, &OptionRow::name);
    if (row != group.rows.end()) return &*row;
  }
  return nullptr;
}

[[noreturn]] void unknown_option(const std::vector<OptionGroup>& table,
                                 std::string_view name,
                                 std::string_view where) {
  std::vector<std::string_view> names = {"help", "version"};
  for (const OptionGroup& group : table) {
    for (const OptionRow& row : group.rows) names.push_back(row.name);
  }
  const bool in_file = !where.starts_with("-");
  usage_error("{}: no such option; did you mean {}{}?", where,
              in_file ? "" : "--", nearest(name, names));
}

// Whether the option may stand alone, for `true`.
bool is_flag(const OptionRow& row) {
  return row.argument.starts_with("[");
}

// The options as Boost wants them: for parsing, and to print --help.
po::options_description describe(const std::vector<OptionGroup>& table) {
  constexpr unsigned line_length = 80, least_help_length = 42;
  po::options_description all(line_length, least_help_length);
  for (const OptionGroup& group : table) {
    po::options_description part(group.title, line_length, least_help_length);
    for (const OptionRow& row : group.rows) {
      auto* value = po::value<std::string>()->value_name(row.argument);
      const std::string standard =
          row.default_text.empty() ? row.value.get() : row.default_text;
      if (!standard.empty()) value->default_value(standard);
      std::string help = row.help;
      const auto& choices = row.value.choices;
      if (!is_flag(row) && !choices.empty()) help += ": " + one_of(choices);
      part.add_options()(row.name.c_str(), value, help.c_str());
    }
    all.add(part);
  }
  return all;
}

// The command line: its settings, at most one configuration file, --help and
// --version.
struct Arguments {
  std::vector<Setting> settings;
  std::string config_file;
  CommandLine::Action action = CommandLine::Action::run;
};

Arguments read_arguments(int argc, const char* const* argv,
                         const std::vector<OptionGroup>& table) {
  po::options_description known = describe(table);
  known.add_options()("help,h", "")("version", "")(
      "config-file", po::value<std::vector<std::string>>(), "");
  po::positional_options_description positional;
  positional.add("config-file", -1);
  // Without guessing, an abbreviation is an unknown option.
  namespace style = po::command_line_style;
  constexpr int styles = style::unix_style & ~style::allow_guessing;

  // Boost would let a lone flag swallow what follows it.
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  for (std::string& word : words) {
    const OptionRow* row =
        word.starts_with("--") ? find_row(table, word.substr(2)) : nullptr;
    if (row != nullptr && is_flag(*row)) word += "=true";
  }

  const auto parsed = po::command_line_parser(words)
                          .options(known)
                          .positional(positional)
                          .style(styles)
                          .run();
  Arguments arguments;
  for (const po::option& option : parsed.options) {
    const std::string& name = option.string_key;
    if (option.position_key >= 0) {
      const std::string& file = option.value.at(0);
      if (!arguments.config_file.empty()) {
        usage_error(
            "'{}': the configuration file is '{}' already, and an "
            "option starts with --",
            file, arguments.config_file);
      }
      if (file.empty()) usage_error("an argument is empty");
      arguments.config_file = file;
    } else if (name == "help") {
      arguments.action = CommandLine::Action::help;
      return arguments;
    } else if (name == "version") {
      arguments.action = CommandLine::Action::version;
    } else if (name == "config-file") {
      unknown_option(table, name, "--" + name);
    } else {
      const std::string& text = option.value.at(0);
      if (text.starts_with("--")) {
        usage_error("--{}: expected {}, but {} follows", name,
                    find_row(table, name)->value.accepts, text);
      }
      arguments.settings.push_back({name, text, "--" + name});
    }
  }
  return arguments;
}

// read_arguments() with Boost's errors in our words.
Arguments parse_arguments(int argc, const char* const* argv,
                          const std::vector<OptionGroup>& table) {
  // "--lr" of "--lr=3", and "lr".
  const auto dashed = [](const po::error_with_option_name& error) {
    const std::string name = error.get_option_name();
    return name.substr(0, name.find('='));
  };
  const auto bare = [](const std::string& name) {
    return name.substr(std::min(name.find_first_not_of('-'), name.size()));
  };
  try {
    return read_arguments(argc, argv, table);
  } catch (const po::unknown_option& error) {
    unknown_option(table, bare(dashed(error)), dashed(error));
  } catch (const po::error_with_option_name& error) {
    const OptionRow* row = find_row(table, bare(dashed(error)));
    if (row == nullptr) usage_error("{}", error.what());
    usage_error("--{}: expected {}, but nothing follows", row->name,
                row->value.accepts);
  } catch (const po::error& error) {
    usage_error("{}", error.what());
  }
}

std::vector<Setting> parse_file(const std::string& name,
                                const std::vector<OptionGroup>& table) {
  std::ifstream file(name);
  if (!file || std::filesystem::is_directory(name)) {
    usage_error("cannot read the configuration file '{}': {}", name,
                std::filesystem::exists(name) ? "it is a folder or not readable"
                                              : "there is no such file");
  }
  std::vector<Setting> settings;
  try {
    const auto parsed = po::parse_config_file(file, describe(table), true);
    for (const po::option& option : parsed.options) {
      const std::string& key = option.string_key;
      const std::string where = fmt::format("{}: {}", name, key);
      if (find_row(table, key) == nullptr) unknown_option(table, key, where);
      if (std::ranges::count(settings, key, &Setting::name) > 0) {
        usage_error("{} is given twice", where);
      }
      settings.push_back({key, option.value.at(0), where});
    }
  } catch (const po::error& error) {
    usage_error("{}: {}", name, error.what());
  }
  return settings;
}

void apply(const Setting& setting, const std::vector<OptionGroup>& table) {
  const OptionRow& row = *find_row(table, setting.name);
  const OptionValue& value = row.value;
  if (value.set(setting.text)) return;
  std::string hint;
  if (!value.choices.empty() && !is_flag(row)) {
    hint =
        fmt::format("; did you mean {}?", nearest(setting.text, value.choices));
  }
  usage_error("{}: expected {}, not '{}'{}", setting.where, value.accepts,
              setting.text, hint);
}

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
  if (!given.contains("decay-steps")) o.decay_steps = o.steps;
  if (o.world_size == 0) o.world_size = world_size;
  if (!given.contains("sync")) o.sync = o.world_size == 1 ? "none" : "naive";
}

// The file of "FILE.h5:/dataset".
std::filesystem::path file_of(const std::string& source) {
  const auto file =
      std::filesystem::absolute(source.substr(0, source.find(":/")));
  std::error_code failed;
  const auto path = std::filesystem::weakly_canonical(file, failed);
  return failed ? file : path;
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
  if (o.world_size != world_size && !o.dry_run) {
    usage_error("--world-size {} is for --dry-run; mpirun -np sets the ranks",
                o.world_size);
  }
  if (o.data.empty() && !o.dry_run) {
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
    usage_error("--warmup-steps {} is above --decay-steps {}", o.warmup_steps,
                o.decay_steps);
  }
  if (o.generate > 0 && o.mode != Mode::train && o.init.empty()) {
    usage_error(
        "--generate {} would sample from an untrained model: use "
        "--mode train, or give weights with --init",
        o.generate);
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
  if (result.action != CommandLine::Action::run) return result;

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
  std::ostringstream text;
  text << "Trains a transformer language model data-parallel under MPI.\n\n"
          "Usage: train [CONFIG.cfg] [options]\n\n"
          "CONFIG.cfg holds lines of `option = value`, without dashes; the "
          "command line\noverrides it. (=...) is the default.\n"
       << describe(option_table(defaults, sync_names))
       << "\nOther:\n"
          "  --help, -h                          print this text\n"
          "  --version                           print the version\n\n"
          "Examples:\n"
          "  mpirun -np 8 train inputs/quickstart.cfg --sync=naive\n"
          "  mpirun -np 2 train --data tokens.bin --vocab-size 50257 "
          "--precision bf16\n"
          "  train --data book.txt --vocab-size 256 --model-size test "
          "--generate 200\n";
  return text.str();
}

}  // namespace lockstep
