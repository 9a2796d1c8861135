#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "core/host_event.h"
#include "ops/cpu/numeric.h"
#include "unit/backends.h"

namespace lockstep::test {
namespace {

TEST(CpuBackend, NamesTheProcessor) {
  const Backend backend = make_cpu_backend(1, Precision::fp32);
  EXPECT_FALSE(backend.device->name().empty());
  EXPECT_EQ(backend.device->kind(), Device::Kind::cpu);
  EXPECT_EQ(backend.device->peak_flops(Precision::fp32), 0);
}

TEST(CpuBackend, RefusesWhatACpuDoesNotHave) {
  EXPECT_THROW(make_cpu_backend(0, Precision::fp32), Error);
  EXPECT_THROW(make_cpu_backend(1, Precision::tf32), Error);
}

TEST(CpuBackend, GivesTheSameResultsOnAnyNumberOfThreads) {
  const std::int64_t rows = 200, width = 96;
  const Floats values = random_floats(rows * width, 1);
  std::vector<Floats> results;
  std::vector<double> sums;
  for (const int threads : {1, 2, 3}) {
    const Backend backend = make_cpu_backend(threads, Precision::fp32);
    Device& device = *backend.device;
    const auto make = [&](Dtype type, Shape shape) {
      return device.allocate(type, shape, Category::activations, "test");
    };
    const Buffer x = make(Dtype::f32, {rows, width});
    const Buffer dx = make(Dtype::f32, {rows, width});
    const Buffer weight = make(Dtype::f32, {width});
    const Buffer dweight = make(Dtype::f32, {width});
    const Buffer inverse = make(Dtype::f32, {rows});
    const Buffer total = make(Dtype::f64, {1});
    const Tensor xt = x.tensor(Dtype::f32, {rows, width});
    const Tensor out = dweight.tensor(Dtype::f32, {width});
    upload(device, xt, values);
    upload(device, inverse.tensor(Dtype::f32, {rows}), Floats(rows, 1));
    upload(device, weight.tensor(Dtype::f32, {width}), Floats(width, 1));
    backend.ops->rmsnorm_backward(dx.tensor(Dtype::f32, {rows, width}), out, xt,
                                  xt, inverse.tensor(Dtype::f32, {rows}),
                                  weight.tensor(Dtype::f32, {width}),
                                  Accumulate::yes);
    backend.ops->add_sum_of_squares(total.tensor(Dtype::f64, {1}),
                                    xt.range(0, rows * width));
    results.emplace_back(width);
    download(device, results.back(), out);
    device.copy_to_host(&sums.emplace_back(), total.tensor(Dtype::f64, {1}));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_EQ(sums[0], sums[2]);
}

TEST(FastExp, IsWithinAMillionthOfTheExactValue) {
  double worst = 0;
  for (float x = -87.3f; x < 88.3f; x += 1.7e-4f) {
    const double wanted = std::exp(double(x));
    worst = std::max(worst, std::abs(fast_exp(x) - wanted) / wanted);
  }
  EXPECT_LE(worst, 2e-7);
}

TEST(FastExp, KeepsItsLimits) {
  EXPECT_EQ(fast_exp(0), 1);
  EXPECT_EQ(fast_exp(-0.0f), 1);
  EXPECT_EQ(fast_exp(-90), 0);
  EXPECT_EQ(fast_exp(-1e30f), 0);
  EXPECT_EQ(fast_exp(-INFINITY), 0);
  EXPECT_EQ(fast_exp(89), INFINITY);
  EXPECT_EQ(fast_exp(1e30f), INFINITY);
  EXPECT_EQ(fast_exp(INFINITY), INFINITY);
  EXPECT_TRUE(std::isnan(fast_exp(NAN)));
}

TEST(HostEvent, CompletesOnceForAllWhoWait) {
  HostEvent event;
  EXPECT_FALSE(event.completed());
  std::thread worker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    event.complete();
  });
  std::thread other([&] { event.wait(); });
  event.wait();
  EXPECT_TRUE(event.completed());
  worker.join();
  other.join();
  event.wait();
}

TEST(HostEvent, TellsTheTimeBetweenTwoLanes) {
  const auto earlier = HostEvent::now();
  HostEvent later;
  EXPECT_THROW(later.milliseconds_since(*earlier), Error);
  std::thread worker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    later.complete();
  });
  later.wait();
  worker.join();
  EXPECT_GE(later.milliseconds_since(*earlier), 20);
  EXPECT_LE(earlier->milliseconds_since(later), -20);
}

TEST(CpuDevice, StartsAPrefetchWhenItsEventHasCompleted) {
  const Backend backend = make_cpu_backend(1, Precision::fp32);
  Device& device = *backend.device;
  const Buffer buffer = device.allocate(4, Category::workspace, "test");
  const Tensor to = buffer.tensor(Dtype::f32, {1});
  float value = 1;
  const auto ready = std::make_shared<HostEvent>();
  std::thread worker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    value = 2;
    ready->complete();
  });
  const Event arrived = device.prefetch(to, &value, ready);
  arrived->wait();
  worker.join();
  EXPECT_EQ(*to.as<float>(), 2);
}

}  // namespace
}  // namespace lockstep::test
