// A checkpoint as it is found: nothing but what was written passes.
#include "checkpoint/checkpoint_file.h"

#include "core/digest.h"
#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  using namespace lockstep;
  static const fuzz::InputFile file(".h5");
  const std::string_view bytes = fuzz::text_of(data, size);
  const std::string& path = file.holding(bytes);
  bool accepted = false;
  fuzz::expect_result_or_error([&] {
    verify_checkpoint(path);
    accepted = true;
  });
  if (!accepted) return 0;
  Sha256 digest;
  digest.add(std::as_bytes(std::span(bytes.substr(512))));
  if (bytes.find(digest.hex()) >= 512) std::abort();
  return 0;
}
