#include "config/option_parser.h"

#include <boost/program_options.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace po = boost::program_options;

namespace lockstep {
namespace {

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
      arguments.action = Action::help;
      return arguments;
    } else if (name == "version") {
      arguments.action = Action::version;
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

}  // namespace

// read_arguments() with Boost's errors in our words. Boost's own texts are for
// errors without the user's words only: it replaces placeholders in them, and
// does not end where those words hold a placeholder themselves.
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
    const std::string name = bare(dashed(error));
    if (name == "help" || name == "version") {
      usage_error("{} takes no value", dashed(error));
    }
    const OptionRow* row = find_row(table, name);
    if (row == nullptr) unknown_option(table, name, dashed(error));
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
  } catch (const po::invalid_config_file_syntax& error) {
    usage_error("{}: expected 'name = value', not '{}'", name, error.tokens());
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

std::string options_text(const std::vector<OptionGroup>& table) {
  std::ostringstream text;
  text << describe(table)
       << "\nOther:\n"
          "  --help, -h                          print this text\n"
          "  --version                           print the version\n";
  return text.str();
}

}  // namespace lockstep
