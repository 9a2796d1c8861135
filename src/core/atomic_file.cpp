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

std::string temporary_beside(const std::string& path) {
  return path + ".partial";
}

// An open file descriptor, closed at the end.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags)
      : file_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~Descriptor() {
    if (file_ >= 0) close(file_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  bool is_open() const { return file_ >= 0; }
  bool sync() const { return fsync(file_) == 0; }
  bool write(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
    return true;
  }

 private:
  int file_;
};

// All failures of one cause read the same, at whatever call it shows.
void require_written(bool success, const std::string& path) {
  if (!success) fail("cannot write {}: {}", path, std::strerror(errno));
}

// Makes a rename last. Where a file system cannot, the rename stands all the
// same.
void sync_folder_of(const std::string& path) {
  const auto folder = std::filesystem::absolute(path).parent_path();
  const Descriptor descriptor(folder, O_RDONLY | O_DIRECTORY);
  if (descriptor.is_open()) (void)descriptor.sync();
}

}  // namespace

PendingFile::PendingFile(std::string path)
    : path_(std::move(path)), temporary_(temporary_beside(path_)) {}

PendingFile::~PendingFile() {
  if (!installed_) unlink(temporary_.c_str());
}

void PendingFile::install() {
  const Descriptor file(temporary_, O_RDONLY);
  require_written(file.is_open() && file.sync() &&
                      rename(temporary_.c_str(), path_.c_str()) == 0,
                  path_);
  installed_ = true;
  sync_folder_of(path_);
}

void check_writable(const std::string& path, const std::string& what) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  require(!std::filesystem::exists(status) ||
              std::filesystem::is_regular_file(status),
          "cannot write {} to {}: it is not a regular file", what, path);
  const PendingFile pending(path);
  const Descriptor probe(pending.temporary(), O_WRONLY | O_CREAT | O_TRUNC);
  require(probe.is_open(), "cannot write {} to {}: {}", what, path,
          std::strerror(errno));
}

void replace_file(const std::string& path, std::initializer_list<Bytes> parts) {
  PendingFile pending(path);
  {
    const Descriptor file(pending.temporary(), O_WRONLY | O_CREAT | O_TRUNC);
    require_written(file.is_open(), path);
    for (const Bytes part : parts) require_written(file.write(part), path);
  }
  pending.install();
}

void replace_link(const std::string& path, const std::string& target) {
  const std::string temporary = temporary_beside(path);
  unlink(temporary.c_str());
  require_written(symlink(target.c_str(), temporary.c_str()) == 0 &&
                      rename(temporary.c_str(), path.c_str()) == 0,
                  path);
  sync_folder_of(path);
}

}  // namespace lockstep
