#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

// A folder of checkpoints, step-00000020.h5 and so on, with a symbolic link
// `latest` to the newest. Rank 0's process has it to itself as long as the
// object lives.
class CheckpointFolder {
 public:
  struct Entry {
    std::int64_t step;
    std::string path;
  };

  // Makes the folder if it is not there. Error if it cannot, or if another
  // process has it and keeps it for ten seconds.
  explicit CheckpointFolder(std::string path);
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  const std::string& path() const { return path_; }
  Entry entry(std::int64_t step) const;
  std::vector<Entry> entries() const { return entries_of(path_); }
  // Of any folder, the newest first; a folder that isn't there has none.
  static std::vector<Entry> entries_of(const std::string& path);

  // A new entry is there: `latest` leads to it, and of the others the newest
  // stay, `keep` in all.
  void settle(const Entry& newest, std::int64_t keep);
  // Takes a file out of the entries by another name, which is returned.
  static std::string set_aside(const Entry& entry);

 private:
  std::string path_;
  int descriptor_;
};

}  // namespace lockstep
