#include "trainer/phase_clock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <numeric>

#include "ops/ops.h"

namespace lockstep {
namespace {

class PhaseClockOnCpu : public testing::Test {
 protected:
  static void work(int ms) { usleep(1000 * ms); }
  static double at(const std::array<double, phase_count>& ms, Phase phase) {
    return ms[static_cast<int>(phase)];
  }
  // Of all phases but the whole.
  static double sum(const std::array<double, phase_count>& ms) {
    return std::accumulate(ms.begin(), ms.end(), 0.0) - at(ms, Phase::step);
  }
  Backend backend_ = make_cpu_backend(1, Precision::fp32);
  PhaseClock clock_{*backend_.device, /*synchronise=*/false};
};

TEST_F(PhaseClockOnCpu, SumsPhasesThatRepeat) {
  const auto begin = std::chrono::steady_clock::now();
  clock_.begin_step(1);
  for (int micro_step = 0; micro_step < 3; ++micro_step) {
    clock_.enter(Phase::forward);
    work(10);
    clock_.enter(Phase::backward);
    work(20);
  }
  clock_.enter(Phase::optimizer);
  work(5);
  clock_.end_step()->wait();
  const std::chrono::duration<double, std::milli> whole =
      std::chrono::steady_clock::now() - begin;
  const auto ms = clock_.milliseconds(1);
  EXPECT_GE(at(ms, Phase::forward), 30);
  EXPECT_GE(at(ms, Phase::backward), 60);
  EXPECT_GE(at(ms, Phase::optimizer), 5);
  // Sleep overshoots on a busy machine, so the bound is the whole's own time;
  // repeats that were counted twice would exceed it.
  EXPECT_NEAR(at(ms, Phase::step), sum(ms), 1e-6);
  EXPECT_LE(at(ms, Phase::step), whole.count());
  EXPECT_EQ(at(ms, Phase::data), 0);
  EXPECT_EQ(at(ms, Phase::grad_sync), 0);
}

TEST_F(PhaseClockOnCpu, TheStepIsTheWhole) {
  clock_.begin_step(1);
  clock_.enter(Phase::data);
  work(3);
  clock_.enter(Phase::forward);
  work(4);
  clock_.enter(Phase::data);
  work(5);
  clock_.end_step()->wait();
  const auto ms = clock_.milliseconds(1);
  EXPECT_GE(at(ms, Phase::step), 12);
  EXPECT_NEAR(at(ms, Phase::step), sum(ms), 1e-6);
}

TEST_F(PhaseClockOnCpu, KeepsStepsThatAreInFlightApart) {
  for (int step = 1; step <= PhaseClock::slots; ++step) {
    clock_.begin_step(step);
    clock_.enter(step % 2 == 1 ? Phase::forward : Phase::backward);
    work(2 * step);
    clock_.end_step();
    work(30);  // between steps: no one's
  }
  for (int step = 1; step <= PhaseClock::slots; ++step) {
    const auto ms = clock_.milliseconds(step);
    const bool odd = step % 2 == 1;
    EXPECT_GE(at(ms, odd ? Phase::forward : Phase::backward), 2 * step);
    EXPECT_EQ(at(ms, odd ? Phase::backward : Phase::forward), 0);
    EXPECT_NEAR(at(ms, Phase::step), sum(ms), 1e-6);
    EXPECT_EQ(clock_.milliseconds(step), ms);
  }
  // A slot is used again from the start.
  clock_.begin_step(PhaseClock::slots + 1);
  clock_.enter(Phase::loss);
  clock_.end_step();
  EXPECT_EQ(at(clock_.milliseconds(PhaseClock::slots + 1), Phase::forward), 0);
}

}  // namespace
}  // namespace lockstep
