#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "core/hdf5.h"
#include "train_runner.h"

namespace lockstep {
namespace {

class Run : public TrainTest {
 protected:
  // Trains and returns the record's path.
  std::string record_of(int ranks, const std::string& arguments,
                        const std::string& name) {
    const Finished run =
        train(ranks, fmt::format("{} --output {}.h5 --save-weights {}.w.h5",
                                 arguments, name, name));
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return path(name + ".h5");
  }
  void expect_same_training(const std::string& a, const std::string& b) {
    for (const char* name :
         {"steps/loss", "steps/gradient_norm", "steps/learning_rate"}) {
      EXPECT_LE(worst_ratio(column(path(a + ".h5"), name),
                            column(path(b + ".h5"), name)),
                1e-6)
          << name;
    }
    const hdf5::File file(path(b + ".w.h5"), hdf5::Access::read);
    for (const hdf5::Child& child : file.group("/").children()) {
      EXPECT_LE(relative_error(tensor(path(a + ".w.h5"), child.name),
                               tensor(path(b + ".w.h5"), child.name)),
                1e-6)
          << child.name;
    }
  }
};

TEST_F(Run, NaiveOnSeveralRanksEqualsOneRankOnTheWholeBatch) {
  write_sequence();
  const std::string run = small_run;
  record_of(1, run + "--batch-size 12", "one");
  record_of(2, run + "--batch-size 2 --grad-accumulation 3", "two");
  record_of(3, run + "--batch-size 4", "three");
  record_of(4, run + "--batch-size 1 --grad-accumulation 3 --clip 1", "four");
  expect_same_training("two", "one");
  expect_same_training("three", "one");
  expect_same_training("four", "one");
}

TEST_F(Run, TheLoggedLossIsTheMeanOverRanksAndMicroSteps) {
  write_sequence();
  const std::string run = std::string(small_run) + "--steps 1 ";
  record_of(1, run + "--batch-size 12", "one");
  record_of(2, run + "--batch-size 2 --grad-accumulation 3", "two");
  EXPECT_LE(worst_ratio(column(path("two.h5"), "steps/loss"),
                        column(path("one.h5"), "steps/loss")),
            1e-6);
}

TEST_F(Run, TheValidationLossIsTheSameOnAnyNumberOfRanks) {
  write_sequence();
  const std::string run = std::string(small_run) +
                          "--validation-data seq.npy --validation-every 4 ";
  record_of(1, run + "--batch-size 4 --validation-batches 4", "one");
  record_of(2, run + "--batch-size 2 --validation-batches 4", "two");
  const auto loss = column(path("two.h5"), "validation/loss");
  ASSERT_EQ(loss.size(), 2u);
  EXPECT_LE(worst_ratio(loss, column(path("one.h5"), "validation/loss")), 1e-6);
  EXPECT_EQ(column(path("one.h5"), "validation/step"),
            (std::vector<double>{4, 8}));
}

// id 63 occurs only in the first micro-step of rank 0, id 62 nowhere.
TEST_F(Run, ParametersTouchedInAnEarlierMicroStepOnlyAreSynchronised) {
  std::vector<std::uint16_t> tokens(17 * 16);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::uint16_t>(i % 60);
  }
  tokens[5] = 63;
  write("seq.npy", npy("<u2", fmt::format("({},)", tokens.size()),
                       bytes_of_values(tokens)));
  const std::string run =
      std::string(small_run) + "--steps 1 --weight-decay 0.1 ";
  record_of(1, run + "--batch-size 4", "one");
  for (const char* strategy :
       {"naive", "overlap", "bucketed", "sharded-optimizer", "zero2", "fsdp"}) {
    record_of(2,
              run + "--batch-size 1 --grad-accumulation 2 --sync " + strategy,
              "two");
    expect_same_training("two", "one");
  }

