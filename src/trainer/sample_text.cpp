#include "trainer/sample_text.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace lockstep {
namespace {

constexpr std::int64_t prompt_length = 32;

// Bytes as a terminal can show them: text and line breaks as they are, UTF-8
// sequences too, the rest as \xNN.
std::string printable(std::span<const std::int32_t> bytes) {
  std::string text;
  for (const std::int32_t byte : bytes) {
    const bool control = byte < 32 && byte != '\n' && byte != '\t';
    text += control || byte == 127 ? fmt::format("\\x{:02x}", byte)
                                   : std::string(1, static_cast<char>(byte));
  }
  return text;
}

}  // namespace

std::string sample_text(Evaluation& evaluation, const Options& options,
                        const RunData& data) {
  std::vector<std::int32_t> prompt = {0};
  if (data.source) {
    std::vector<std::int64_t> tokens(std::min(
        {prompt_length, options.model.context_length, data.source->size()}));
    data.source->read(0, tokens);
    prompt.assign(tokens.begin(), tokens.end());
  }
  const auto tokens = evaluation.generate(prompt, options.generate);
  if (options.model.vocab_size <= 256) return printable(tokens);
  return fmt::format("{}", fmt::join(tokens, " "));
}

}  // namespace lockstep
