#include "trainer/batch_feeder.h"

#include <gtest/gtest.h>

#include "ops/ops.h"

namespace lockstep {
namespace {

// Every token tells its step, micro-step and place.
class Told : public Batches {
 public:
  static std::int32_t input(std::int64_t step, std::int64_t micro_step,
                            std::int64_t i) {
    return std::int32_t(10'000 * step + 1000 * micro_step + i);
  }
  void fill(std::int64_t step, std::int64_t micro_step,
            std::span<std::int32_t> inputs,
            std::span<std::int32_t> targets) const override {
    for (std::int64_t i = 0; i < std::ssize(inputs); ++i) {
      inputs[i] = input(step, micro_step, i);
      targets[i] = inputs[i] + 500;
    }
    ++filled;
  }
  mutable int filled = 0;
};

std::vector<std::int32_t> values_of(Device& device, const Tensor& tensor) {
  std::vector<std::int32_t> values(tensor.elements());
  device.copy_to_host(values.data(), tensor);
  device.synchronize();
  return values;
}

class BatchFeederOnCpu : public testing::TestWithParam<int> {
 protected:
  Backend backend_ = make_cpu_backend(1, Precision::fp32);
};

TEST_P(BatchFeederOnCpu, GivesEveryStepsMicroStepsInOrder) {
  constexpr std::int64_t tokens = 7;
  const std::int64_t accumulation = GetParam();
  Device& device = *backend_.device;
  const Told batches;
  BatchFeeder feeder(device, batches, tokens, accumulation);
  for (std::int64_t step = 0; step < 5; ++step) {
    const auto of_step = feeder.next();
    ASSERT_EQ(std::ssize(of_step), accumulation);
    for (std::int64_t micro = 0; micro < accumulation; ++micro) {
      const BatchFeeder::Batch& batch = of_step[micro];
      const auto inputs = values_of(device, batch.inputs);
      const auto targets = values_of(device, batch.targets);
      ASSERT_EQ(std::ssize(inputs), tokens);
      ASSERT_EQ(std::ssize(targets), tokens);
      for (std::int64_t i = 0; i < tokens; ++i) {
        EXPECT_EQ(inputs[i], Told::input(step, micro, i));
        EXPECT_EQ(targets[i], Told::input(step, micro, i) + 500);
      }
    }
    feeder.release();
    // The next is prepared by now, and no more than that.
    EXPECT_EQ(batches.filled, (step + 2) * accumulation);
  }
}

INSTANTIATE_TEST_SUITE_P(Accumulation, BatchFeederOnCpu, testing::Values(1, 3));

TEST(BatchFeeder, BooksWhatItHoldsAndGivesItBack) {
  const Backend backend = make_cpu_backend(1, Precision::fp32);
  Device& device = *backend.device;
  const auto held = [&] {
    return device.ledger().figures().bytes[int(Category::workspace)];
  };
  const std::int64_t before = held();
  const Told batches;
  {
    const BatchFeeder feeder(device, batches, 7, 1);
    EXPECT_EQ(held(), before + 2 * 2 * 7 * 4);
  }
  EXPECT_EQ(held(), before);
}

}  // namespace
}  // namespace lockstep