  ASSERT_EQ(train(1, run + "--mode forward --lr 1e-2 --save-weights "
                           "initial.h5")
                .exit_code,
            0);
  const auto before = tensor(path("initial.h5"), "token_embeddings.weight");
  const auto after = tensor(path("two.w.h5"), "token_embeddings.weight");
  const double lr = column(path("two.h5"), "steps/learning_rate")[0];
  for (int i = 62 * 16; i < 63 * 16; ++i) {
    EXPECT_FLOAT_EQ(after[i], before[i] * static_cast<float>(1 - lr * 0.1));
  }
}

TEST_F(Run, FewerTokensThanRanksOrOneTokenAContextTrain) {
  write_sequence(8);
  for (const int ranks : {1, 4}) {
    record_of(ranks,
              std::string(small_run) +
                  "--vocab-size 8 --context-length 1 --batch-size 1",
              "run");
    EXPECT_EQ(column(path("run.h5"), "steps/loss").size(), 8u);
  }
}

TEST_F(Run, RandomSamplingDrawsTheSameSamplesOnAnyNumberOfRanks) {
  write_sequence();
  const std::string run = std::string(small_run) + "--sampler random ";
  record_of(1, run + "--batch-size 4", "one");
  record_of(4, run + "--batch-size 1", "four");
  expect_same_training("four", "one");
}

TEST_F(Run, RandomTokensAreTheSameOnAnyNumberOfRanks) {
  const std::string run =
      "--model-size test --vocab-size 64 --context-length 16 --data random "
      "--device cpu --steps 3 ";
  record_of(1, run + "--batch-size 4", "one");
  record_of(2, run + "--batch-size 2", "two");
  expect_same_training("two", "one");
}

TEST_F(Run, SavedWeightsAreTheInitialOnesOfTheNextRun) {
  write_sequence();
  const std::string run = small_run;
  record_of(1, run + "--batch-size 2", "first");
  ASSERT_EQ(train(2, run + "--init first.w.h5 --mode forward --save-weights "
                           "again.h5")
                .exit_code,
            0);
  const hdf5::File file(path("first.w.h5"), hdf5::Access::read);
  ASSERT_EQ(file.group("/").children().size(), 21u);
  for (const hdf5::Child& child : file.group("/").children()) {
    EXPECT_EQ(tensor(path("again.h5"), child.name),
              tensor(path("first.w.h5"), child.name));
  }
}

TEST_F(Run, Bf16TracksFp32) {
  write_sequence();
  const std::string run = std::string(small_run) + "--steps 50 --batch-size 2 ";
  record_of(2, run, "fp32");
  record_of(2, run + "--precision bf16", "bf16");
  EXPECT_LE(worst_ratio(column(path("bf16.h5"), "steps/loss"),
                        column(path("fp32.h5"), "steps/loss")),
            1e-2);
}

TEST_F(Run, TheRecordHoldsEveryStepOfEveryRank) {
  write_sequence();
  record_of(2, std::string(small_run) + "--timing sync", "run");
  const hdf5::File file(path("run.h5"), hdf5::Access::read);
  for (const char* name :
       {"step", "loss", "learning_rate", "gradient_norm", "tokens"}) {
    EXPECT_EQ(file.dataset(std::string("steps/") + name).shape(),
              (std::vector<std::int64_t>{8}))
        << name;
  }
  for (const char* name :
       {"timings/data",         "timings/zero_grad",    "timings/forward",
        "timings/loss",         "timings/backward",     "timings/grad_sync",
        "timings/optimizer",    "timings/step",         "timings/comm_busy",
        "timings/comm_exposed", "comm/bytes",           "comm/calls",
        "memory/parameters",    "memory/gradients",     "memory/optimizer",
        "memory/activations",   "memory/communication", "memory/workspace",
        "memory/total",         "memory/peak"}) {
    EXPECT_EQ(file.dataset(name).shape(), (std::vector<std::int64_t>{8, 2}))
        << name;
  }
  // 21 parameters, an all-reduce of 2·4 bytes an element each.
  EXPECT_EQ(column(path("run.h5"), "comm/calls")[0], 21);
  EXPECT_EQ(file.group("/").attribute<double>("world_size"), 2);
  const double parameters = file.group("/").attribute<double>("parameters");
  EXPECT_EQ(column(path("run.h5"), "comm/bytes")[0], 8 * parameters);
  EXPECT_EQ(column(path("run.h5"), "steps/tokens")[0], 2 * 4 * 16);
  EXPECT_EQ(file.group("/config").attribute<std::string>("sync"), "naive");
  // Phases make up the step.
  double phases = 0;
  for (const char* name : {"data", "zero_grad", "forward", "loss", "backward",
                           "grad_sync", "optimizer"}) {
    phases += column(path("run.h5"), std::string("timings/") + name)[2];
  }
  EXPECT_NEAR(phases / column(path("run.h5"), "timings/step")[2], 1, 0.05);
}

TEST_F(Run, WarmUpIterationsAreRecordedAndNotMeasured) {
  write_sequence();
  const Finished run =
      train(2, std::string(small_run) +
                   "--warmup-iterations 5 --steps 10 --checkpoint ck "
                   "--checkpoint-every 4 --validation-data seq.npy "
                   "--validation-every 3 --output run.h5");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("over 10 steps after 5 of warm-up"),
            std::string::npos);
  const auto step_ms = column(path("run.h5"), "timings/step");
  ASSERT_EQ(step_ms.size(), 2u * 15);
  // The table is of the ranks' mean; a step lasts until its last rank is done.
  double mean = 0;
  double slowest = 0;
  for (std::size_t row = 5; row < 15; ++row) {
    mean += (step_ms[2 * row] + step_ms[2 * row + 1]) / 20;
    slowest += std::max(step_ms[2 * row], step_ms[2 * row + 1]) / 10;
  }
  const std::string line = run.out.substr(run.out.find("\n  step  ") + 8);
  EXPECT_NEAR(std::stod(line), mean, 6e-4) << run.out;
  // "(123k tok/s)": of the same steps, to three digits.
  const std::string rate = run.out.substr(run.out.rfind('(') + 1);
  std::size_t end = 0;
  double tokens_per_second = std::stod(rate, &end);
  if (rate[end] == 'k') tokens_per_second *= 1e3;
  if (rate[end] == 'M') tokens_per_second *= 1e6;
  const double tokens = column(path("run.h5"), "steps/tokens")[0];
  EXPECT_NEAR(tokens_per_second / (1e3 * tokens / slowest), 1, 6e-3) << run.out;
}

