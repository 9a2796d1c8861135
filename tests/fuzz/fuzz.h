#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <string_view>

#include "core/error.h"

// What the fuzzers share. Each is one file with libFuzzer's entry point; build
// and run them with scripts/fuzz. A parser may refuse what it gets by an Error,
// or take it; anything else ends the fuzzer.
namespace lockstep::fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// The input as a file, in memory where there is such a file system.
class InputFile {
 public:
  explicit InputFile(const std::string& extension) {
    namespace fs = std::filesystem;
    const fs::path folder =
        fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path();
    std::string pattern = (folder / "lockstep-fuzz-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    path_ = (folder_ / ("input" + extension)).string();
  }
  ~InputFile() { std::filesystem::remove_all(folder_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& holding(std::string_view bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
    return path_;
  }
  const std::string& path() const { return path_; }

 private:
  std::filesystem::path folder_;
  std::string path_;
};

template <class Parse>
void expect_result_or_error(Parse parse) {
  try {
    parse();
  } catch (const Error&) {
  }
}

}  // namespace lockstep::fuzz
