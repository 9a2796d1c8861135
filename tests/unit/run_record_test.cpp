#include "record/run_record.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <map>
#include <set>

#include "core/atomic_file.h"
#include "core/hdf5.h"
#include "unit/files.h"

namespace lockstep {
namespace {

using test::error_of;
using test::expect_parts;
using Shape = std::vector<std::int64_t>;

RunFacts facts_of(int ranks) {
  RunFacts facts;
  facts.texts = {{"command_line", "train --x"}, {"sync", "naive"}};
  facts.integers = {{"world_size", ranks}, {"parameters", 1LL << 40}};
  facts.numbers = {{"flops_per_token", 1.5}};
  facts.config = {{"steps", "8"}, {"lr", "0.001"}};
  for (int rank = 0; rank < ranks; ++rank) {
    facts.hostnames.push_back("host" + std::to_string(rank));
  }
  return facts;
}

// Figures in which every number is another.
StepFigures figures_of(std::int64_t step, int ranks) {
  StepFigures figures{.step = step,
                      .loss = 10.0 - 0.5 * double(step),
                      .learning_rate = 1e-3 * double(step),
                      .gradient_norm = 2.0 * double(step),
                      .tokens = 1000 * step,
                      .ranks = {}};
  for (int rank = 0; rank < ranks; ++rank) {
    const double base = 1000.0 * double(step) + 100.0 * rank;
    RankFigures mine;
    for (int i = 0; i < phase_count; ++i) mine.phase_ms[i] = base + i;
    mine.comm_busy_ms = base + 20;
    mine.comm_exposed_ms = base + 21;
    mine.comm_calls = std::int64_t(base) + 22;
    mine.comm_bytes = std::int64_t(base) + 23;
    for (int i = 0; i < category_count; ++i) {
      mine.memory.bytes[i] = std::int64_t(base) + 30 + i;
    }
    mine.memory.total = std::int64_t(base) + 40;
    mine.memory.peak = std::int64_t(base) + 41;
    figures.ranks.push_back(mine);
  }
  return figures;
}

// Every dataset below a group, by path.
void collect(const hdf5::Group& group, const std::string& prefix,
             std::map<std::string, hdf5::Dataset>& into) {
  for (const hdf5::Child& child : group.children()) {
    const std::string path = prefix + child.name;
    if (child.is_dataset()) {
      into.emplace(path, group.dataset(child.name));
    } else {
      collect(group.group(child.name), path + "/", into);
    }
  }
}

class Record : public testing::Test {
 protected:
  // How many steps the file on disk holds; all columns agree.
  std::int64_t rows_on_disk(const std::string& path) {
    const hdf5::File file(path, hdf5::Access::read);
    std::map<std::string, hdf5::Dataset> datasets;
    collect(file, "", datasets);
    const std::int64_t rows = datasets.at("steps/step").shape()[0];
    for (const auto& [name, dataset] : datasets) {
      if (name.starts_with("validation/")) continue;
      EXPECT_EQ(dataset.shape()[0], rows) << name;
    }
    return rows;
  }
  void expect_only_the_record() {
    for (const auto& entry : std::filesystem::directory_iterator(
             std::filesystem::path(path_).parent_path())) {
      EXPECT_EQ(entry.path().string(), path_);
    }
  }
  test::TemporaryFolder folder_;
  const std::string path_ = folder_ / "run.h5";
};

TEST_F(Record, HasTheLayoutThatIsDocumented) {
  constexpr int ranks = 3;
  {
    RunRecord record(path_, facts_of(ranks), ranks);
    record.add_step(figures_of(1, ranks));
    record.add_step(figures_of(2, ranks));
    record.add_validation(2, 7.5);
    record.flush();
  }
  const hdf5::File file(path_, hdf5::Access::read);
  std::map<std::string, hdf5::Dataset> datasets;
  collect(file, "", datasets);

  std::map<std::string, std::pair<Shape, std::string>> expected = {
      {"steps/step", {{2}, "1"}},
      {"steps/loss", {{2}, "nats/token"}},
      {"steps/learning_rate", {{2}, "1"}},
      {"steps/gradient_norm", {{2}, "1"}},
      {"steps/tokens", {{2}, "tokens"}},
      {"timings/comm_busy", {{2, ranks}, "ms"}},
      {"timings/comm_exposed", {{2, ranks}, "ms"}},
      {"comm/bytes", {{2, ranks}, "bytes"}},
      {"comm/calls", {{2, ranks}, "1"}},
      {"validation/step", {{1}, "1"}},
      {"validation/loss", {{1}, "nats/token"}}};
  for (const char* phase : {"data", "zero_grad", "forward", "loss", "backward",
                            "grad_sync", "optimizer", "step"}) {
    expected[std::string("timings/") + phase] = {{2, ranks}, "ms"};
  }
  for (const char* category :
       {"parameters", "gradients", "optimizer", "activations", "communication",
        "workspace", "total", "peak"}) {
    expected[std::string("memory/") + category] = {{2, ranks}, "bytes"};
  }
  std::set<std::string> descriptions;
  for (const auto& [name, shape_and_units] : expected) {
    ASSERT_TRUE(datasets.contains(name)) << name;
    const hdf5::Dataset& dataset = datasets.at(name);
    EXPECT_EQ(dataset.shape(), shape_and_units.first) << name;
    EXPECT_EQ(dataset.attribute<std::string>("units"), shape_and_units.second)
        << name;
    descriptions.insert(dataset.attribute<std::string>("description"));
  }
  EXPECT_EQ(datasets.size(), expected.size());
  EXPECT_EQ(descriptions.size(), expected.size()) << "one is missing or twice";
}

TEST_F(Record, HoldsWhatItWasGiven) {
  constexpr int ranks = 2;
  RunRecord record(path_, facts_of(ranks), ranks);
  record.add_step(figures_of(1, ranks));
  record.flush();
  record.add_step(figures_of(2, ranks));
  record.add_validation(2, 7.5);
  record.flush();
  const hdf5::File file(path_, hdf5::Access::read);
  const auto reals = [&](const char* name) {
    return file.dataset(name).read<double>();
  };
  using Doubles = std::vector<double>;
  EXPECT_EQ(reals("steps/step"), (Doubles{1, 2}));
  EXPECT_EQ(reals("steps/loss"), (Doubles{9.5, 9}));
  EXPECT_EQ(reals("steps/learning_rate"), (Doubles{1e-3, 2e-3}));
  EXPECT_EQ(reals("steps/gradient_norm"), (Doubles{2, 4}));
  EXPECT_EQ(reals("steps/tokens"), (Doubles{1000, 2000}));
  EXPECT_EQ(reals("validation/step"), (Doubles{2}));
  EXPECT_EQ(reals("validation/loss"), (Doubles{7.5}));
  // [step, rank], row-major; the offsets are those of figures_of().
  const auto expect_offset = [&](const std::string& name, double offset) {
    EXPECT_EQ(
        file.dataset(name).read<double>(),
        (Doubles{1000 + offset, 1100 + offset, 2000 + offset, 2100 + offset}))
        << name;
  };
  for (int i = 0; i < phase_count; ++i) {
    expect_offset(fmt::format("timings/{}", phase_names[i]), i);
  }
  expect_offset("timings/comm_busy", 20);
  expect_offset("timings/comm_exposed", 21);
  expect_offset("comm/calls", 22);
  expect_offset("comm/bytes", 23);
  for (int i = 0; i < category_count; ++i) {
    expect_offset(fmt::format("memory/{}", category_names[i]), 30 + i);
  }
  expect_offset("memory/total", 40);
  expect_offset("memory/peak", 41);
}

TEST_F(Record, StatesTheFactsOfTheRun) {
  const RunRecord record(path_, facts_of(2), 2);
  const hdf5::File file(path_, hdf5::Access::read);
  EXPECT_EQ(file.attribute<std::int64_t>("schema_version"), 1);
  const auto created = file.attribute<std::string>("created");
  EXPECT_EQ(created.size(), 20u) << created;
  EXPECT_EQ(created[10], 'T');
  EXPECT_EQ(created.back(), 'Z');
  EXPECT_EQ(file.attribute<std::string>("command_line"), "train --x");
  EXPECT_EQ(file.attribute<std::string>("sync"), "naive");
  EXPECT_EQ(file.attribute<std::string>("hdf5_version"), hdf5::version());
  EXPECT_EQ(file.attribute<std::int64_t>("world_size"), 2);
  EXPECT_EQ(file.attribute<std::int64_t>("parameters"), 1LL << 40);
  EXPECT_EQ(file.attribute<double>("flops_per_token"), 1.5);
  EXPECT_EQ(file.attribute<std::vector<std::string>>("hostnames"),
            (std::vector<std::string>{"host0", "host1"}));
  const hdf5::Group config = file.group("config");
  EXPECT_EQ(config.attribute<std::string>("steps"), "8");
  EXPECT_EQ(config.attribute<std::string>("lr"), "0.001");
}

TEST_F(Record, SaysHowTheRunEnded) {
  const auto text = [&](const char* name) {
    return hdf5::File(path_, hdf5::Access::read).attribute<std::string>(name);
  };
  RunRecord record(path_, facts_of(1), 1);
  EXPECT_EQ(text("status"), "running");
  EXPECT_EQ(text("error"), "");
  record.set_status("failed", "out of memory");
  EXPECT_FALSE(record.is_whole());
  record.flush();
  EXPECT_EQ(text("status"), "failed");
  EXPECT_EQ(text("error"), "out of memory");
}

TEST_F(Record, KeepsMemoryTimelinesAndTracesAsTables) {
  {
    RunRecord record(path_, facts_of(2), 2);
    record.add_memory_timeline(
        3, 1,
        {10,
         20,
         {{1.5, 100, Category::parameters, "block 0"},
          {12.5, -100, Category::parameters, "block 0"}}});
    record.add_memory_timeline(3, 0, {});
    const TraceRow row{"compute", "forward", 0, 0, 2.5, 7};
    record.add_trace(4, 0, {&row, 1});
  }
  const hdf5::File file(path_, hdf5::Access::read);
  const auto timeline = file.dataset("memory/timeline/step_3/rank_1");
  EXPECT_EQ(timeline.shape(), Shape{2});
  EXPECT_EQ(timeline.attribute<double>("begin_us"), 10);
  EXPECT_EQ(timeline.attribute<double>("end_us"), 20);
  EXPECT_EQ(file.dataset("memory/timeline/step_3/rank_0").shape(), Shape{0});
  EXPECT_EQ(file.dataset("trace/step_4/rank_0").shape(), Shape{1});
}

TEST_F(Record, IsThereAndReadableFromTheStartAndAfterEachFlush) {
  RunRecord record(path_, facts_of(2), 2);
  EXPECT_EQ(record.path(), path_);
  EXPECT_EQ(rows_on_disk(path_), 0);
  for (std::int64_t step = 1; step <= 600; ++step) {
    record.add_step(figures_of(step, 2));
    if (step % 150 != 0) continue;
    EXPECT_EQ(rows_on_disk(path_), step - 150);
    record.flush();
    EXPECT_EQ(rows_on_disk(path_), step);
    expect_only_the_record();
  }
  EXPECT_TRUE(record.take_warnings().empty());
}

TEST_F(Record, IsFlushedWhenDueAndNotBefore) {
  RunRecord record(path_, facts_of(1), 1);
  record.add_step(figures_of(1, 1));
  record.flush_if_due();
  EXPECT_EQ(rows_on_disk(path_), 0);
  // Due after a second, or 50 times the time that a flush took.
  for (int i = 0; i < 200 && rows_on_disk(path_) == 0; ++i) {
    usleep(100'000);
    record.flush_if_due();
  }
  EXPECT_EQ(rows_on_disk(path_), 1);
}

TEST_F(Record, IsWholeWhenAnErrorEndsTheRun) {
  try {
    RunRecord record(path_, facts_of(1), 1);
    record.add_step(figures_of(1, 1));
    record.add_validation(1, 2);
    throw Error("the loss is nan");
  } catch (const Error&) {
  }
  EXPECT_EQ(rows_on_disk(path_), 1);
  EXPECT_EQ(hdf5::File(path_, hdf5::Access::read)
                .dataset("validation/loss")
                .read<double>(),
            std::vector<double>{2});
}

TEST_F(Record, ReplacesThatOfAnEarlierRun) {
  {
    RunRecord record(path_, facts_of(1), 1);
    for (int step = 1; step <= 9; ++step) record.add_step(figures_of(step, 1));
  }
  EXPECT_EQ(rows_on_disk(path_), 9);
  const RunRecord record(path_, facts_of(4), 4);
  EXPECT_EQ(rows_on_disk(path_), 0);
}

TEST_F(Record, AReaderKeepsWhatItOpenedAndDisturbsNothing) {
  RunRecord record(path_, facts_of(1), 1);
  record.add_step(figures_of(1, 1));
  record.flush();
  const hdf5::File reader(path_, hdf5::Access::read);
  for (int step = 2; step <= 5; ++step) {
    record.add_step(figures_of(step, 1));
    record.flush();
    EXPECT_EQ(reader.dataset("steps/step").read<double>(),
              std::vector<double>{1});
    EXPECT_EQ(rows_on_disk(path_), step);
  }
  EXPECT_TRUE(record.take_warnings().empty());
}

TEST_F(Record, SurvivesThatItsFolderVanishes) {
  const std::string folder = folder_ / "runs";
  const std::string path = folder + "/run.h5";
  std::filesystem::create_directory(folder);
  RunRecord record(path, facts_of(1), 1);
  record.add_step(figures_of(1, 1));
  record.flush();
  std::filesystem::remove_all(folder);
  for (int step = 2; step <= 4; ++step) {
    record.add_step(figures_of(step, 1));
    EXPECT_NO_THROW(record.flush());
  }
  const auto warnings = record.take_warnings();
  ASSERT_EQ(warnings.size(), 1u) << "one for one cause";
  expect_parts(warnings[0],
               {"cannot write " + path + ": No such file", "training goes on"});
  EXPECT_TRUE(record.take_warnings().empty());

  // Another cause, another warning.
  test::write_file(folder, "a file");
  record.flush();
  const auto others = record.take_warnings();
  ASSERT_EQ(others.size(), 1u);
  expect_parts(others[0], {path, "Not a directory"});
  std::filesystem::remove(folder);

  std::filesystem::create_directory(folder);
  record.add_step(figures_of(5, 1));
  record.flush();
  EXPECT_EQ(rows_on_disk(path), 5);
  EXPECT_TRUE(record.take_warnings().empty());
}

TEST_F(Record, SurvivesAFullDisk) {
  const std::string disk = folder_ / "disk";
  std::filesystem::create_directory(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "a small file system takes the right to mount one";
  }
  const auto unmount = [&] { umount2(disk.c_str(), MNT_DETACH); };
  struct Finally {
    decltype(unmount)& work;
    ~Finally() { work(); }
  } finally{unmount};

  const std::string path = disk + "/run.h5";
  RunRecord record(path, facts_of(1), 1);
  record.add_step(figures_of(1, 1));
  record.flush();
  ASSERT_EQ(rows_on_disk(path), 1);
  {
    // What is left of the disk.
    std::ofstream filler(disk + "/filler", std::ios::binary);
    for (int i = 0; i < 2048 && filler.flush(); ++i) {
      filler << std::string(1024, 'x');
    }
  }
  for (int step = 2; step <= 5; ++step) {
    record.add_step(figures_of(step, 1));
    EXPECT_NO_THROW(record.flush());
    EXPECT_EQ(rows_on_disk(path), 1) << "the last good one stays";
    EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
  }
  const auto warnings = record.take_warnings();
  ASSERT_EQ(warnings.size(), 1u) << "one for one cause";
  expect_parts(warnings[0], {path, "No space left on device"});

  std::filesystem::remove(disk + "/filler");
  record.flush();
  EXPECT_EQ(rows_on_disk(path), 5) << "no row is lost";
  EXPECT_TRUE(record.take_warnings().empty());
}

TEST_F(Record, RefusesAPathThatCannotBeOne) {
  const auto refusal = [&](const std::string& path) {
    return error_of([&] { RunRecord(path, facts_of(1), 1); });
  };
  for (const std::string& path :
       {std::string("/dev/null"), std::string("/dev/full"),
        folder_.path().string()}) {
    expect_parts(refusal(path), {"the run record", path, "not a regular file"});
  }
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  expect_parts(refusal(folder_ / "none/run.h5"),
               {"the run record", folder_ / "none/run.h5", "No such file"});
  EXPECT_NE(refusal(""), "");
  test::write_file(folder_ / "file", "");
  expect_parts(refusal(folder_ / "file/run.h5"),
               {folder_ / "file/run.h5", "Not a directory"});
  EXPECT_FALSE(std::filesystem::exists("/dev/null.partial"));
}

}  // namespace
}  // namespace lockstep
