#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>

#include "core/hdf5.h"
#include "train_runner.h"

namespace lockstep {
namespace {

// Every bad input: one clear line from us on standard error, an exit code that
// isn't zero, no hang and no output file.
class BadInput : public TrainTest {
 protected:
  // Runs on one rank alone and on two, and expects `said` in the error line.
  void expect_refused(const std::string& arguments, const std::string& said,
                      int exit_code) {
    for (const int ranks : {0, 2}) {
      SCOPED_TRACE(fmt::format("{} ranks: {}", ranks, arguments));
      const Finished run =
          train(ranks, arguments + " --output refused.h5", 120);
      EXPECT_EQ(run.exit_code, exit_code) << run.out << run.err;
      EXPECT_EQ(errors_in(run.err), 1) << run.err;
      EXPECT_NE(run.err.find(said), std::string::npos) << run.err;
      EXPECT_FALSE(std::filesystem::exists(folder_ / "refused.h5"));
    }
  }
  void expect_bad_data(const std::string& source, const std::string& said) {
    expect_refused(fmt::format("--model-size test --vocab-size 64 "
                               "--context-length 16 --device cpu --data {}",
                               source),
                   said, 1);
  }

  // Our error lines; mpirun adds remarks of its own.
  static long errors_in(const std::string& err) {
    long count = 0;
    std::size_t at = 0;
    while (at < err.size()) {
      count += err.compare(at, 5, "error") == 0;
      at = std::min(err.find('\n', at), err.size() - 1) + 1;
    }
    return count;
  }
};

TEST_F(BadInput, DataThatIsNotThere) {
  expect_bad_data("nowhere.npy", "nowhere.npy");
  expect_bad_data("nowhere.h5:/tokens", "nowhere.h5");
  expect_bad_data("tokens.parquet", "tokens.parquet");
}

TEST_F(BadInput, DataThatIsEmptyTruncatedOrOfAnotherType) {
  write("empty.npy", "");
  expect_bad_data("empty.npy", "empty.npy");
  write("short.npy", npy("<u2", "(100,)", std::string(90, '\0')));
  expect_bad_data("short.npy", "short.npy");
  write("float.npy", npy("<f4", "(100,)", std::string(400, '\0')));
  expect_bad_data("float.npy", "f4");
  write("odd.bin", std::string(101, '\0'));
  expect_bad_data("odd.bin", "101");
}

TEST_F(BadInput, DataShorterThanOneSample) {
  write("few.npy", npy("<u2", "(16,)", std::string(32, '\0')));
  expect_bad_data("few.npy", "17");
}

TEST_F(BadInput, ATokenOutsideTheVocabularyIsNamedWithItsPosition) {
  std::vector<std::uint16_t> tokens(500, 3);
  tokens[321] = 64;
  write("high.npy", npy("<u2", "(500,)", bytes_of_values(tokens)));
  expect_bad_data("high.npy", "321");
  expect_bad_data("high.npy", "64");
  std::vector<std::int64_t> negative(500, 3);
  negative[77] = -1;
  write("negative.npy", npy("<i8", "(500,)", bytes_of_values(negative)));
  expect_bad_data("negative.npy", "77");
}

TEST_F(BadInput, ATokenFarIntoALargeFileIsNamedToo) {
  // llm.c layout, 1.2e9 tokens, sparse on disk.
  std::vector<std::int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 1'200'000'000;
  write("large.bin", bytes_of_values(header));
  const Finished made = shell(
      "truncate -s $((1024 + 2 * 1200000000)) large.bin && printf '\\140\\352' "
      "| dd of=large.bin bs=1 seek=$((1024 + 2 * 1100000000)) conv=notrunc");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  expect_bad_data("large.bin", "1100000000");
}

TEST_F(BadInput, ModelShapesThatDoNotFit) {
  const std::string base = "--data random --device cpu --context-length 8 ";
  expect_refused(base + "--d-model 50 --d-ff 8 --num-layers 1 --num-heads 3",
                 "--num-heads 3", 2);
  expect_refused(base + "--d-model 9 --d-ff 8 --num-layers 1 --num-heads 3",
                 "odd", 2);
}

TEST_F(BadInput, WeightsThatAreNotThisModels) {
  write_sequence();
  ASSERT_EQ(train(1, std::string(small_run) + "--save-weights w.h5").exit_code,
            0);
  const std::string run = small_run;
  expect_refused(run + "--init nothing.h5", "nothing.h5", 1);
  expect_refused(run + "--init w.h5 --num-layers 3", "layers.2.ln1.weight", 1);
  expect_refused(run + "--init w.h5 --num-layers 1", "layers.1.", 1);
  expect_refused(run + "--init w.h5 --d-ff 40", "ffn.w1.weight", 1);
  expect_refused(run + "--init w.h5:/group", "/group", 1);
}

TEST_F(BadInput, OutputsThatCannotBeWritten) {
  write_sequence();
  const std::string run = small_run;
  for (const char* output : {"missing/run.h5", "/dev/null", "/dev/full", "."}) {
    const Finished refused = train(2, run + "--output " + output);
    EXPECT_EQ(refused.exit_code, 1) << refused.out;
    EXPECT_NE(refused.err.find(output), std::string::npos) << refused.err;
    EXPECT_EQ(refused.out.find("step "), std::string::npos)
        << "training had begun";
  }
  expect_refused(run + "--save-weights missing/w.h5", "missing/w.h5", 1);
}

TEST_F(BadInput, OptionsThatDoNotExistSuggestTheNearest) {
  expect_refused("--data random --batchsize 3", "--batch-size", 2);
  expect_refused("--data random --sync niave", "naive", 2);
  expect_refused("--data random --precision fp8", "fp8", 2);
  write("bad.cfg", "stepz = 3\n");
  expect_refused("bad.cfg --data random", "steps", 2);
}

TEST_F(BadInput, ValuesOutOfTheirRange) {
  for (const char* option :
       {"--steps 0", "--steps -3", "--batch-size 0", "--grad-accumulation 0",
        "--lr nan", "--lr inf", "--lr -1", "--clip -1", "--beta1 1",
        "--context-length 0", "--threads -1", "--seed -1", "--steps 3.5",
        "--steps 99999999999999999999"}) {
    const std::string name = std::string(option).substr(2);
    expect_refused(std::string("--data random --device cpu ") + option,
                   name.substr(0, name.find(' ')), 2);
  }
}

TEST_F(BadInput, NoneOnTwoRanks) {
  const Finished run =
      train(2, "--model-size test --data random --device cpu --sync none");
  EXPECT_NE(run.exit_code, 0);
  EXPECT_NE(run.err.find("--sync none"), std::string::npos) << run.err;
}

TEST_F(BadInput, CudaWhereThereIsNone) {
  const Finished run =
      shell("CUDA_VISIBLE_DEVICES= " + launcher(2) +
            " --model-size test --data random --device cuda --share-gpu");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(errors_in(run.err), 1) << run.err;
  EXPECT_NE(run.err.find("--device cuda"), std::string::npos) << run.err;
}

TEST_F(BadInput, AModelThatDoesNotFitSaysWhatHoldsTheMemoryAndIsRecorded) {
  if (!memory_can_be_limited) GTEST_SKIP() << "with this sanitizer";
  const Finished run = shell("ulimit -v 8000000; " + launcher(2) +
                             " --model-size xl --data random --device cpu "
                             "--context-length 16 --output run.h5");
  EXPECT_EQ(run.exit_code, 1) << run.out << run.err;
  EXPECT_EQ(errors_in(run.err), 1) << run.err;
  EXPECT_NE(run.err.find("out of memory on"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("parameters"), std::string::npos) << run.err;
  const hdf5::File file(path("run.h5"), hdf5::Access::read);
  EXPECT_EQ(file.attribute<std::string>("status"), "failed");
  EXPECT_NE(file.attribute<std::string>("error").find("out of memory"),
            std::string::npos);
  EXPECT_EQ(file.dataset("steps/step").shape()[0], 0);
}

TEST_F(BadInput, RanksWithDifferentOptions) {
  for (const char* options :
       {"--steps 1|--steps 2", "--seed 1|--seed 2", "--sync naive|--lr 1",
        "--grad-accumulation 1|--grad-accumulation 2",
        "--precision fp32|--precision bf16"}) {
    const std::string both = options;
    const auto bar = both.find('|');
    const std::string common = std::string(LOCKSTEP_TRAIN) +
                               " --model-size test --data random --device cpu ";
    const Finished run =
        shell(fmt::format("mpirun --oversubscribe -np 1 {0}{1} : -np 1 {0}{2}",
                          common, both.substr(0, bar), both.substr(bar + 1)),
              60);
    EXPECT_EQ(run.exit_code, 1) << options << run.err;
    EXPECT_NE(run.err.find("ranks disagree"), std::string::npos) << run.err;
  }
}

TEST_F(BadInput, AStepThatIsNotFiniteStopsAndKeepsTheRecord) {
  write_sequence();
  const Finished run = train(
      2,
      "--model-size test --vocab-size 64 --context-length 16 --data seq.npy "
      "--device cpu --lr 1e30 --clip 0 --steps 8 --output run.h5");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(errors_in(run.err), 1) << run.err;
  EXPECT_NE(run.err.find("at step"), std::string::npos) << run.err;
  // Whichever comes first, the loss or the gradient.
  const auto loss = column(path("run.h5"), "steps/loss");
  const auto norm = column(path("run.h5"), "steps/gradient_norm");
  ASSERT_FALSE(loss.empty());
  EXPECT_FALSE(std::isfinite(loss.back()) && std::isfinite(norm.back()));
  EXPECT_TRUE(std::isfinite(loss.front()));
  const hdf5::File file(path("run.h5"), hdf5::Access::read);
  EXPECT_EQ(file.attribute<std::string>("status"), "failed");
  EXPECT_NE(file.attribute<std::string>("error").find(" at step "),
            std::string::npos);
}

TEST_F(BadInput, TasksThatSlurmStartedApart) {
  write_sequence();
  const Finished run =
      shell("SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_NTASKS=4 SLURM_PROCID=2 " +
            launcher(0) + " " + small_run);
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find("Slurm started 4 tasks, MPI sees 1"),
            std::string::npos)
      << run.err;
  EXPECT_EQ(
      shell("SLURM_JOB_ID=1 SLURM_NTASKS=4 " + launcher(0) + " " + small_run)
          .exit_code,
      0);
}

}  // namespace
}  // namespace lockstep
