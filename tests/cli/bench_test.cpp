#include <fmt/format.h>

#include <cmath>

#include "core/hdf5.h"
#include "train_runner.h"

namespace lockstep {
namespace {

class Bench : public TrainTest {
 protected:
  Finished bench(const std::string& arguments) const {
    return shell(std::string(LOCKSTEP_BENCH) + " " + arguments, 120);
  }
  // A column of the results.
  template <class T>
  std::vector<T> results(const std::string& table,
                         const std::string& name) const {
    return hdf5::File(path("bench.h5"), hdf5::Access::read)
        .dataset(table)
        .read_column<T>(name);
  }
};
const char* const quick = " --device cpu --warmup-iterations 0 --iterations 2 ";

TEST_F(Bench, AttentionSweepsSequenceLengths) {
  const Finished run = bench("attention --seq-lens 16..64 --head-dims 8,16" +
                             std::string(quick));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto tokens = results<std::int64_t>("attention", "tokens");
  EXPECT_EQ(tokens, (std::vector<std::int64_t>{16, 16, 32, 32, 64, 64, 16, 16,
                                               32, 32, 64, 64}));
  const auto memory = results<double>("attention", "memory");
  // flash, then naive: whose scores are 8 · T² · 4 bytes more.
  for (std::size_t i = 0; i < tokens.size(); i += 2) {
    const double scores = 8.0 * double(tokens[i] * tokens[i]) * 4 / (1 << 20);
    EXPECT_NEAR(memory[i + 1] - memory[i], scores, 1e-9);
  }
  for (const char* column : {"forward", "backward", "both"}) {
    for (const double ms : results<double>("attention", column)) {
      EXPECT_GT(ms, 0) << column;
    }
  }
}

TEST_F(Bench, GoesOnAfterRunningOutOfMemory) {
  const Finished run = bench(
      "attention --batch 1 --heads 40 --head-dims 2 --attention naive "
      "--seq-lens 65536,16" +
      std::string(quick));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("OUT OF MEMORY: 640 GiB more wanted"),
            std::string::npos)
      << run.out;
  const auto forward = results<double>("attention", "forward");
  ASSERT_EQ(forward.size(), 2U);
  EXPECT_TRUE(std::isnan(forward[0]));
  EXPECT_GT(forward[1], 0);
}

TEST_F(Bench, ChecksEveryKernelAgainstTheCpus) {
  const Finished run = bench(
      "kernels --tokens 64 --context-length 32 --d-model 64 --d-ff 96 "
      "--vocab-size 50 --parameters 1000" +
      std::string(quick));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (const double error : results<double>("kernels", "difference")) {
    EXPECT_LE(error, 1e-6);
  }
  for (const double rate : results<double>("kernels", "rate")) {
    EXPECT_GT(rate, 0);
  }
}

TEST_F(Bench, MultipliesTheLayersOfAModel) {
  const Finished run =
      bench("gemm --model-size test --tokens 32 --precisions fp32" +
            std::string(quick));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(results<double>("gemm", "time").size(), 15U);
}

TEST_F(Bench, SumsRowsAsAProductWould) {
  const Finished run =
      bench("weighted-sum --rows 7,64 --columns 13,64" + std::string(quick));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(results<double>("weighted_sum", "kernel").size(), 4U);
}

TEST_F(Bench, RefusesWhatItDoesNotKnow) {
  const auto expect = [&](const std::string& arguments,
                          const std::string& message) {
    const Finished run = bench(arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_NE(run.err.find(message), std::string::npos) << run.err;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  };
  expect("", "a benchmark comes first, attention, kernels");
  expect("atention", "'atention': a benchmark comes first");
  expect("attention --seq-len 8", "did you mean --seq-lens");
  expect("attention --seq-lens 8..", "--seq-lens: expected whole numbers");
  expect("attention --seq-lens 8..4", "--seq-lens: expected whole numbers");
  expect("attention --precisions fp32,fp8", "--precisions: expected a list");
  expect("attention some.cfg", "an option starts with --");
  expect("kernels --d-model 65", "--d-model 65 is no multiple of 64");
  expect("weighted-sum --rows 1,2", "--rows has 2 numbers and --columns 3");
  const Finished run =
      bench("attention --output /no/such/folder/b.h5" + std::string(quick));
  EXPECT_EQ(run.exit_code, 1);
}

// --- collectives ------------------------------------------------------------

class CollectivesBench : public Bench {
 protected:
  Finished collectives(int ranks, const std::string& arguments,
                       const std::string& environment = "") const {
    return shell(
        fmt::format("mpirun -np {} --oversubscribe --bind-to none {} "
                    "{} collectives --device cpu --warmup-iterations "
                    "1 --iterations 3 {}",
                    ranks, environment, LOCKSTEP_BENCH, arguments));
  }
};

TEST_F(CollectivesBench, MeasuresEachInAndOutOfPlaceAndChecksIt) {
  for (const int ranks : {1, 2, 3}) {
    const Finished run = collectives(
        ranks,
        "--op all_reduce,reduce_scatter,all_gather,broadcast --dtype "
        "float,bfloat16 --min-bytes 1K --max-bytes 100K --factor 10");
    ASSERT_EQ(run.exit_code, 0) << run.out << run.err;
    const auto size = results<std::int64_t>("collectives", "size");
    ASSERT_EQ(size.size(), 4U * 2 * 3);
    // Shards of a multiple of 16 bytes, on each rank.
    EXPECT_EQ(size[0], 1024);
    EXPECT_EQ(size[6], 1024 / ranks / 16 * 16 * ranks);
    EXPECT_EQ(results<std::int64_t>("collectives", "count")[6],
              1024 / ranks / 16 * 4);
    for (const char* prefix : {"", "in_place_"}) {
      const auto column = [&](const char* name) {
        return results<double>("collectives", prefix + std::string(name));
      };
      const auto time = column("time"), algbw = column("algbw");
      const auto busbw = column("busbw"), wrong = column("wrong");
      for (std::size_t i = 0; i < size.size(); ++i) {
        EXPECT_GT(time[i], 0);
        EXPECT_EQ(wrong[i], 0) << i << run.out;
        EXPECT_NEAR(algbw[i], double(size[i]) / time[i] / 1e3, 1e-9 * algbw[i]);
        const double share = (ranks - 1.0) / ranks;
        const double factor = i < 6 ? 2 * share : i < 18 ? share : 1;
        EXPECT_NEAR(busbw[i], algbw[i] * factor, 1e-9 * algbw[i]) << i;
      }
    }
  }
}

TEST_F(CollectivesBench, AWrongElementIsCountedAndFails) {
  const std::string wrong = std::string("-x LD_PRELOAD=") + LOCKSTEP_WRONG_MPI;
  const Finished run =
      collectives(2, "--min-bytes 1K --max-bytes 16K --factor 16", wrong);
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_NE(run.out.find("WRONG"), std::string::npos) << run.out;
  EXPECT_NE(run.err.find("WRONG"), std::string::npos) << run.err;
  // 256 floats are right; of 4096 one is not, on one of the ranks.
  EXPECT_EQ(results<double>("collectives", "wrong"),
            (std::vector<double>{0, 1}));
  EXPECT_EQ(
      collectives(2, "--min-bytes 16K --max-bytes 16K --check=false", wrong)
          .exit_code,
      0);
}

TEST_F(CollectivesBench, RefusesSizesThatMakeNoSense) {
  for (const char* options :
       {"--min-bytes 2M --max-bytes 1M", "--min-bytes 1T", "--min-bytes 0",
        "--min-bytes -1", "--max-bytes K", "--factor 1", "--op sum",
        "--dtype int"}) {
    const Finished run =
        bench(std::string("collectives --device cpu ") + options);
    EXPECT_EQ(run.exit_code, 2) << options << run.out;
    EXPECT_NE(run.err.find("error"), std::string::npos) << options;
  }
  const Finished run = collectives(2, "--op all_gather --min-bytes 8");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_NE(run.err.find("8 bytes are too few"), std::string::npos) << run.err;
}

}  // namespace
}  // namespace lockstep