TEST_F(Run, ValidationIsNoPartOfTheSteps) {
  write_sequence();
  const auto shortest_step = [&](const std::string& more) {
    const Finished run = train(1, std::string(small_run) + more +
                                      " --validation-data seq.npy "
                                      "--validation-every 1 --output run.h5");
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(column(path("run.h5"), "validation/loss").size(), 8u);
    return std::ranges::min(column(path("run.h5"), "timings/step"));
  };
  // Many forward passes, beside one with the backward pass and the update.
  EXPECT_LT(shortest_step("--validation-batches 500"),
            10 * shortest_step("--validation-batches 1"));
}

TEST_F(Run, OneStepHasNoSpread) {
  write_sequence();
  const Finished run =
      train(1, std::string(small_run) + "--steps 1 --output run.h5");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out.find("nan"), std::string::npos) << run.out;
}

TEST_F(Run, MemoryTimelinesAndTracesAreOfTheStepsAskedFor) {
  write_sequence();
  record_of(2,
            std::string(small_run) +
                "--sync bucketed --memory-timeline 1,7-8 --trace 2",
            "run");
  const hdf5::File file(path("run.h5"), hdf5::Access::read);
  const auto names = [&](const char* group) {
    std::vector<std::string> all;
    for (const hdf5::Child& child : file.group(group).children()) {
      all.push_back(child.name);
    }
    return all;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names("memory/timeline"), (Names{"step_1", "step_7", "step_8"}));
  EXPECT_EQ(names("memory/timeline/step_1"), (Names{"rank_0", "rank_1"}));
  EXPECT_EQ(names("trace"), (Names{"step_2"}));
  // The deltas add up to what the step held.
  double held = 0;
  for (const std::int64_t delta :
       file.dataset("memory/timeline/step_8/rank_1")
           .read_column<std::int64_t>("delta_bytes")) {
    held += double(delta);
  }
  EXPECT_EQ(held, column(path("run.h5"), "memory/total")[7 * 2 + 1]);
  // All-reduces, which the record counts twice.
  double sent = 0;
  for (const std::int64_t bytes :
       file.dataset("trace/step_2/rank_0").read_column<std::int64_t>("bytes")) {
    sent += double(bytes);
  }
  EXPECT_EQ(2 * sent, column(path("run.h5"), "comm/bytes")[2]);
}

