#include <gtest/gtest.h>

#include "bench/stopwatch.h"
#include "bench/values.h"
#include "core/hdf5.h"
#include "record/result_table.h"
#include "unit/backends.h"
#include "unit/files.h"

namespace lockstep::bench {
namespace {

TEST(BenchTimes, AreTheStatisticsOfWhatWasMeasured) {
  const Times times = summary({3, 1, 2, 10});
  EXPECT_DOUBLE_EQ(times.median, 2.5);
  EXPECT_DOUBLE_EQ(times.least, 1);
  EXPECT_DOUBLE_EQ(times.most, 10);
  EXPECT_DOUBLE_EQ(times.mean, 4);
  EXPECT_NEAR(times.deviation, std::sqrt(50.0 / 3), 1e-12);
  EXPECT_DOUBLE_EQ(summary({7}).median, 7);
  EXPECT_DOUBLE_EQ(summary({7}).deviation, 0);
}

TEST(BenchValues, AreNormalAndTheSameEachTime) {
  Backend backend = make_cpu_backend(1, Precision::fp32);
  const std::int64_t count = 100'001;
  const Buffer memory = backend.device->allocate(
      Dtype::f32, {count}, Category::activations, "values");
  const Tensor tensor = memory.tensor(Dtype::f32, {count});
  const auto fill = [&](std::uint32_t stream) {
    fill_normal(*backend.device, tensor, stream);
    return values_of(*backend.device, tensor);
  };
  const auto values = fill(1);
  double mean = 0, square = 0;
  for (const double value : values) {
    mean += value / double(count);
    square += value * value / double(count);
  }
  EXPECT_NEAR(mean, 0, 0.02);
  EXPECT_NEAR(square, 1, 0.02);
  EXPECT_NEAR(relative_difference(fill(2), values), std::sqrt(2.0), 0.02);
  EXPECT_EQ(fill(1), values);
}

TEST(BenchValues, BeginAgainAfterAMillionAndFillTheWholeTensor) {
  Backend backend = make_cpu_backend(1, Precision::fp32);
  constexpr std::int64_t period = 1'000'003, count = 2 * period + 7;
  const Buffer memory = backend.device->allocate(
      Dtype::f32, {count}, Category::activations, "values");
  const Tensor tensor = memory.tensor(Dtype::f32, {count});
  fill_normal(*backend.device, tensor, 1);
  const auto values = values_of(*backend.device, tensor);
  for (std::int64_t i = period; i < count; ++i) {
    ASSERT_EQ(values[i], values[i - period]) << i;
  }
  EXPECT_NE(values[1 << 20], values[0]);  // rows of any width differ
}

TEST(ResultTable, PrintsAndKeepsItsRows) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "results.h5";
  std::FILE* out = std::tmpfile();
  using Kind = ResultColumn::Kind;
  RunFacts facts;
  facts.texts = {{"version", "1"}};
  ResultTable table("speeds",
                    {{"what", "", Kind::text, 6},
                     {"count", "", Kind::whole, 6},
                     {"time", "ms", Kind::real, 8, 2}},
                    path, facts, true, out);
  table.add({std::string("one"), std::int64_t{1}, 1.234});
  table.add({std::string("two"), std::int64_t{2}, NAN}, "OUT OF MEMORY");

  std::rewind(out);
  std::string printed(1000, '\0');
  printed.resize(std::fread(printed.data(), 1, printed.size(), out));
  std::fclose(out);
  EXPECT_EQ(printed,
            "what    count     time \n"
            "                    ms \n"
            "one         1     1.23 \n"
            "two         2        - OUT OF MEMORY\n");

  const hdf5::File file(path, hdf5::Access::read);
  EXPECT_EQ(file.attribute<std::string>("version"), "1");
  const hdf5::Dataset rows = file.dataset("speeds");
  EXPECT_EQ(rows.read_column<std::int64_t>("count"),
            (std::vector<std::int64_t>{1, 2}));
  EXPECT_DOUBLE_EQ(rows.read_column<double>("time")[0], 1.234);
  EXPECT_EQ(rows.attribute<std::vector<std::string>>("units"),
            (std::vector<std::string>{"", "", "ms", ""}));
  EXPECT_THROW(table.add({std::string("short")}), Error);
}

TEST(ResultTable, RefusesAPathItCannotWrite) {
  EXPECT_THROW(
      ResultTable("t", {{"what", ""}}, "/no/such/folder/r.h5", {}, true),
      Error);
}

}  // namespace
}  // namespace lockstep::bench
