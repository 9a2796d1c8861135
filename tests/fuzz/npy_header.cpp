// The header of an .npy file.
#include "data/npy_header.h"

#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  using namespace lockstep;
  fuzz::expect_result_or_error([&] {
    const NpyHeader header = parse_npy_header(fuzz::text_of(data, size), "x");
    if (header.count < 0 || header.item_bytes <= 0 || header.data_offset < 0 ||
        header.data_offset > static_cast<std::int64_t>(size)) {
      std::abort();
    }
  });
  return 0;
}
