#pragma once

#include <string>
#include <utility>
#include <vector>

#include "config/option_value.h"
#include "core/error.h"

// Command lines and configuration files against a table of options, for every
// program of the project. What a user got wrong is a UsageError of one line.
namespace lockstep {

struct OptionRow {
  std::string name;      // without dashes
  std::string argument;  // "N"
  OptionValue value;
  std::string help;
  std::string default_text = {};  // where it depends on something else
};

struct OptionGroup {
  std::string title;
  std::vector<OptionRow> rows;
};

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

// A command line: its settings, at most one configuration file, and what else
// it asks for.
enum class Action { run, help, version };
struct Arguments {
  std::vector<Setting> settings;
  std::string config_file;
  Action action = Action::run;
};

// Errors name an unknown option and the nearest there is.
Arguments parse_arguments(int argc, const char* const* argv,
                          const std::vector<OptionGroup>& table);
std::vector<Setting> parse_file(const std::string& name,
                                const std::vector<OptionGroup>& table);

// Sets what the table's rows are bound to; errors name option, value and range.
void apply(const Setting& setting, const std::vector<OptionGroup>& table);

// The table as --help shows it, with defaults, and the options that every
// program has.
std::string options_text(const std::vector<OptionGroup>& table);

}  // namespace lockstep
