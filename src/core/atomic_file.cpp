#include "core/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/error.h"

namespace lockstep {
namespace {

// A file being written; closed and, unless kept, removed at the end.
class NewFile {
 public:
  explicit NewFile(std::string path)
      : path_(std::move(path)),
        file_(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
                   0666)) {
    if (file_ < 0) fail("cannot write {}: {}", path_, std::strerror(errno));
  }
  ~NewFile() {
    if (file_ >= 0) close(file_);
    if (!kept_) unlink(path_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("cannot write {}: {}", path_, std::strerror(errno));
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }
  void become(const std::string& path) {
    const bool synced = fsync(file_) == 0;
    const bool closed = close(file_) == 0;
    file_ = -1;
    if (!synced || !closed || rename(path_.c_str(), path.c_str()) != 0) {
      fail("cannot write {}: {}", path, std::strerror(errno));
    }
    kept_ = true;
  }

 private:
  std::string path_;
  int file_;
  bool kept_ = false;
};

}  // namespace

std::string temporary_beside(const std::string& path) {
  return path + ".partial";
}

void check_writable(const std::string& path, const std::string& what) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  require(!std::filesystem::exists(status) ||
              std::filesystem::is_regular_file(status),
          "cannot write {} to {}: it is not a regular file", what, path);
  try {
    const NewFile probe(temporary_beside(path));
  } catch (const Error&) {
    fail("cannot write {} to {}: {}", what, path, std::strerror(errno));
  }
}

void replace_file(const std::string& path, std::span<const std::byte> bytes) {
  NewFile file(temporary_beside(path));
  file.write(bytes);
  file.become(path);
}

}  // namespace lockstep
