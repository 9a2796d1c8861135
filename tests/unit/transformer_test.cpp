#include "model/transformer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "backends.h"
#include "core/hdf5.h"

namespace lockstep {
namespace {

// Parameters held whole, and the order in which gradients became ready.
class Holder : public ParameterHooks {
 public:
  Holder(ParameterStore& store, Device& device, Dtype dtype) {
    for (Unit& unit : store.units()) {
      parameters_.push_back(device.allocate(dtype, {unit.elements},
                                            Category::parameters, unit.name));
      gradients_.push_back(device.allocate(Dtype::f32, {unit.elements},
                                           Category::gradients, unit.name));
      unit.parameters = parameters_.back().tensor(dtype, {unit.elements});
      unit.gradients = gradients_.back().tensor(Dtype::f32, {unit.elements});
    }
  }
  void acquire(Unit& unit, Pass) override { held_ = &unit; }
  void release(Unit& unit, Pass) override {
    EXPECT_EQ(held_, &unit) << "released without having been acquired";
    held_ = nullptr;
  }
  void gradient_ready(Parameter& parameter) override {
    EXPECT_EQ(held_, parameter.unit);
    ready.push_back(parameter.name);
  }
  std::vector<std::string> ready;

 private:
  Unit* held_ = nullptr;
  std::vector<Buffer> parameters_, gradients_;
};

std::vector<float> values_of(Device& device, const Tensor& tensor) {
  std::vector<float> values(tensor.elements());
  download(device, values, tensor);
  return values;
}

double relative_error(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double(a[i]) - b[i], 2);
    norm += std::pow(double(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

ModelConfig tiny(std::int64_t d_ff, std::int64_t layers) {
  return {.vocab_size = 13,
          .context_length = 4,
          .d_model = 8,
          .d_ff = d_ff,
          .num_layers = layers,
          .num_heads = 2};
}

class TransformerTest : public BackendTest {
 protected:
  bool bf16() const { return precision() == Precision::bf16; }
};

TEST_P(TransformerTest, GivesTheReferencesLogitsLossAndGradients) {
  const hdf5::File file(LOCKSTEP_REFERENCE, hdf5::Access::read);
  for (const char* name : {"test", "odd", "head80"}) {
    SCOPED_TRACE(name);
    const auto group = file.group(std::string("training/") + name);
    const auto number = [&](const char* key) {
      return static_cast<std::int64_t>(group.attribute<double>(key));
    };
    ModelConfig config;
    config.vocab_size = number("vocab_size");
    config.context_length = number("context_length");
    config.d_model = number("d_model");
    config.d_ff = number("d_ff");
    config.num_layers = number("num_layers");
    config.num_heads = number("num_heads");
    const std::int64_t batch = number("global_batch");
    const std::int64_t n = batch * config.context_length;

    Device& device = *backend().device;
    const Dtype dtype = compute_dtype(precision());
    ParameterStore store(config, 1);
    Holder holder(store, device, dtype);
    Transformer model(config, dtype, backend(), store, holder, batch, true);
    for (Parameter* parameter : store.parameters()) {
      upload(device, parameter->value(),
             group.dataset("initial/" + parameter->name).read<float>());
    }
    const auto stored = group.dataset("tokens").read<std::int32_t>();
    const Buffer memory =
        device.allocate(2 * 4 * n + 8, Category::workspace, "batch");
    const Tensor total = memory.tensor(Dtype::f64, {1});
    auto* ids = static_cast<std::int32_t*>(memory.data()) + 2;
    const Tensor inputs{ids, Dtype::i32, {n}};
    const Tensor targets{ids + n, Dtype::i32, {n}};
    device.copy_to_device(inputs, stored.data());
    device.copy_to_device(targets, stored.data() + 1);

    model.forward(inputs);
    const auto expected_logits = group.dataset("step1/logits").read<float>();
    for (const std::int64_t row : {std::int64_t{0}, n / 2, n - 1}) {
      const auto got = values_of(device, model.logits(row));
      EXPECT_LT(relative_error(got, std::span(expected_logits)
                                        .subspan(row * config.vocab_size,
                                                 config.vocab_size)),
                bf16()                           ? 3e-2
                : precision() == Precision::tf32 ? 5e-3
                                                 : 1e-5);
    }
    model.loss(targets, total, 1.0, Transformer::Gradient::yes);
    model.backward(inputs);

    double loss = 0;
    device.copy_to_host(&loss, total);
    device.synchronize();
    const double expected = group.dataset("loss").read<double>()[0];
    EXPECT_NEAR(loss / expected, 1,
                bf16()                           ? 1e-2
                : precision() == Precision::tf32 ? 1e-3
                                                 : 1e-5);
    for (Parameter* parameter : store.parameters()) {
      EXPECT_LT(
          relative_error(values_of(device, parameter->gradient()),
                         group.dataset("step1/gradients/" + parameter->name)
                             .read<float>()),
          bf16()                           ? 3e-2
          : precision() == Precision::tf32 ? 5e-3
                                           : 2e-5)
          << parameter->name;
    }
  }
}

TEST_P(TransformerTest, SaysOnceAndFromTheEndThatEachGradientIsReady) {
  const ModelConfig config = tiny(/*d_ff=*/12, /*layers=*/2);
  Device& device = *backend().device;
  const Dtype dtype = compute_dtype(precision());
  ParameterStore store(config, 1);
  Holder holder(store, device, dtype);
  Transformer model(config, dtype, backend(), store, holder, 1, true);
  const Buffer memory = device.allocate(64, Category::workspace, "batch");
  const Tensor total = memory.tensor(Dtype::f64, {1});
  const Tensor ids{
      static_cast<std::int32_t*>(memory.data()) + 2, Dtype::i32, {4}};
  model.forward(ids);
  EXPECT_TRUE(holder.ready.empty());
  model.loss(ids, total, 1, Transformer::Gradient::yes);
  model.backward(ids);
  device.synchronize();

  std::vector<std::string> expected;
  for (Parameter* p : store.parameters()) expected.push_back(p->name);
  std::reverse(expected.begin(), expected.end());
  EXPECT_EQ(holder.ready, expected);
}

TEST_P(TransformerTest, AccumulatesGradientsOverMicroSteps) {
  const ModelConfig config = tiny(/*d_ff=*/12, /*layers=*/1);
  Device& device = *backend().device;
  const Dtype dtype = compute_dtype(precision());
  ParameterStore store(config, 1);
  Holder holder(store, device, dtype);
  for (Unit& unit : store.units()) {
    std::vector<float> values(unit.elements);
    initial_values(unit, 3, values);
    upload(device, unit.parameters, values);
  }
  Transformer model(config, dtype, backend(), store, holder, 1, true);
  const std::vector<std::int32_t> tokens = {1, 5, 2, 12, 0};
  const Buffer memory = device.allocate(64, Category::workspace, "batch");
  const Tensor total = memory.tensor(Dtype::f64, {1});
  auto* ids = static_cast<std::int32_t*>(memory.data()) + 2;
  const Tensor inputs{ids, Dtype::i32, {4}}, targets{ids + 4, Dtype::i32, {4}};
  device.copy_to_device(inputs, tokens.data());
  device.copy_to_device(targets, tokens.data() + 1);
  const auto pass = [&] {
    model.forward(inputs);
    model.loss(targets, total, 0.5, Transformer::Gradient::yes);
    model.backward(inputs);
  };
  pass();
  const auto once = values_of(device, store.block(0).gradients);
  for (Unit& unit : store.units()) unit.accumulate = Accumulate::yes;
  pass();
  auto twice = values_of(device, store.block(0).gradients);
  for (float& value : twice) value /= 2;
  EXPECT_LT(relative_error(twice, once), 1e-6);
}

TEST_P(TransformerTest, GivesTheSameHoweverItIsComputed) {
  const ModelConfig config = tiny(/*d_ff=*/32, /*layers=*/5);
  Device& device = *backend().device;
  const Dtype dtype = compute_dtype(precision());
  const std::vector<std::int32_t> tokens = {1, 5, 2, 12, 0};
  const Buffer memory = device.allocate(64, Category::workspace, "batch");
  const Tensor total = memory.tensor(Dtype::f64, {1});
  auto* ids = static_cast<std::int32_t*>(memory.data()) + 2;
  const Tensor inputs{ids, Dtype::i32, {4}}, targets{ids + 4, Dtype::i32, {4}};
  device.copy_to_device(inputs, tokens.data());
  device.copy_to_device(targets, tokens.data() + 1);
  const auto activations = [&] {
    return device.ledger().figures().bytes[int(Category::activations)];
  };

  struct Outcome {
    double loss = 0;
    std::vector<float> gradients;
    std::int64_t bytes = 0;
  };
  const auto run = [&](const Execution& execution) {
    ParameterStore store(config, 1);
    Holder holder(store, device, dtype);
    for (Unit& unit : store.units()) {
      std::vector<float> values(unit.elements);
      initial_values(unit, 3, values);
      upload(device, unit.parameters, values);
    }
    Outcome outcome;
    outcome.bytes = -activations();
    Transformer model(config, dtype, backend(), store, holder, 1, true,
                      execution);
    outcome.bytes += activations();
    device.zero(total);
    model.forward(inputs);
    model.loss(targets, total, 1, Transformer::Gradient::yes);
    model.backward(inputs);
    device.copy_to_host(&outcome.loss, total);
    for (Unit& unit : store.units()) {
      const auto values = values_of(device, unit.gradients);
      outcome.gradients.insert(outcome.gradients.end(), values.begin(),
                               values.end());
    }
    return outcome;
  };

  const Outcome kept = run({});
  const Outcome naive = run({{}, AttentionKind::naive});
  EXPECT_NEAR(naive.loss, kept.loss, loss_tolerance());
  EXPECT_LE(test::relative_error(naive.gradients, kept.gradients),
            2 * tolerance());
  for (const std::int64_t rows : {1, 3}) {
    SCOPED_TRACE(fmt::format("{} rows of logits at a time", rows));
    const std::int64_t row = 16 * bytes_of(dtype);  // a padded vocabulary
    const Outcome chunked = run({{}, AttentionKind::flash, rows * row});
    EXPECT_NEAR(chunked.loss, kept.loss, tolerance());
    EXPECT_LE(test::relative_error(chunked.gradients, kept.gradients),
              tolerance());
    EXPECT_EQ(kept.bytes - chunked.bytes, (4 - rows) * row);
  }
  const std::int64_t width = 4 * 8 * bytes_of(dtype);  // N · d_model
  using enum RecomputeLevel;
  struct Case {
    Recompute recompute;
    std::int64_t widths_saved;  // of 5 blocks, less the shared ones
  };
  for (const Case& c :
       {Case{{norms}, 4 * 2}, Case{{ffn}, 4 * 9}, Case{{attention}, 4 * 5},
        Case{{block}, 4 * 15}, Case{{block, 2}, 5 * 16 - 3 - 2 * 15 - 1},
        Case{{block, 3}, 5 * 16 - 2 - 3 * 15 - 2}, Case{{block, 9}, 0}}) {
    SCOPED_TRACE(fmt::format("level {}, blocks {}", int(c.recompute.level),
                             c.recompute.blocks));
    const Outcome again = run({c.recompute});
    EXPECT_EQ(again.loss, kept.loss);
    EXPECT_EQ(again.gradients, kept.gradients);
    // fp32 statistics of norms and attention lie beside the widths.
    const double saved = double(kept.bytes - again.bytes);
    EXPECT_GE(saved, double(c.widths_saved * width));
    EXPECT_LE(saved, double(c.widths_saved * width + 4 * 4 * 4 * 4));
  }
}

INSTANTIATE_BACKENDS(TransformerTest);

}  // namespace
}  // namespace lockstep
