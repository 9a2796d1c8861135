#include "data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace lockstep {

MappedFile::MappedFile(const std::string& path) {
  // Without O_NONBLOCK a pipe of that name would be waited for.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  require(file >= 0, "cannot open {}: {}", path, std::strerror(errno));
  struct stat facts {};
  if (fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    close(file);
    fail("{} is not a regular file", path);
  }
  size_ = facts.st_size;
  void* data = nullptr;
  if (size_ > 0) {
    data = mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ,
                MAP_PRIVATE, file, 0);
  }
  const int error = errno;
  close(file);
  require(data != MAP_FAILED, "cannot map {}: {}", path, std::strerror(error));
  data_ = static_cast<std::byte*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, static_cast<std::size_t>(size_));
}

void MappedFile::forget(std::int64_t begin, std::int64_t end) const {
  const std::int64_t page = sysconf(_SC_PAGESIZE);
  begin = begin / page * page;
  madvise(data_ + begin, static_cast<std::size_t>(end - begin), MADV_DONTNEED);
}

}  // namespace lockstep
