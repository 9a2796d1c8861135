#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "checkpoint/saver.h"
#include "core/hdf5.h"
#include "record/run_record.h"
#include "unit/files.h"

// Many builds of HDF5 take no lock of their own, so that two threads in it at
// once are an accident. Those that do would hide one; so calls into the library
// are watched on their way (--wrap in tests/CMakeLists.txt).
namespace {

std::atomic<bool> watching = false;
std::atomic<int> threads_inside = 0, calls = 0, meetings = 0;

class Inside {
 public:
  Inside() {
    if (!watching || depth++ > 0) return;
    ++calls;
    if (threads_inside++ > 0) ++meetings;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  ~Inside() {
    if (depth > 0 && --depth == 0) --threads_inside;
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  static thread_local int depth;  // the library may call back
};
thread_local int Inside::depth = 0;

using Id = std::int64_t;
}  // namespace

#define WATCHED(Result, name, parameters, arguments) \
  extern "C" Result __real_##name parameters;        \
  extern "C" Result __wrap_##name parameters {       \
    const Inside inside;                             \
    return __real_##name arguments;                  \
  }
WATCHED(int, H5Aexists, (Id a, const char* b), (a, b))
WATCHED(Id, H5Acreate2, (Id a, const char* b, Id c, Id d, Id e, Id f),
        (a, b, c, d, e, f))
WATCHED(int, H5Aiterate2, (Id a, int b, int c, void* d, void* e, void* f),
        (a, b, c, d, e, f))
WATCHED(Id, H5Aopen, (Id a, const char* b, Id c), (a, b, c))
WATCHED(int, H5Dclose, (Id a), (a))
WATCHED(Id, H5Dcreate2, (Id a, const char* b, Id c, Id d, Id e, Id f, Id g),
        (a, b, c, d, e, f, g))
WATCHED(Id, H5Dget_space, (Id a), (a))
WATCHED(Id, H5Dget_type, (Id a), (a))
WATCHED(Id, H5Dopen2, (Id a, const char* b, Id c), (a, b, c))
WATCHED(int, H5Dread, (Id a, Id b, Id c, Id d, Id e, void* f),
        (a, b, c, d, e, f))
WATCHED(int, H5Dset_extent, (Id a, const void* b), (a, b))
WATCHED(int, H5Dwrite, (Id a, Id b, Id c, Id d, Id e, const void* f),
        (a, b, c, d, e, f))
WATCHED(int, H5Fclose, (Id a), (a))
WATCHED(Id, H5Fcreate, (const char* a, unsigned b, Id c, Id d), (a, b, c, d))
WATCHED(int, H5Fflush, (Id a, int b), (a, b))
WATCHED(Id, H5Fopen, (const char* a, unsigned b, Id c), (a, b, c))
WATCHED(int, H5Gclose, (Id a), (a))
WATCHED(Id, H5Gcreate2, (Id a, const char* b, Id c, Id d, Id e),
        (a, b, c, d, e))
WATCHED(Id, H5Gopen2, (Id a, const char* b, Id c), (a, b, c))
WATCHED(int, H5Ldelete, (Id a, const char* b, Id c), (a, b, c))
WATCHED(int, H5Lexists, (Id a, const char* b, Id c), (a, b, c))
WATCHED(int, H5get_libversion, (void* a, void* b, void* c), (a, b, c))
#undef WATCHED

namespace lockstep::hdf5 {
namespace {

using test::error_of;
using test::expect_parts;

class Hdf5Lock : public testing::Test {
 protected:
  Hdf5Lock() {
    calls = meetings = 0;
    watching = true;
  }
  ~Hdf5Lock() override { watching = false; }

  test::TemporaryFolder folder_;
};

// One file from its beginning to its end, in nearly every way there is.
void write_and_read(const std::string& path) {
  const std::vector<double> row = {1, 2, 3};
  const std::vector<std::string> texts = {"a", "b", "c"};
  {
    File file(path, Access::in_memory, 512);
    Group group = file.create_group("a/b");
    group.set_attribute("text", "a text");
    group.set_attribute("real", 0.5);
    group.set_attribute("integer", std::int64_t{7});
    group.set_attribute("texts", texts);
    Dataset rows = file.create_extendible<double>("a/rows", {3}, 2);
    for (int i = 0; i < 5; ++i) rows.append(std::span<const double>(row));
    rows.keep_rows(4);
    file.create_dataset<double>("fixed", {3})
        .write(std::span<const double>(row));
    file.create_table("table", {{"column", row}, {"names", texts}});
    file.create_group("gone");
    file.remove("gone");
    file.flush();
    test::write_file(path, file.bytes());
  }
  const File file(path, Access::read);
  const Group group = file.group("a/b");
  EXPECT_EQ(group.attribute<std::string>("text"), "a text");
  EXPECT_EQ(group.attribute<double>("real"), 0.5);
  EXPECT_EQ(group.attribute<std::int64_t>("integer"), 7);
  EXPECT_EQ(group.attribute<std::vector<std::string>>("texts"), texts);
  EXPECT_EQ(group.attributes().size(), 4u);
  EXPECT_FALSE(group.has_attribute("none"));
  const Dataset rows = file.dataset("a/rows");
  EXPECT_EQ(rows.shape(), (std::vector<std::int64_t>{4, 3}));
  EXPECT_EQ(rows.storage().text, "float64");
  EXPECT_EQ(rows.read<double>().at(11), 3);
  std::vector<double> end(2);
  file.dataset("fixed").read(1, std::span(end));
  EXPECT_EQ(end, (std::vector<double>{2, 3}));
  EXPECT_EQ(file.dataset("table").read_column<double>("column"), row);
  EXPECT_EQ(file.children().size(), 3u);
  EXPECT_FALSE(file.has("gone"));
  EXPECT_NE(version(), "");
  expect_parts(error_of([&] { file.dataset("gone"); }), {path + ":/gone"});
}

TEST_F(Hdf5Lock, ThreadsWithFilesOfTheirOwnAreNeverInTheLibraryTogether) {
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([this, thread] {
        for (int round = 0; round < 10; ++round) {
          write_and_read(folder_ / std::to_string(thread));
        }
      });
    }
  }
  EXPECT_GT(calls, 1000);
  EXPECT_EQ(meetings, 0);
}

TEST_F(Hdf5Lock, NorAreTrainingWithItsRecordAndTheWriterOfACheckpoint) {
  ModelConfig config;
  config.vocab_size = 64, config.d_model = 32, config.d_ff = 64;
  config.num_layers = 4, config.num_heads = 2;
  const ParameterStore store(config, 1);
  std::vector<UnitState> state(store.units().size());
  for (const Unit& unit : store.units()) {
    for (auto& values : state[unit.index]) values.resize(unit.elements);
  }
  CheckpointFolder folder(folder_ / "ck");
  CheckpointSaver saver(folder, 2, {}, store);
  RunRecord record(folder_ / "run.h5", {}, 1);
  StepFigures figures;
  figures.ranks.resize(1);
  int flushes = 0;
  for (int step = 1; step <= 5; ++step) {
    saver.save({step, 0}, state);
    for (; saver.busy(); ++flushes) {
      record.add_step(figures);
      record.flush();
    }
  }
  EXPECT_TRUE(saver.finish());
  EXPECT_GT(flushes, 5);
  EXPECT_EQ(meetings, 0);
  verify_checkpoint(folder_ / "ck/latest");
}

}  // namespace
}  // namespace lockstep::hdf5
