#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lockstep {

// A regular file's bytes, read-only, mapped and not read. Errors name the file
// and the reason.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::int64_t size() const { return size_; }
  const std::byte* data() const { return data_; }
  // Lets go of the memory behind a stretch that was read once.
  void forget(std::int64_t begin, std::int64_t end) const;

 private:
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace lockstep
