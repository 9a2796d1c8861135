#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "checkpoint/checkpoint_file.h"
#include "checkpoint/checkpoint_folder.h"
#include "unit/files.h"

// What makes files last goes through here: see --wrap in tests/CMakeLists.txt.
namespace {
std::function<void(const std::string& call)> before_each;

std::string last_part(const std::filesystem::path& path) {
  return path.filename().string();
}
}  // namespace

extern "C" {
int __real_fsync(int file);
int __wrap_fsync(int file) {
  const auto name = "/proc/self/fd/" + std::to_string(file);
  if (before_each) {
    before_each("fsync " + last_part(std::filesystem::read_symlink(name)));
  }
  return __real_fsync(file);
}
int __real_rename(const char* from, const char* to);
int __wrap_rename(const char* from, const char* to) {
  if (before_each) {
    before_each("rename " + last_part(from) + " to " + last_part(to));
  }
  return __real_rename(from, to);
}
}

namespace lockstep {
namespace {

// A crash keeps what was flushed to disk before it, and may keep the rest. So
// contents come before their name, and a name before the link that leads to it.
TEST(Durable, ACheckpointIsOnDiskBeforeAnythingLeadsToIt) {
  const test::TemporaryFolder scratch;
  CheckpointFolder folder(scratch / "ck");
  ModelConfig config;
  config.vocab_size = 3, config.d_model = 2, config.d_ff = 2;
  config.num_layers = 1, config.num_heads = 1;
  const ParameterStore store(config, 1);
  std::vector<UnitState> state(store.units().size());
  for (const Unit& unit : store.units()) {
    for (auto& values : state[unit.index]) values.resize(unit.elements);
  }
  const std::string latest = scratch / "ck/latest";
  const auto save = [&](std::int64_t step) {
    const auto entry = folder.entry(step);
    write_checkpoint(entry.path, {{step, 0}, {}, {}}, store, state);
    folder.settle(entry, 1);
  };

  save(1);
  std::vector<std::string> calls;
  before_each = [&](const std::string& call) {
    calls.push_back(call);
    EXPECT_NO_THROW(verify_checkpoint(latest)) << "before " << call;
  };
  save(2);
  before_each = nullptr;
  EXPECT_EQ(calls,
            (std::vector<std::string>{
                "fsync step-00000002.h5.partial",
                "rename step-00000002.h5.partial to step-00000002.h5",
                "fsync ck", "rename latest.partial to latest", "fsync ck"}));
  EXPECT_EQ(read_facts(latest).position.step, 2);
  EXPECT_EQ(folder.entries().size(), 1u);
}

}  // namespace
}  // namespace lockstep
