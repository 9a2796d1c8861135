#include "data/batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "unit/files.h"

namespace lockstep {
namespace {

using test::error_of;
using test::expect_parts;
using Ids = std::vector<std::int32_t>;

// Token i is i · 3 mod 1000, in memory.
class CountedTokens : public TokenSource {
 public:
  explicit CountedTokens(std::int64_t size) : size_(size) {}
  static std::int32_t at(std::int64_t i) { return std::int32_t(i * 3 % 1000); }

  std::int64_t size() const override { return size_; }
  void read(std::int64_t begin, std::span<std::int64_t> out) const override {
    ASSERT_GE(begin, 0);
    ASSERT_LE(begin + std::ssize(out), size_);
    for (std::int64_t& token : out) token = at(begin++);
  }
  const std::string& name() const override { return name_; }
  bool can_exceed(std::int64_t) const override { return true; }

 private:
  std::int64_t size_;
  std::string name_ = "counted";
};

// Token i is i, for sources so short that a token tells its position.
class Positions : public CountedTokens {
 public:
  using CountedTokens::CountedTokens;
  void read(std::int64_t begin, std::span<std::int64_t> out) const override {
    for (std::int64_t& token : out) token = begin++;
  }
};

struct Batch {
  Ids inputs, targets;
};
Batch filled(const Batches& batches, const BatchShape& shape, std::int64_t step,
             std::int64_t micro_step) {
  Batch batch;
  batch.inputs.resize(shape.batch * shape.context, -1);
  batch.targets.resize(shape.batch * shape.context, -1);
  batches.fill(step, micro_step, batch.inputs, batch.targets);
  return batch;
}

using Make = std::function<std::unique_ptr<Batches>(const BatchShape&)>;

// The samples of the first steps in their global order, T inputs and T targets
// each, as `world_size` ranks share them.
std::vector<Batch> samples_of(const Make& make, BatchShape shape,
                              int world_size, std::int64_t steps) {
  shape.world_size = world_size;
  std::vector<std::unique_ptr<Batches>> ranks;
  for (shape.rank = 0; shape.rank < world_size; ++shape.rank) {
    ranks.push_back(make(shape));
  }
  std::vector<Batch> samples;
  for (std::int64_t step = 0; step < steps; ++step) {
    for (std::int64_t micro = 0; micro < shape.accumulation; ++micro) {
      for (const auto& rank : ranks) {
        const Batch batch = filled(*rank, shape, step, micro);
        for (std::int64_t b = 0; b < shape.batch; ++b) {
          const auto row = [&](const Ids& ids) {
            return Ids(ids.begin() + b * shape.context,
                       ids.begin() + (b + 1) * shape.context);
          };
          samples.push_back({row(batch.inputs), row(batch.targets)});
        }
      }
    }
  }
  return samples;
}

TEST(SequentialBatches, GoThroughStepsMicroStepsRanksAndRowsInOrder) {
  const CountedTokens source(1000);
  BatchShape shape{
      .batch = 2, .context = 4, .accumulation = 3, .vocabulary = 1000};
  const auto samples = samples_of(
      [&](const BatchShape& s) { return sequential_batches(source, s); }, shape,
      /*world_size=*/2, /*steps=*/2);
  ASSERT_EQ(samples.size(), 24u);
  for (std::int64_t k = 0; k < 24; ++k) {
    for (std::int64_t t = 0; t < 4; ++t) {
      EXPECT_EQ(samples[k].inputs[t], CountedTokens::at(4 * k + t));
      EXPECT_EQ(samples[k].targets[t], CountedTokens::at(4 * k + t + 1));
    }
  }
}

TEST(SequentialBatches, WrapAfterTheLastWholeSample) {
  // 13 tokens hold 3 samples of 4 with targets; 12 tokens only 2.
  for (const auto& [size, whole] : {std::pair(13, 3), std::pair(12, 2),
                                    std::pair(16, 3), std::pair(5, 1)}) {
    const Positions source(size);
    const BatchShape shape{.context = 4, .vocabulary = 1000};
    const auto batches = sequential_batches(source, shape);
    for (std::int64_t k = 0; k < 8; ++k) {
      const Batch batch = filled(*batches, shape, k, 0);
      EXPECT_EQ(batch.inputs[0], k % whole * 4) << size << ' ' << k;
      EXPECT_EQ(batch.targets[3], k % whole * 4 + 4) << size << ' ' << k;
    }
  }
}

TEST(AllBatches, AreTheSameSamplesOnAnyNumberOfRanks) {
  const CountedTokens source(5000);
  const std::map<std::string, Make> kinds = {
      {"sequential",
       [&](const BatchShape& s) { return sequential_batches(source, s); }},
      {"random",
       [&](const BatchShape& s) { return random_batches(source, s, 7); }},
      {"noise", [&](const BatchShape& s) { return noise_batches(s, 7); }}};
  for (const auto& [name, make] : kinds) {
    const auto whole =
        samples_of(make, {.batch = 12, .context = 5, .vocabulary = 1000}, 1, 2);
    ASSERT_EQ(whole.size(), 24u);
    for (const auto& [batch, accumulation, world] :
         {std::tuple(6, 1, 2), std::tuple(2, 2, 3), std::tuple(1, 3, 4),
          std::tuple(1, 1, 12), std::tuple(3, 4, 1)}) {
      const auto shared = samples_of(make,
                                     {.batch = batch,
                                      .context = 5,
                                      .accumulation = accumulation,
                                      .vocabulary = 1000},
                                     world, 2);
      ASSERT_EQ(shared.size(), whole.size());
      for (std::size_t k = 0; k < whole.size(); ++k) {
        EXPECT_EQ(shared[k].inputs, whole[k].inputs) << name << ' ' << k;
        EXPECT_EQ(shared[k].targets, whole[k].targets) << name << ' ' << k;
      }
    }
  }
}

TEST(RandomBatches, StartAtEveryPositionThatHoldsASample) {
  const Positions source(14);
  const BatchShape shape{.batch = 1000, .context = 4, .vocabulary = 1000};
  const auto batches = random_batches(source, shape, 3);
  const Batch batch = filled(*batches, shape, 0, 0);
  std::map<std::int32_t, int> times;
  for (std::int64_t b = 0; b < 1000; ++b) {
    const std::int32_t start = batch.inputs[4 * b];
    ++times[start];
    for (int t = 0; t < 4; ++t) {
      EXPECT_EQ(batch.inputs[4 * b + t], start + t);
      EXPECT_EQ(batch.targets[4 * b + t], start + t + 1);
    }
  }
  ASSERT_EQ(times.size(), 10u);  // 0 … 14 − 4 − 1
  EXPECT_EQ(times.begin()->first, 0);
  EXPECT_EQ(times.rbegin()->first, 9);
  for (const auto& [start, count] : times) {
    EXPECT_NEAR(count, 100, 45) << start;  // over four deviations
  }
}

TEST(RandomBatches, DependOnTheSeedAndTheStep) {
  const CountedTokens source(100'000);
  const BatchShape shape{.batch = 8, .context = 4, .vocabulary = 1000};
  const auto first = filled(*random_batches(source, shape, 1), shape, 0, 0);
  EXPECT_EQ(filled(*random_batches(source, shape, 1), shape, 0, 0).inputs,
            first.inputs);
  EXPECT_NE(filled(*random_batches(source, shape, 2), shape, 0, 0).inputs,
            first.inputs);
  EXPECT_NE(filled(*random_batches(source, shape, 1), shape, 1, 0).inputs,
            first.inputs);
}

TEST(SourceBatches, TakeAFileOfOneSampleAndNoLess) {
  const BatchShape shape{.context = 4, .vocabulary = 1000};
  const Positions enough(5), less(4);
  for (std::int64_t step = 0; step < 5; ++step) {
    EXPECT_EQ(filled(*random_batches(enough, shape, 1), shape, step, 0).targets,
              (Ids{1, 2, 3, 4}));
    EXPECT_EQ(filled(*sequential_batches(enough, shape), shape, step, 0).inputs,
              (Ids{0, 1, 2, 3}));
  }
  expect_parts(error_of([&] { random_batches(less, shape, 1); }),
               {"counted", "4 tokens", "takes 5", "--context-length 4"});
  expect_parts(error_of([&] { sequential_batches(less, shape); }),
               {"counted", "4 tokens", "takes 5", "--context-length 4"});
}

TEST(SourceBatches, NameATokenOutsideTheVocabulary) {
  const Positions source(100);
  const BatchShape shape{.batch = 2, .context = 4, .vocabulary = 20};
  const auto batches = sequential_batches(source, shape);
  EXPECT_NO_THROW(filled(*batches, shape, 1, 0));  // tokens 8 … 16
  expect_parts(error_of([&] { filled(*batches, shape, 2, 0); }),
               {"counted", "token 20 is 20", "vocabulary of 20"});
}

TEST(RandomBatches, ReachPositionsBeyondTwoToThe31) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "x.bin";
  constexpr std::int64_t count = 4'400'000'000;
  test::write_file(path, "");
  std::filesystem::resize_file(path, 2 * count);
  // The whole last sample is marked; it is read through the file's own source.
  test::write_at(path, 2 * (count - 5),
                 test::bytes_of_values<std::uint16_t>({1, 2, 3, 4, 5}));
  const auto tokens = open_token_source(path);

  // Notes where samples start.
  class Noting : public CountedTokens {
   public:
    explicit Noting(const TokenSource& inner)
        : CountedTokens(inner.size()), inner_(inner) {}
    void read(std::int64_t begin, std::span<std::int64_t> out) const override {
      begins.insert(begin);
      inner_.read(begin, out);
    }
    mutable std::set<std::int64_t> begins;

   private:
    const TokenSource& inner_;
  };
  const Noting source(*tokens);
  const BatchShape shape{.batch = 200, .context = 4, .vocabulary = 1000};
  filled(*random_batches(source, shape, 1), shape, 0, 0);
  EXPECT_GT(source.begins.size(), 198u);
  EXPECT_GE(*source.begins.begin(), 0);
  EXPECT_LE(*source.begins.rbegin(), count - 5);
  // Uniform: each quarter has about a quarter.
  for (int quarter = 0; quarter < 4; ++quarter) {
    const auto in = std::count_if(
        source.begins.begin(), source.begins.end(),
        [&](std::int64_t begin) { return begin / (count / 4) == quarter; });
    EXPECT_NEAR(double(in), 50, 25) << quarter;
  }

  const BatchShape one{.context = 4, .vocabulary = 1000};
  const auto in_order = sequential_batches(*tokens, one);
  const Batch last = filled(*in_order, one, (count - 1) / 4 - 1, 0);
  // (count − 1) / 4 · 4 = count − 4 positions; it starts 8 before the end.
  EXPECT_EQ(last.inputs, (Ids{0, 0, 0, 1}));
  EXPECT_EQ(last.targets, (Ids{0, 0, 1, 2}));
}

TEST(NoiseBatches, AreUniformInsideTheVocabulary) {
  for (const int vocabulary : {1, 2, 10, 1000}) {
    const BatchShape shape{
        .batch = 100, .context = 101, .vocabulary = vocabulary};
    const auto batches = noise_batches(shape, 5);
    std::vector<int> times(vocabulary);
    for (const std::int32_t token : filled(*batches, shape, 0, 0).inputs) {
      ASSERT_GE(token, 0);
      ASSERT_LT(token, vocabulary);
      ++times[token];
    }
    const double expected = 10100.0 / vocabulary;
    for (const int count : times) {
      EXPECT_NEAR(count, expected, 6 * std::sqrt(expected) + 1) << vocabulary;
    }
  }
}

TEST(NoiseBatches, HaveTargetsOneLaterWhateverTheLength) {
  for (const int context : {1, 2, 3, 7, 8}) {
    const BatchShape shape{
        .batch = 3, .context = context, .vocabulary = 1 << 30};
    const Batch batch = filled(*noise_batches(shape, 5), shape, 0, 0);
    std::set<std::int32_t> different;
    for (int b = 0; b < 3; ++b) {
      for (int t = 0; t < context; ++t) {
        const int i = b * context + t;
        if (t + 1 < context) {
          EXPECT_EQ(batch.targets[i], batch.inputs[i + 1]);
        }
        different.insert(batch.inputs[i]);
      }
      different.insert(batch.targets[(b + 1) * context - 1]);
    }
    // No draw serves twice: T + 1 tokens a sample, all of their own.
    EXPECT_EQ(different.size(), std::size_t(3 * (context + 1)));
  }
}

TEST(NoiseBatches, AreFreshEachStepAndTheSameForASeed) {
  const BatchShape shape{
      .batch = 2, .context = 9, .accumulation = 2, .vocabulary = 1000};
  std::set<Ids> seen;
  for (std::int64_t step = 0; step < 10; ++step) {
    for (std::int64_t micro = 0; micro < 2; ++micro) {
      seen.insert(filled(*noise_batches(shape, 5), shape, step, micro).inputs);
    }
  }
  EXPECT_EQ(seen.size(), 20u);
  EXPECT_EQ(filled(*noise_batches(shape, 5), shape, 3, 1).inputs,
            filled(*noise_batches(shape, 5), shape, 3, 1).inputs);
  EXPECT_NE(filled(*noise_batches(shape, 5), shape, 3, 1).inputs,
            filled(*noise_batches(shape, 6), shape, 3, 1).inputs);
}

}  // namespace
}  // namespace lockstep
