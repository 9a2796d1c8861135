// A configuration file.
#include <array>

#include "config/options.h"
#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  using namespace lockstep;
  static const fuzz::InputFile file(".cfg");
  static constexpr std::array<std::string_view, 2> strategies = {"none",
                                                                 "naive"};
  const std::string& path = file.holding(fuzz::text_of(data, size));
  fuzz::expect_result_or_error([&] {
    const char* const arguments[] = {"train", path.c_str()};
    const Options options =
        parse_command_line(2, arguments, 1, strategies).options;
    // What it says of itself is what it takes.
    for (const auto& [name, value] : options.entries()) {
      if (name.empty()) std::abort();
    }
  });
  return 0;
}
