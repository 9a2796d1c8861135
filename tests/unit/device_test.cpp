#include <cstdint>

#include "unit/backends.h"

namespace lockstep::test {
namespace {

class OnDevice : public BackendTest {};
INSTANTIATE_BACKENDS(OnDevice);

TEST_P(OnDevice, GivesZeroedAlignedMemory) {
  for (const std::int64_t count : {1, 7, 1000, 3'000'000}) {
    const Tensor tensor = zeros(Dtype::f32, {count});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data) % 256, 0u);
    EXPECT_EQ(get(tensor), Floats(count));
  }
}

TEST_P(OnDevice, BooksMemoryByCategory) {
  const auto held = [&] { return device().ledger().figures(); };
  const MemoryFigures before = held();
  {
    const Buffer buffer = device().allocate(1000, Category::optimizer, "test");
    EXPECT_EQ(held().total, before.total + 1000);
    EXPECT_EQ(held().bytes[int(Category::optimizer)],
              before.bytes[int(Category::optimizer)] + 1000);
  }
  EXPECT_EQ(held().total, before.total);
  EXPECT_EQ(held().bytes, before.bytes);
  EXPECT_GE(held().peak, before.total + 1000);
}

TEST_P(OnDevice, SaysWhatItHoldsWhenMemoryRunsOut) {
  const Buffer held = device().allocate(3 << 20, Category::optimizer, "test");
  try {
    device().allocate(std::int64_t{1} << 59, Category::activations, "too much");
    FAIL() << "512 PiB were given";
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const char* part : {"too much", " PiB;", "optimizer 3.00 MiB"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
}

TEST_P(OnDevice, CopiesThereAndBack) {
  const Floats values = random_floats(1001, 1);
  EXPECT_EQ(get(fp32(values, {1001})), values);
  EXPECT_EQ(get(activations(values, {7, 143})), rounded(values));
  EXPECT_THROW(upload(device(), zeros(Dtype::f32, {1000}), values), Error);
  EXPECT_THROW(upload(device(), zeros(Dtype::i32, {1001}), values), Error);
}

TEST_P(OnDevice, ZerosATensorAndNothingElse) {
  const Tensor tensor = fp32(Floats(100, 1), {100});
  device().zero(tensor.range(10, 80));
  const Floats got = get(tensor);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(got[i], i < 10 || i >= 90) << i;
}

TEST_P(OnDevice, PrefetchesWhatTheComputeLaneMayUseAfterItsEvent) {
  const HostBuffer host = device().allocate_host(4000);
  auto* values = static_cast<float*>(host.get());
  for (int i = 0; i < 1000; ++i) values[i] = float(i);
  const Tensor tensor = zeros(Dtype::f32, {1000});
  const Event arrived = device().prefetch(tensor, values, device().record());
  device().wait(arrived);
  ops().add(tensor, tensor);
  const Floats got = get(tensor);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(got[i], 2 * float(i));
  EXPECT_TRUE(arrived->completed());
}

TEST_P(OnDevice, TimesItsWorkByEvents) {
  const Tensor x = activations(random_floats(512 * 512, 1), {512, 512});
  const Tensor y = zeros(dtype(), {512, 512});
  const Event start = device().record();
  for (int i = 0; i < 5; ++i) ops().linear(y, x, x);
  const Event end = device().record();
  end->wait();
  EXPECT_TRUE(start->completed());
  EXPECT_TRUE(end->completed());
  EXPECT_GT(end->milliseconds_since(*start), 0);
  EXPECT_LT(end->milliseconds_since(*start), 60'000);
}

TEST_P(OnDevice, CountsADefaultEventAsCompleted) {
  device().wait(Event());
  device().synchronize();
}

}  // namespace
}  // namespace lockstep::test
