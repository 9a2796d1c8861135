#include "data/batches.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/random.h"

namespace lockstep {
namespace {

// A uniform integer in [0, count) from 64 random bits. The bias, count / 2⁶⁴,
// is out of reach.
std::int64_t uniform(std::uint32_t high, std::uint32_t low,
                     std::int64_t count) {
  const std::uint64_t bits = std::uint64_t{high} << 32 | low;
  return static_cast<std::int64_t>((static_cast<unsigned __int128>(bits) *
                                    static_cast<unsigned __int128>(count)) >>
                                   64);
}

// Where a micro-step's samples stand among all samples of the run.
class NumberedBatches : public Batches {
 public:
  explicit NumberedBatches(const BatchShape& shape) : shape_(shape) {}

  void fill(std::int64_t step, std::int64_t micro_step,
            std::span<std::int32_t> inputs,
            std::span<std::int32_t> targets) const override {
    const std::int64_t first =
        shape_.first_sample +
        ((step * shape_.accumulation + micro_step) * shape_.world_size +
         shape_.rank) *
            shape_.batch;
    for (std::int64_t b = 0; b < shape_.batch; ++b) {
      const std::int64_t at = b * shape_.context;
      fill_sample(first + b, inputs.subspan(at, shape_.context),
                  targets.subspan(at, shape_.context));
    }
  }

 protected:
  // Global sample k: T inputs and the T tokens one later.
  virtual void fill_sample(std::int64_t k, std::span<std::int32_t> inputs,
                           std::span<std::int32_t> targets) const = 0;
  BatchShape shape_;
};

// Samples that are T + 1 tokens in a row of a source.
class SourceBatches : public NumberedBatches {
 public:
  SourceBatches(const TokenSource& source, const BatchShape& shape)
      : NumberedBatches(shape), source_(source) {
    require(source.size() > shape.context,
            "{} holds {} tokens; a sample takes {} (--context-length {} + 1)",
            source.name(), source.size(), shape.context + 1, shape.context);
  }

 protected:
  virtual std::int64_t position_of(std::int64_t k) const = 0;

  void fill_sample(std::int64_t k, std::span<std::int32_t> inputs,
                   std::span<std::int32_t> targets) const override {
    std::vector<std::int64_t> tokens(inputs.size() + 1);
    const std::int64_t begin = position_of(k);
    source_.read(begin, tokens);
    check_tokens(source_, begin, tokens, shape_.vocabulary);
    std::transform(tokens.begin(), tokens.end() - 1, inputs.begin(),
                   [](std::int64_t t) { return static_cast<std::int32_t>(t); });
    std::transform(tokens.begin() + 1, tokens.end(), targets.begin(),
                   [](std::int64_t t) { return static_cast<std::int32_t>(t); });
  }
  const TokenSource& source_;
};

class SequentialBatches : public SourceBatches {
 public:
  using SourceBatches::SourceBatches;

 private:
  std::int64_t position_of(std::int64_t k) const override {
    const std::int64_t whole_samples = (source_.size() - 1) / shape_.context;
    return k % whole_samples * shape_.context;
  }
};

class RandomBatches : public SourceBatches {
 public:
  RandomBatches(const TokenSource& source, const BatchShape& shape,
                std::uint64_t seed)
      : SourceBatches(source, shape), seed_(seed) {}

 private:
  std::int64_t position_of(std::int64_t k) const override {
    const auto bits =
        random_bits(seed_, Stream::samples, 0, static_cast<std::uint64_t>(k));
    return uniform(bits[0], bits[1], source_.size() - shape_.context);
  }
  std::uint64_t seed_;
};

class NoiseBatches : public NumberedBatches {
 public:
  NoiseBatches(const BatchShape& shape, std::uint64_t seed)
      : NumberedBatches(shape), seed_(seed) {}

 private:
  // Token i of sample k is word i mod 2 of draw k · ⌈(T+1)/2⌉ + i / 2.
  void fill_sample(std::int64_t k, std::span<std::int32_t> inputs,
                   std::span<std::int32_t> targets) const override {
    const std::int64_t tokens = std::ssize(inputs) + 1;
    const std::int64_t draws = (tokens + 1) / 2;
    for (std::int64_t draw = 0; draw < draws; ++draw) {
      const auto bits =
          random_bits(seed_, Stream::tokens, 0,
                      static_cast<std::uint64_t>(k * draws + draw));
      for (std::size_t half = 0; half < 2; ++half) {
        const std::int64_t i = 2 * draw + std::int64_t(half);
        const auto token = static_cast<std::int32_t>(
            uniform(bits[2 * half], bits[2 * half + 1], shape_.vocabulary));
        if (i < tokens - 1) inputs[i] = token;
        if (i > 0 && i < tokens) targets[i - 1] = token;
      }
    }
  }
  std::uint64_t seed_;
};

}  // namespace

std::unique_ptr<Batches> sequential_batches(const TokenSource& source,
                                            const BatchShape& shape) {
  return std::make_unique<SequentialBatches>(source, shape);
}

std::unique_ptr<Batches> random_batches(const TokenSource& source,
                                        const BatchShape& shape,
                                        std::uint64_t seed) {
  return std::make_unique<RandomBatches>(source, shape, seed);
}

std::unique_ptr<Batches> noise_batches(const BatchShape& shape,
                                       std::uint64_t seed) {
  return std::make_unique<NoiseBatches>(shape, seed);
}

}  // namespace lockstep
