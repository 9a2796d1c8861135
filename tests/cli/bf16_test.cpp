#include <filesystem>
#include <sstream>

#include "train_runner.h"

namespace lockstep {
namespace {

class Bf16 : public TrainTest {
 protected:
  // Losses of 200 steps on a text: the first 48 KiB of Shakespeare's
  // Coriolanus, which is in the public domain.
  std::vector<double> losses(int ranks, const std::string& arguments) {
    std::filesystem::copy_file(LOCKSTEP_SOURCE_DIR "/tests/cli/text.txt",
                               folder_ / "text.txt",
                               std::filesystem::copy_options::skip_existing);
    const Finished run = train(
        ranks,
        "--data text.txt --vocab-size 256 --context-length 64 --d-model 64 "
        "--d-ff 176 --num-layers 2 --num-heads 2 --lr 1e-3 --warmup-steps 20 "
        "--steps 200 --device cpu --threads 1 " +
            arguments);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return column(path("run.h5"), "steps/loss");
  }
  // From step 1, whose loss is that of the same initial weights, to the last.
  static void expect_tracks(const std::vector<double>& losses,
                            const std::vector<double>& of_fp32) {
    ASSERT_EQ(losses.size(), 200u);
    EXPECT_LE(worst_ratio(losses, of_fp32), 0.01);
    EXPECT_NE(losses, of_fp32);
  }
};

TEST_F(Bf16, LossesOnATextStayWithinOnePercentOfFp32s) {
  const auto fp32 = losses(1, "--batch-size 8 --precision fp32");
  EXPECT_LT(fp32.back(), 0.6 * fp32.front());
  const std::string bf16 = "--batch-size 8 --precision bf16 ";
  expect_tracks(losses(1, bf16), fp32);
  expect_tracks(losses(1, bf16 + "--grad-dtype bf16"), fp32);
  expect_tracks(losses(1,
                       "--batch-size 2 --grad-accumulation 4 --precision bf16 "
                       "--grad-dtype bf16"),
                fp32);
  expect_tracks(
      losses(2,
             "--batch-size 4 --precision bf16 --grad-dtype bf16 --sync zero2"),
      fp32);
}

TEST_F(Bf16, GradientsAreRefusedWithFp32Weights) {
  const Finished run = train(2, "--data random --grad-dtype bf16");
  EXPECT_EQ(run.exit_code, 2);
  const std::string line =
      "error: --grad-dtype bf16 needs --precision bf16; with fp32, gradients "
      "are fp32\n";
  EXPECT_NE(run.err.find(line), std::string::npos) << run.err;
  EXPECT_EQ(run.err.find(line), run.err.rfind(line)) << run.err;
}

TEST_F(Bf16, GradientsTakeHalfTheMemoryInADryRun) {
  const auto gradients = [&](const std::string& arguments) {
    const Finished run =
        train(0,
              "--dry-run=csv --world-size 2 --sync naive --model-size small "
              "--precision bf16 " +
                  arguments);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    std::istringstream lines(run.out);
    for (std::string line; std::getline(lines, line);) {
      constexpr std::string_view row = "memory,gradients,";
      if (line.starts_with(row)) return std::stoll(line.substr(row.size()));
    }
    return 0LL;
  };
  const auto full = gradients(""), half = gradients("--grad-dtype bf16");
  EXPECT_GT(half, 0);
  EXPECT_EQ(2 * half, full);
}

}  // namespace
}  // namespace lockstep
