#include "core/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/error.h"

namespace lockstep {
namespace {

int open_new(const std::string& path) {
  return open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

// What will be `path`, under its temporary name until it is complete; closed
// and, unless it got that far, removed at the end. All failures of one cause
// read the same, at whatever call it shows.
class NewFile {
 public:
  explicit NewFile(std::string path)
      : path_(std::move(path)),
        temporary_(temporary_beside(path_)),
        file_(open_new(temporary_)) {
    if (file_ < 0) fail("cannot write {}: {}", path_, std::strerror(errno));
  }
  ~NewFile() {
    if (file_ >= 0) close(file_);
    if (!kept_) unlink(temporary_.c_str());
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
  void complete() {
    if (fsync(file_) != 0 || close(std::exchange(file_, -1)) != 0 ||
        rename(temporary_.c_str(), path_.c_str()) != 0) {
      fail("cannot write {}: {}", path_, std::strerror(errno));
    }
    kept_ = true;
  }

 private:
  std::string path_;
  std::string temporary_;
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
  const int probe = open_new(temporary_beside(path));
  require(probe >= 0, "cannot write {} to {}: {}", what, path,
          std::strerror(errno));
  close(probe);
  unlink(temporary_beside(path).c_str());
}

void replace_file(const std::string& path, std::span<const std::byte> bytes) {
  NewFile file(path);
  file.write(bytes);
  file.complete();
}

}  // namespace lockstep
