#include "trainer/evaluation.h"

#include <algorithm>
#include <cmath>

#include "core/random.h"

namespace lockstep {
namespace {

// One of the vocabulary by the model's probabilities.
std::int32_t sample(std::span<const float> logits, double uniform) {
  constexpr double temperature = 0.8;
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> cumulative;
  double total = 0;
  for (const float logit : logits) {
    total += std::exp((logit - top) / temperature);
    cumulative.push_back(total);
  }
  const auto chosen =
      std::upper_bound(cumulative.begin(), cumulative.end(), uniform * total);
  return static_cast<std::int32_t>(
      std::min(chosen - cumulative.begin(), std::ssize(cumulative) - 1));
}

}  // namespace

Evaluation::Evaluation(const Options& options, Device& device,
                       Transformer& model)
    : options_(options), device_(device), model_(model) {
  const std::int64_t tokens = options.batch_size * options.model.context_length;
  memory_ =
      device_.allocate(2 * tokens * bytes_of(Dtype::i32) + bytes_of(Dtype::f64),
                       Category::workspace, "evaluation batch");
  loss_ = memory_.tensor(Dtype::f64, {1});
  tokens_ = {loss_.as<double>() + 1, Dtype::i32, {2, tokens}};
}

double Evaluation::loss(const Batches& batches, World& world) {
  const std::int64_t tokens = tokens_[1];
  std::vector<std::int32_t> staged(2 * tokens);
  const std::span<std::int32_t> all(staged);
  device_.zero(loss_);
  for (std::int64_t i = 0; i < options_.validation_batches; ++i) {
    batches.fill(0, i, all.first(tokens), all.last(tokens));
    device_.copy_to_device(tokens_, staged.data());
    model_.forward(tokens_.range(0, tokens));
    model_.loss(tokens_.range(tokens, tokens), loss_,
                1.0 / double(options_.validation_batches),
                Transformer::Gradient::no);
    device_.synchronize();
  }
  double mine = 0;
  device_.copy_to_host(&mine, loss_);
  device_.synchronize();
  double mean = 0;
  for (const double theirs : world.all_gather({&mine, 1})) {
    mean += theirs / world.size();
  }
  return mean;
}

std::vector<std::int32_t> Evaluation::generate(
    std::span<const std::int32_t> prompt, std::int64_t count) {
  const std::int64_t context = options_.model.context_length;
  std::vector<std::int32_t> text(prompt.begin(), prompt.end());
  std::vector<float> logits(options_.model.vocab_size);
  for (std::int64_t i = 0; i < count; ++i) {
    // The last `context` tokens; what follows them is causally invisible.
    const std::int64_t length = std::min(context, std::ssize(text));
    std::vector<std::int32_t> window(context, 0);
    std::copy(text.end() - length, text.end(), window.begin());
    const Tensor inputs = tokens_.range(0, context);
    device_.copy_to_device(inputs, window.data());
    model_.forward(inputs);
    download(device_, logits,
             model_.logits(length - 1).range(0, std::ssize(logits)));
    const auto bits = random_bits(options_.seed, Stream::generation, 0,
                                  static_cast<std::uint64_t>(i));
    text.push_back(sample(logits, unit_interval(bits[0], bits[1])));
  }
  return text;
}

}  // namespace lockstep
