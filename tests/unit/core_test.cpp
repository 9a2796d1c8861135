#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "core/dtype.h"
#include "core/memory_ledger.h"
#include "core/random.h"
#include "core/tensor.h"

namespace lockstep {
namespace {

TEST(Shape, KnowsItsElementsAndText) {
  EXPECT_EQ((Shape{4, 1024}.elements()), 4096);
  EXPECT_EQ((Shape{4, 1024}.text()), "[4, 1024]");
  EXPECT_EQ((Shape{4, 1024}.with_first(2)), (Shape{2, 1024}));
  EXPECT_EQ((Shape{1 << 20, 1 << 20}.elements()), std::int64_t{1} << 40);
  EXPECT_NE((Shape{4}), (Shape{4, 1}));
  EXPECT_THROW((Shape{1, 2, 3, 4, 5, 6}), Error);
}

TEST(Tensor, ViewsPartsOfItsMemory) {
  std::array<float, 24> memory{};
  const Tensor tensor(memory.data(), Dtype::f32, {6, 4});
  EXPECT_EQ(tensor.bytes(), 96);
  EXPECT_EQ(tensor.range(5, 7).as<float>(), &memory[5]);
  EXPECT_EQ(tensor.rows(2, 3).as<float>(), &memory[8]);
  EXPECT_EQ(tensor.rows(2, 3).shape, (Shape{3, 4}));
  EXPECT_EQ(tensor.reshaped({2, 3, 4}).shape, (Shape{2, 3, 4}));
  const Tensor narrow(memory.data(), Dtype::bf16, {6, 4});
  EXPECT_EQ(static_cast<void*>(narrow.range(4, 1).as<bfloat16>()),
            static_cast<void*>(&memory[2]));
}

TEST(Tensor, RefusesPartsThatItDoesNotHave) {
  std::array<float, 24> memory{};
  const Tensor tensor(memory.data(), Dtype::f32, {6, 4});
  EXPECT_THROW(tensor.range(20, 5), Error);
  EXPECT_THROW(tensor.range(-1, 5), Error);
  EXPECT_THROW(tensor.rows(4, 3), Error);
  EXPECT_THROW(tensor.reshaped({5, 5}), Error);
  EXPECT_THROW(tensor.as<double>(), Error);
  EXPECT_FALSE(Tensor());
}

TEST(Bfloat16, RoundsToTheNearestEvenAndKeepsNan) {
  EXPECT_EQ(float(bfloat16(1.0f)), 1.0f);
  EXPECT_EQ(float(bfloat16(1.00390625f)), 1.0f);
  EXPECT_EQ(float(bfloat16(1.01171875f)), 1.015625f);
  EXPECT_EQ(float(bfloat16(-INFINITY)), -INFINITY);
  EXPECT_TRUE(std::isnan(float(bfloat16(NAN))));
}

TEST(MemoryLedger, KeepsFiguresByCategoryAndThePeak) {
  MemoryLedger ledger;
  ledger.add(100, Category::parameters, "a");
  ledger.add(50, Category::gradients, "b");
  ledger.remove(100, Category::parameters, "a");
  ledger.add(20, Category::gradients, "c");
  const MemoryFigures figures = ledger.figures();
  EXPECT_EQ(figures.bytes[int(Category::parameters)], 0);
  EXPECT_EQ(figures.bytes[int(Category::gradients)], 70);
  EXPECT_EQ(figures.total, 70);
  EXPECT_EQ(figures.peak, 150);
}

TEST(MemoryLedger, ATimelineBeginsWithWhatIsHeld) {
  MemoryLedger ledger;
  ledger.add(1, Category::workspace, "freed");
  ledger.add(2, Category::gradients, "twice");
  ledger.add(2, Category::gradients, "twice");
  ledger.add(3, Category::parameters, "held");
  ledger.remove(1, Category::workspace, "freed");
  ledger.remove(2, Category::gradients, "twice");
  ledger.start_timeline();
  ledger.remove(3, Category::parameters, "held");
  const std::vector<MemoryEvent> events = ledger.take_timeline();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].name, "twice");
  EXPECT_EQ(events[1].name, "held");
  EXPECT_EQ(events[2].delta_bytes, -3);
  EXPECT_LE(events[1].time_us, events[2].time_us);
  EXPECT_LE(events[2].time_us, ledger.now_us());
}

TEST(MemoryLedger, KeepsEveryEventOfItsTimeline) {
  MemoryLedger ledger;
  ledger.start_timeline();
  ledger.add(100, Category::optimizer, "moments");
  ledger.remove(100, Category::optimizer, "moments");
  const std::vector<MemoryEvent> events = ledger.take_timeline();
  ledger.add(1, Category::workspace, "after");
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].delta_bytes, 100);
  EXPECT_EQ(events[1].delta_bytes, -100);
  EXPECT_EQ(events[0].category, Category::optimizer);
  EXPECT_EQ(events[0].name, "moments");
  EXPECT_LE(events[0].time_us, events[1].time_us);
  EXPECT_TRUE(ledger.take_timeline().empty());
}

TEST(MemoryLedger, SumsUpLargestFirst) {
  MemoryLedger ledger;
  EXPECT_EQ(ledger.summary(), "nothing");
  ledger.add(1 << 20, Category::parameters, "a");
  ledger.add(3 << 20, Category::activations, "b");
  EXPECT_EQ(ledger.summary(), "activations 3.00 MiB, parameters 1.00 MiB");
}

TEST(FormatBytes, KeepsThreeDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(17), "17 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(12 * 1024), "12.0 KiB");
  EXPECT_EQ(format_bytes(9.994 * 1024), "9.99 KiB");
  EXPECT_EQ(format_bytes(99.96 * 1024), "100 KiB");
  EXPECT_EQ(format_bytes(1000 * 1024 * 1024), "1000 MiB");
  EXPECT_EQ(format_bytes(1023.6 * 1024 * 1024), "1.00 GiB");
  EXPECT_EQ(format_bytes(1.5 * 1024 * 1024 * 1024), "1.50 GiB");
}

// Known answers of the authors' own test (Random123, kat_vectors).
TEST(Philox, GivesTheKnownAnswers) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, 0),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, ~std::uint64_t{0}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Random, StreamsOfOneSeedDiffer) {
  const auto weights = random_bits(1, Stream::weights, 0, 0);
  EXPECT_EQ(weights, random_bits(1, Stream::weights, 0, 0));
  EXPECT_NE(weights, random_bits(2, Stream::weights, 0, 0));
  EXPECT_NE(weights, random_bits(1, Stream::samples, 0, 0));
  EXPECT_NE(weights, random_bits(1, Stream::weights, 1, 0));
  EXPECT_NE(weights,
            random_bits(1, Stream::weights, 0, std::uint64_t{1} << 32));
}

TEST(Random, UnitIntervalLeavesOutOne) {
  EXPECT_EQ(unit_interval(0, 0), 0);
  EXPECT_LT(unit_interval(~0u, ~0u), 1);
  EXPECT_GT(unit_interval(~0u, ~0u), 0.999999999999999);
  EXPECT_EQ(unit_interval(1u << 31, 0), 0.5);
}

}  // namespace
}  // namespace lockstep