TEST_F(Run, AKilledRunLeavesAReadableRecord) {
  write_sequence();
  const Finished run = shell(launcher(2) + " " + small_run +
                             "--steps 1000000 --output run.h5 & until [ -s "
                             "run.h5 ]; do sleep 0.1; done; sleep 3; "
                             "pkill -9 -f 'output run.h5 "
                             "*$' -P $!; kill -9 $!; wait $!; sleep 1");
  const hdf5::File file(path("run.h5"), hdf5::Access::read);
  const auto steps = file.dataset("steps/step").shape()[0];
  EXPECT_GT(steps, 0);
  EXPECT_EQ(file.dataset("timings/step").shape()[0], steps);
  EXPECT_EQ(file.dataset("memory/peak").shape()[0], steps);
}

TEST_F(Run, AFullDiskCostsTheRecordAndNotTheTraining) {
  write_sequence();
  const Finished run = shell(
      "mkdir small && mount -t tmpfs -o size=256k tmpfs small || exit 99\n" +
      launcher(2) + " " + small_run +
      "--steps 2000 --output small/run.h5; code=$?\n"
      "cp small/run.h5 left.h5; umount small; exit $code");
  if (run.exit_code == 99) GTEST_SKIP() << "mounting is not permitted here";
  EXPECT_EQ(run.exit_code, 1) << run.err;
  EXPECT_NE(run.out.find(" in 2000 steps"), std::string::npos) << run.out;
  EXPECT_EQ(run.err.find("warning: cannot write"),
            run.err.rfind("warning: cannot write"))
      << run.err;
  EXPECT_NE(run.err.find("the model is trained, but small/run.h5 lacks"),
            std::string::npos);
  const hdf5::File file(path("left.h5"), hdf5::Access::read);
  EXPECT_EQ(file.dataset("timings/step").shape()[0],
            file.dataset("steps/loss").shape()[0]);
}

TEST_F(Run, AVanishedFolderCostsTheRecordAndNotTheTraining) {
  write_sequence();
  const Finished run = shell(
      "mkdir out; " + launcher(2) + " " + small_run +
      "--steps 3000 --output out/run.h5 & until [ -s out/run.h5 ]; do sleep "
      "0.1; done; until rm -rf out; do :; done; wait $!");
  EXPECT_EQ(run.exit_code, 1) << run.err;
  EXPECT_NE(run.out.find(" in 3000 steps"), std::string::npos) << run.out;
  EXPECT_EQ(run.err.find("warning: cannot write out/run.h5: No such file"),
            run.err.rfind("warning: cannot write"))
      << run.err;
  EXPECT_NE(run.err.find("the model is trained, but out/run.h5 lacks"),
            std::string::npos);
}

TEST_F(Run, ADryRunTellsWhatARunWouldHoldAndSend) {
  const Finished run =
      train(1,
            "--dry-run --world-size 4 --sync fsdp --model-size medium "
            "--precision bf16");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("423183360 parameters"), std::string::npos);
  // 4 bytes of a gradient each.
  EXPECT_NE(run.out.find("  reduce-scatter     1.58 GiB      26 calls    1.00 "
                         "Ψ\n"),
            std::string::npos)
      << run.out;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run.h5"));
}

TEST_F(Run, ADryRunCountsFlopsWithoutTheLookupAndWithHalfOfAttention) {
  const auto flops = [&](const std::string& options) {
    const Finished run = train(1, "--dry-run --vocab-size 10000 " + options);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    const std::size_t end = run.out.find(" FLOPs a token");
    return run.out.substr(run.out.rfind('\n', end) + 1,
                          end - run.out.rfind('\n', end) - 1);
  };
  // 6 · 164432 + 6·2·16·16, and 6 · 120945408 + 6·12·768·16384.
  EXPECT_EQ(flops("--model-size test --context-length 16"), "989664");
  EXPECT_EQ(flops("--model-size small --context-length 16384"), "1631642112");
}

TEST_F(Run, MoreRanksThanTensorsOrTokensTrain) {
  write_sequence(8);
  const std::string run = std::string(small_run) + "--vocab-size 8 --steps 3 ";
  record_of(1, run + "--batch-size 16 --num-layers 1", "one");
  for (const char* strategy : {"sharded-optimizer", "zero1", "zero2", "fsdp"}) {
    record_of(16, run + "--batch-size 1 --num-layers 1 --sync " + strategy,
              "many");
    expect_same_training("many", "one");
  }
}

