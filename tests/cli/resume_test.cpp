#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "train_runner.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
constexpr int stopped = 75;

class Resume : public TrainTest {
 protected:
  Resume() { write_sequence(); }

  // Runs `steps` steps, with checkpoints in ck, and expects success.
  Finished run(int ranks, const std::string& arguments, int steps,
               const std::string& output = "run.h5") {
    const Finished result =
        train(ranks, fmt::format("{} {} --steps {} --output {}", small_run,
                                 arguments, steps, output));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
  std::vector<double> steps(const std::string& output = "run.h5") const {
    return column(path(output), "steps/step");
  }
  std::vector<double> losses(const std::string& output = "run.h5") const {
    return column(path(output), "steps/loss");
  }
  void flip_bit(const std::string& name, std::int64_t at) const {
    std::fstream file(path(name),
                      std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(at);
    file.put(byte);
  }
};

std::vector<double> one_to(int steps) {
  std::vector<double> all;
  for (int step = 1; step <= steps; ++step) all.push_back(step);
  return all;
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << "\nin\n" << text;
}

const std::string schedule = "--warmup-steps 5 --decay-steps 20 ";

TEST_F(Resume, TheSameStrategyContinuesTheCurveToTheLastBit) {
  for (const char* strategy :
       {"naive", "sharded-optimizer", "zero1", "zero2", "fsdp"}) {
    const std::string options =
        schedule + "--batch-size 2 --grad-accumulation 2 --sync " + strategy;
    run(3, options, 14, "whole.h5");
    run(3, options + " --checkpoint ck --resume auto", 5);
    run(3, options + " --checkpoint ck --resume auto", 14);
    EXPECT_EQ(steps(), one_to(14)) << strategy;
    EXPECT_EQ(losses(), losses("whole.h5")) << strategy;
    fs::remove_all(path("ck"));
  }
}

TEST_F(Resume, WeightsInBf16ContinueToTheLastBit) {
  const std::string options =
      schedule + "--precision bf16 --sampler random --sync fsdp ";
  run(2, options, 14, "whole.h5");
  run(2, options + " --checkpoint ck", 5);
  run(2, options + " --resume ck/latest", 14);
  EXPECT_EQ(losses(), losses("whole.h5"));
}

TEST_F(Resume, OtherStrategiesAndRanksContinueTheCurve) {
  run(4, schedule + "--sync fsdp --batch-size 3", 25, "whole.h5");
  run(4, schedule + "--sync fsdp --batch-size 3 --checkpoint ck", 5);
  const auto all = losses("whole.h5");
  const std::vector<double> expected(all.begin() + 5, all.end());
  for (const auto& [ranks, options] :
       {std::pair(1, "--batch-size 12"),
        {2, "--batch-size 6 --sync zero2"},
        {3, "--batch-size 2 --grad-accumulation 2 --sync sharded-optimizer"},
        {4, "--batch-size 3 --sync bucketed"}}) {
    run(ranks, schedule + options + " --resume ck", 25, "other.h5");
    EXPECT_LE(worst_ratio(losses("other.h5"), expected), 1e-6) << options;
    fs::remove(path("other.h5"));
  }
}

TEST_F(Resume, AnotherPrecisionGoesOnFromTheSameWeights) {
  for (const auto& [before, after] :
       {std::pair("fp32", "bf16"), {"bf16", "fp32"}}) {
    const std::string first = schedule + "--sync fsdp --precision " + before;
    const std::string second = schedule + "--sync zero1 --precision " + after;
    run(2, first, 25, "whole.h5");
    run(2, first + " --checkpoint ck --save-weights w.h5", 5);
    run(2, second + " --resume ck --save-weights same.h5", 5, "none.h5");
    for (const char* name :
         {"token_embeddings.weight", "layers.1.ffn.w2.weight"}) {
      EXPECT_EQ(tensor(path("same.h5"), name), tensor(path("w.h5"), name))
          << after;
    }
    const Finished on = run(2, second + " --resume ck", 25, "on.h5");
    expect_has(on.out, fmt::format("--precision is {} from here on; it was {}",
                                   after, before));
    const auto all = losses("whole.h5");
    EXPECT_LE(worst_ratio(losses("on.h5"), {all.begin() + 5, all.end()}), 1e-2);
    fs::remove_all(path("ck"));
    fs::remove(path("on.h5"));
  }
}

TEST_F(Resume, TheLearningRateGoesOnWhereItWas) {
  run(1, schedule, 20, "whole.h5");
  for (const int stop : {3, 8}) {
    run(1, schedule + "--checkpoint ck", stop);
    const Finished longer = run(1, "--warmup-steps 5 --resume ck", 40, "40.h5");
    expect_has(longer.out, "--decay-steps is 40 from here on; it was 20");
    run(1, schedule + "--checkpoint ck --resume auto", 20);
    EXPECT_EQ(column(path("run.h5"), "steps/learning_rate"),
              column(path("whole.h5"), "steps/learning_rate"));
    fs::remove_all(path("ck"));
    fs::remove(path("40.h5"));
  }
}

TEST_F(Resume, ARequeuedJobAppendsToItsRecordAndAFinishedOneEndsAtOnce) {
  const std::string options = schedule + "--checkpoint ck --resume auto";
  run(2, options, 8);
  run(2, options, 16);
  EXPECT_EQ(steps(), one_to(16));
  for (const char* name : {"timings/step", "memory/total", "comm/bytes"}) {
    EXPECT_EQ(column(path("run.h5"), name).size(), 32u) << name;
  }
  const auto before = losses();
  run(2, options, 16);
  EXPECT_EQ(losses(), before);
}

TEST_F(Resume, ARecordOfOtherRanksIsKeptUnderAnotherName) {
  run(2, "--checkpoint ck --batch-size 1", 8);
  const Finished wider =
      run(1, "--checkpoint ck --resume auto --batch-size 2", 12);
  expect_has(wider.err, "run.until-step-8.h5");
  EXPECT_EQ(steps(), (std::vector<double>{9, 10, 11, 12}));
  EXPECT_EQ(steps("run.until-step-8.h5"), one_to(8));
}

TEST_F(Resume, ADamagedCheckpointGivesWayToTheOneBefore) {
  const std::string options = "--checkpoint ck --checkpoint-every 4 ";
  run(1, "", 12, "whole.h5");
  run(1, options, 8);
  flip_bit("ck/step-00000008.h5", 5000);
  const Finished again = run(2, options + "--resume auto --batch-size 2", 12);
  expect_has(again.out, "step-00000008.h5 is damaged");
  expect_has(again.out, "resumed from ck/step-00000004.h5 after step 4");
  EXPECT_TRUE(fs::exists(path("ck/step-00000008.h5.aside")));

  flip_bit("ck/step-00000012.h5", 100);
  const Finished named =
      train(1, std::string(small_run) + "--resume ck/step-00000012.h5");
  EXPECT_EQ(named.exit_code, 1);
  expect_has(named.err, "is damaged");
  flip_bit("ck/step-00000008.h5", 600);
  flip_bit("ck/step-00000004.h5", 600);
  const Finished none = train(1, small_run + options + "--resume auto");
  EXPECT_EQ(none.exit_code, 1);
  expect_has(none.err, "none of its 3 checkpoints is whole");
}

TEST_F(Resume, CheckpointsOfAnotherRunAreNotOverwritten) {
  run(1, "--checkpoint ck", 4);
  const Finished fresh = train(1, std::string(small_run) + "--checkpoint ck");
  EXPECT_EQ(fresh.exit_code, 1);
  expect_has(fresh.err, "holds checkpoints of an earlier run");
  const Finished other = train(
      2, std::string(small_run) +
             "--checkpoint ck --resume auto --num-heads 4 --num-layers 2");
  EXPECT_EQ(other.exit_code, 1);
  expect_has(other.err, "of another model: --num-heads 2, here 4");
  const Finished nowhere = train(1, std::string(small_run) + "--resume no");
  EXPECT_EQ(nowhere.exit_code, 1);
  expect_has(nowhere.err, "cannot resume from no");
}

TEST_F(Resume, GoingBackSetsWhatCameLaterAside) {
  const std::string options = "--checkpoint ck --checkpoint-every 2 ";
  run(1, options, 6);
  const auto before = losses();
  run(1, options + "--resume ck/step-00000002.h5", 3);
  EXPECT_EQ(steps(), one_to(3));
  EXPECT_EQ(losses()[2], before[2]);
  EXPECT_EQ(fs::read_symlink(path("ck/latest")), "step-00000003.h5");
  EXPECT_TRUE(fs::exists(path("ck/step-00000006.h5.aside")));
  EXPECT_FALSE(fs::exists(path("ck/step-00000006.h5")));
}

TEST_F(Resume, OnlyTheNewestCheckpointsAreKept) {
  run(2, "--checkpoint ck --checkpoint-every 1 --keep 2", 8);
  // A checkpoint that is due while another is being written comes later, so
  // which is the one before the last is open.
  int files = 0;
  for (const auto& file : fs::directory_iterator(path("ck"))) {
    files += file.is_symlink() ? 0 : 1;
  }
  EXPECT_EQ(files, 2);
  EXPECT_EQ(fs::read_symlink(path("ck/latest")), "step-00000008.h5");
}

TEST_F(Resume, WeightsMayStartFromACheckpoint) {
  run(2, "--sync fsdp --checkpoint ck --save-weights w.h5", 8);
  run(1, "--mode forward --init ck/latest --save-weights again.h5", 1, "f.h5");
  EXPECT_EQ(tensor(path("again.h5"), "layers.1.ffn.w2.weight"),
            tensor(path("w.h5"), "layers.1.ffn.w2.weight"));
  flip_bit("ck/step-00000008.h5", 9000);
  const Finished damaged =
      train(1, std::string(small_run) + "--init ck/latest");
  EXPECT_EQ(damaged.exit_code, 1);
  expect_has(damaged.err, "is damaged");
}

TEST_F(Resume, ASignalToTheLauncherOrARankStopsAllAfterOneStep) {
  const std::string options = "--batch-size 2 --decay-steps 2000 ";
  int done = 0;
  for (const char* kill :
       {"kill -USR1 $LAUNCHER", "kill -TERM $(pgrep -P $LAUNCHER | tail -n 1)",
        "kill -INT $(pgrep -P $LAUNCHER | head -n 1)"}) {
    const Finished result = shell(fmt::format(
        "{} {} {} --steps 1000000 --checkpoint ck --checkpoint-every 50 "
        "--resume auto > out.txt & LAUNCHER=$!; "
        "until test \"$(readlink ck/latest)\" \\> step-{:08}.h5; "
        "do sleep 0.05; done; {}; wait $LAUNCHER; CODE=$?; cat out.txt; "
        "exit $CODE",
        launcher(2), small_run, options, done, kill));
    EXPECT_EQ(result.exit_code, stopped) << kill << result.err;
    expect_has(result.out, "stopped by ");
    done = static_cast<int>(steps().size());
    EXPECT_EQ(fs::read_symlink(path("ck/latest")).string(),
              fmt::format("step-{:08}.h5", done))
        << kill;
  }
  run(2, options + "--checkpoint ck --resume auto", done + 5);
  EXPECT_EQ(steps(), one_to(done + 5));
  run(2, options, done + 5, "whole.h5");
  EXPECT_EQ(losses(), losses("whole.h5"));
}

// In MPI_Init, which starts threads, and while the program looks through its
// data. Steps are issued one ahead of those that are reported.
TEST_F(Resume, ASignalBeforeTheFirstStepStopsAfterIt) {
  std::vector<std::int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 200'000'000;
  write("large.bin", bytes_of_values(header));
  fs::resize_file(path("large.bin"), 1024 + 2 * 200'000'000);
  for (const char* moment : {"test $(ls /proc/$RANK/task | wc -l) -gt 1",
                             "grep -q large.bin /proc/$RANK/maps"}) {
    const Finished result = shell(fmt::format(
        "{} {} --data large.bin --steps 1000000 --checkpoint ck & LAUNCHER=$!; "
        "until RANK=$(pgrep -P $LAUNCHER -x train | tail -n 1) && {}; "
        "do :; done 2> /dev/null; kill -USR1 $RANK; wait $LAUNCHER",
        launcher(2), small_run, moment));
    EXPECT_EQ(result.exit_code, stopped) << moment << result.err;
    EXPECT_LE(steps().size(), 2u) << moment;
    EXPECT_TRUE(fs::exists(path("ck/latest"))) << moment;
    fs::remove_all(path("ck"));
  }
}

// mpirun kills a second after it has passed SIGTERM on. A step of this batch
// takes longer.
TEST_F(Resume, ATermThatComesTooLateCostsNoCheckpoint) {
  const std::string options = "--decay-steps 2000 --checkpoint ck ";
  run(2, options, 4);
  const Finished killed = shell(
      fmt::format("{} {} {} --resume auto --batch-size 20000 --steps 1000000 "
                  "> out.txt & until grep -q 'resumed from' out.txt; do sleep "
                  "0.1; done; sleep 0.5; kill -TERM $!; wait $!",
                  launcher(2), small_run, options),
      60);
  EXPECT_NE(killed.exit_code, 0);
  EXPECT_NE(killed.exit_code, 124) << "hung";
  EXPECT_EQ(fs::read_symlink(path("ck/latest")), "step-00000004.h5");
  run(2, options + "--resume auto", 9);
  EXPECT_EQ(steps(), one_to(9));
  run(2, "--decay-steps 2000", 9, "whole.h5");
  EXPECT_EQ(losses(), losses("whole.h5"));
}

TEST_F(Resume, ASecondInterruptEndsAtOnce) {
  // A step that takes long: the first interrupt waits for it.
  const Finished result =
      shell(fmt::format(
                "{} {} --batch-size 20000 & sleep 1; kill -INT $!; sleep 0.2; "
                "kill -INT $!; wait $!",
                launcher(0), small_run),
            20);
  EXPECT_EQ(result.exit_code, 130) << result.err;
}

TEST_F(Resume, TwoRunsDoNotShareAFolder) {
  const Finished result = shell(fmt::format(
      "{0} {1} --steps 1000000 --checkpoint ck > /dev/null & "
      "until test -d ck; do sleep 0.05; done; sleep 0.2; "
      "{0} {1} --checkpoint ck --output other.h5; CODE=$?; kill -9 $!; "
      "exit $CODE",
      launcher(0), small_run));
  EXPECT_EQ(result.exit_code, 1);
  expect_has(result.err, "cannot keep checkpoints in ck: another run has it");
}

}  // namespace
}  // namespace lockstep
