#include <fmt/format.h>

#include <cmath>

#include "bench/benchmark.h"
#include "bench/stopwatch.h"
#include "bench/values.h"
#include "config/choices.h"

namespace lockstep::bench {
namespace {

struct Layer {
  const char* name;
  std::int64_t out, in;
};

// The matrix products of a training step: each linear layer's forward, and the
// two of its backward pass.
class GemmBenchmark final : public Benchmark {
 public:
  std::string_view name() const override { return "gemm"; }
  std::string_view summary() const override {
    return "the matrix products of a model's training step";
  }
  std::vector<OptionRow> options() override {
    constexpr std::int64_t most = 1 << 24;
    OptionValue size = lockstep::name(size_, model_size_names());
    return {{"model-size", "NAME", size, "whose layers are multiplied"},
            {"vocab-size", "N", whole(vocabulary_, std::int64_t{1}, most),
             "of its head"},
            {"tokens", "N", whole_list(tokens_, 1, most),
             "of a batch, all sequences together"},
            {"precisions", "NAME", choice_list(precisions_, precisions),
             "how numbers are stored and multiplied"}};
  }

  bool run(Bench& bench) override {
    using Kind = ResultColumn::Kind;
    bench.backend(precisions_.front());
    ResultTable table =
        bench.table("gemm", {{"layer", "", Kind::text, 9},
                             {"pass", "", Kind::text, 8},
                             {"precision", "", Kind::text, 9},
                             {"tokens", "", Kind::whole, 8},
                             {"out", "", Kind::whole, 7},
                             {"in", "", Kind::whole, 7},
                             {"time", "ms", Kind::real, 9, 4},
                             {"spread", "%", Kind::real, 6, 1},
                             {"rate", "TFLOP/s", Kind::real, 9, 2},
                             {"of_peak", "%", Kind::real, 8, 1}});
    ModelConfig model;
    apply_model_size(size_, model);
    const std::int64_t d = model.d_model;
    const Layer layers[] = {{"q,k,v", 3 * d, d},
                            {"output", d, d},
                            {"w1,w3", 2 * model.d_ff, d},
                            {"w2", d, model.d_ff},
                            {"head", vocabulary_, d}};
    for (const Precision precision : precisions_) {
      Backend& backend = bench.backend(precision);
      for (const std::int64_t tokens : tokens_) {
        for (const Layer& layer : layers) {
          run_layer(layer, tokens, precision, backend, bench.settings(), table);
        }
      }
    }
    return true;
  }

 private:
  static void run_layer(const Layer& layer, std::int64_t tokens,
                        Precision precision, Backend& backend,
                        const Settings& settings, ResultTable& table) {
    Device& device = *backend.device;
    Ops& ops = *backend.ops;
    const Dtype dtype = compute_dtype(precision);
    std::vector<Buffer> memory;
    const auto matrix = [&](Dtype type, Shape shape, std::uint32_t stream) {
      memory.push_back(device.allocate(type, shape, Category::activations,
                                       "matrix product"));
      const Tensor tensor = memory.back().tensor(type, shape);
      fill_normal(device, tensor, stream);
      return tensor;
    };
    Stopwatch stopwatch(device, settings.warmup, settings.iterations);
    const Tensor x = matrix(dtype, {tokens, layer.in}, 1);
    const Tensor weight = matrix(dtype, {layer.out, layer.in}, 2);
    const Tensor dweight = matrix(Dtype::f32, {layer.out, layer.in}, 3);
    // Rows of 16 bytes, as the model has them.
    const Tensor y = matrix(dtype, {tokens, (layer.out + 7) / 8 * 8}, 4);

    const double flops =
        2.0 * double(tokens) * double(layer.out) * double(layer.in);
    const double peak = device.peak_flops(precision);
    const auto add = [&](const char* pass, const Times& times) {
      const double rate = flops / times.median / 1e9;
      table.add({std::string(layer.name), std::string(pass),
                 std::string(name_of(precision)), tokens, layer.out, layer.in,
                 times.median, 100 * times.deviation / times.mean, rate,
                 peak > 0 ? 100e12 * rate / peak : std::nan("")});
    };
    add("forward", stopwatch.time([&] { ops.linear(y, x, weight); }));
    add("input",
        stopwatch.time([&] { ops.linear_backward_input(x, y, weight); }));
    add("weight", stopwatch.time([&] {
      ops.linear_backward_weight(dweight, y, x, Accumulate::no);
    }));
  }

  std::string size_ = "small";
  std::int64_t vocabulary_ = 10000;
  std::vector<std::int64_t> tokens_ = {4096};
  std::vector<Precision> precisions_ = {Precision::bf16};
};

}  // namespace

std::unique_ptr<Benchmark> make_gemm_benchmark() {
  return std::make_unique<GemmBenchmark>();
}

}  // namespace lockstep::bench