TEST_F(Run, AReaderOfTheLiveFileDoesNotDisturbTraining) {
  write_sequence();
  std::thread reader;
  std::atomic<bool> ended = false;
  std::int64_t seen = 0;
  reader = std::thread([&] {
    std::unique_ptr<hdf5::File> held;
    while (!ended) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (!std::filesystem::exists(path("run.h5"))) continue;
      if (!held) {
        held = std::make_unique<hdf5::File>(path("run.h5"), hdf5::Access::read);
      }
      const hdf5::File live(path("run.h5"), hdf5::Access::read);
      seen = std::max(seen, live.dataset("steps/step").shape()[0]);
    }
  });
  const Finished run =
      train(2, std::string(small_run) + "--steps 3000 --output run.h5");
  ended = true;
  reader.join();
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(column(path("run.h5"), "steps/loss").size(), 3000u);
  EXPECT_GT(seen, 0);
}

TEST_F(Run, GeneratesTextFromBytes) {
  write("text.txt", [] {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "the cat sat on the mat. ";
    return text;
  }());
  const Finished run = train(
      1,
      "--d-model 32 --d-ff 64 --num-layers 2 --num-heads 2 --vocab-size 256 "
      "--context-length 32 --data text.txt --device cpu --steps 300 "
      "--batch-size 8 --lr 1e-2 --warmup-steps 20 --generate 60");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  // Past the prompt of 32 bytes, the model goes on with what it learned.
  EXPECT_NE(run.out.find("mat. the cat sat on the mat. the cat"),
            std::string::npos)
      << run.out;
}

TEST_F(Run, HelpAndVersionAnswerOnce) {
  for (const int ranks : {0, 2}) {
    const Finished help = train(ranks, "--help");
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_NE(help.out.find("--grad-accumulation"), std::string::npos);
    EXPECT_EQ(help.out.find("--seed"), help.out.rfind("--seed"));
    const Finished version = train(ranks, "--version");
    EXPECT_EQ(version.exit_code, 0);
    EXPECT_EQ(version.out, "lockstep 0.1.0\n");
  }
}

TEST_F(Run, RanksWithTooFewCoresSaySo) {
  const std::string one_core =
      "taskset -c $(taskset -pc $$ | sed 's/.*: //; s/[-,].*//') ";
  const std::string world =
      " --model-size test --data random --device cpu --print-world";
  const Finished eight = shell(one_core + launcher(8) + world);
  EXPECT_EQ(eight.exit_code, 0);
  EXPECT_NE(eight.err.find("ranks 0-7 on "), std::string::npos) << eight.err;
  EXPECT_NE(eight.err.find("oversubscribed: 8 threads take turns on 1 core ("),
            std::string::npos)
      << eight.err;
  // As Open MPI binds one rank or two.
  const Finished bound = shell("mpirun -np 1 --bind-to core " LOCKSTEP_TRAIN +
                               world + " --threads 2");
  EXPECT_NE(bound.err.find("rank 0 runs 2 threads on 1 core ("),
            std::string::npos)
      << bound.err;
  const Finished alone = shell(one_core + launcher(0) + world + " --threads 1");
  EXPECT_EQ(alone.err, "");
}

TEST_F(Run, ThreadsFollowTheOption) {
  write_sequence();
  const Finished run =
      shell(launcher(0) + " " + small_run +
            "--threads 1 --steps 200000 --output run.h5 & until [ -s run.h5 ]; "
            "do sleep 0.1; done; sleep 1; ls "
            "/proc/$!/task | wc -l; kill -9 $!");
  // The main thread, the communication lane, MPI's helpers, and no BLAS pool:
  // as many with --threads 2, plus one.
  const Finished two =
      shell(launcher(0) + " " + small_run +
            "--threads 2 --steps 200000 --output run.h5 & until [ -s run.h5 ]; "
            "do sleep 0.1; done; sleep 1; ls "
            "/proc/$!/task | wc -l; kill -9 $!");
  const auto last_number = [](const std::string& text) {
    return std::stoi(text.substr(text.find_last_of('\n', text.size() - 2) + 1));
  };
  EXPECT_EQ(last_number(two.out), last_number(run.out) + 1) << run.out;
}

}  // namespace
}  // namespace lockstep
