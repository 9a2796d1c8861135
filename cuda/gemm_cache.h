#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace lockstep {

// Which algorithm of the library is fastest for a product, kept in a text file
// so that runs after the first choose the same without measuring:
//
//   lockstep gemm cache 1
//   NVIDIA H200 | cuBLASLt 130002 | 4096 768 768 … = 1f00… (8 words in hex)
//
// A file may hold lines for several devices and versions of the library.
class GemmCache {
 public:
  using Algorithm = std::array<std::uint64_t, 8>;  // as the library packs it

  // Without a path, or where there is no file yet, starts empty. Error if the
  // file is something else, or could not be written later.
  explicit GemmCache(std::string path);

  bool keeps() const { return !path_.empty(); }
  // key: one line without '='.
  std::optional<Algorithm> find(const std::string& key) const;
  // Replaces the file, whole, by one that has this too. Runs that write at
  // once lose each other's lines, never the file.
  void put(const std::string& key, const Algorithm& algorithm);

 private:
  std::string path_;
  std::map<std::string, Algorithm> algorithms_;
};

}  // namespace lockstep
