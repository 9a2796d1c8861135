#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>

namespace lockstep {

// Error unless `path` can become a new regular file: its folder exists and can
// be written, and nothing but a regular file stands there now. `what` names
// the content in the message ("the run record").
void check_writable(const std::string& path, const std::string& what);

// A file that others write under a temporary name beside `path`, to be renamed
// to it when complete. Unless installed, it is removed in the end.
class PendingFile {
 public:
  explicit PendingFile(std::string path);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  const std::string& temporary() const { return temporary_; }
  // Flushes the temporary file, which is closed and complete, to disk, renames
  // it, and flushes its folder.
  void install();

 private:
  std::string path_;
  std::string temporary_;
  bool installed_ = false;
};

// Puts `parts`, one after the other, at `path` so that a reader, or a crash at
// any time, finds either the old file or the new one: written under a temporary
// name, flushed to disk, then renamed. On failure the old file and no other
// stays, and an Error names the cause.
using Bytes = std::span<const std::byte>;
void replace_file(const std::string& path, std::initializer_list<Bytes> parts);
inline void replace_file(const std::string& path, Bytes bytes) {
  replace_file(path, {bytes});
}

// Makes `path` a symbolic link to `target`, in place of any before it,
// likewise.
void replace_link(const std::string& path, const std::string& target);

}  // namespace lockstep
