// A whole token file, in each format that is mapped: the first byte says which.
#include <algorithm>
#include <vector>

#include "data/token_source.h"
#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  using namespace lockstep;
  static const fuzz::InputFile files[] = {fuzz::InputFile(".npy"),
                                          fuzz::InputFile(".bin"),
                                          fuzz::InputFile(".txt")};
  if (size == 0) return 0;
  const auto& file = files[data[0] % std::size(files)];
  const std::string& path = file.holding(fuzz::text_of(data + 1, size - 1));
  fuzz::expect_result_or_error([&] {
    const auto tokens = open_token_source(path);
    if (tokens->size() < 0 || tokens->size() > std::int64_t(size)) std::abort();
    std::vector<std::int64_t> all(tokens->size());
    tokens->read(0, all);
    check_tokens(*tokens, 0, tokens->size(), 50257);
  });
  return 0;
}
