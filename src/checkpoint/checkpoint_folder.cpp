#include "checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "core/atomic_file.h"
#include "core/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view prefix = "step-", suffix = ".h5";

std::string name_of(std::int64_t step) {
  return fmt::format("{}{:08}{}", prefix, step, suffix);
}

// The step in a name of ours, or -1.
std::int64_t step_in(const std::string& name) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return -1;
  std::int64_t step = -1;
  const char* begin = name.data() + prefix.size();
  std::from_chars(begin, name.data() + name.size(), step);
  return name == name_of(step) ? step : -1;
}

// Ranks of a run that was killed may outlive its launcher for a moment, so this
// waits for them. File systems without locks are used without.
bool lock(int descriptor) {
  using namespace std::chrono_literals;
  const auto end = std::chrono::steady_clock::now() + 10s;
  while (flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(100ms);
  }
  return true;
}

}  // namespace

CheckpointFolder::CheckpointFolder(std::string path) : path_(std::move(path)) {
  std::error_code failed;
  fs::create_directories(path_, failed);
  descriptor_ = open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  require(descriptor_ >= 0, "cannot keep checkpoints in {}: {}", path_,
          std::strerror(errno));
  const bool taken = !lock(descriptor_);
  if (taken || access(path_.c_str(), W_OK | X_OK) != 0) {
    const std::string reason =
        taken ? "another run has it" : std::strerror(errno);
    close(descriptor_);
    fail("cannot keep checkpoints in {}: {}", path_, reason);
  }
  // What a killed run was writing.
  for (const auto& file : fs::directory_iterator(path_, failed)) {
    const fs::path& name = file.path();
    if (name.extension() == ".partial" && step_in(name.stem()) >= 0) {
      fs::remove(name, failed);
    }
  }
}

CheckpointFolder::~CheckpointFolder() {
  close(descriptor_);
}

CheckpointFolder::Entry CheckpointFolder::entry(std::int64_t step) const {
  return {step, (fs::path(path_) / name_of(step)).string()};
}

std::vector<CheckpointFolder::Entry> CheckpointFolder::entries_of(
    const std::string& path) {
  std::vector<Entry> entries;
  std::error_code failed;
  for (const auto& file : fs::directory_iterator(path, failed)) {
    const std::int64_t step = step_in(file.path().filename());
    if (step >= 0) entries.push_back({step, file.path().string()});
  }
  std::ranges::sort(entries, std::greater(), &Entry::step);
  return entries;
}

void CheckpointFolder::settle(const Entry& newest, std::int64_t keep) {
  replace_link((fs::path(path_) / "latest").string(),
               fs::path(newest.path).filename().string());
  const std::vector<Entry> all = entries();
  for (auto i = keep; i < std::ssize(all); ++i) {
    std::error_code stays;
    fs::remove(all[i].path, stays);
  }
}

std::string CheckpointFolder::set_aside(const Entry& entry) {
  std::string name = entry.path + ".aside";
  for (int i = 2; fs::exists(name); ++i) {
    name = fmt::format("{}.aside{}", entry.path, i);
  }
  std::error_code failed;
  fs::rename(entry.path, name, failed);
  require(!failed, "cannot set {} aside: {}", entry.path, failed.message());
  return name;
}

}  // namespace lockstep
