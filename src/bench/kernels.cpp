#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <utility>

#include "bench/benchmark.h"
#include "bench/stopwatch.h"
#include "bench/values.h"

namespace lockstep::bench {
namespace {

constexpr Choice<Precision> precisions[] = {{"fp32", Precision::fp32},
                                            {"bf16", Precision::bf16}};

// N tokens in sequences of T, model width d with heads of 64, F, V, and n
// parameters.
struct Sizes {
  std::int64_t tokens, sequence, d_model, d_ff, vocabulary, parameters;

  std::int64_t heads() const { return d_model / 64; }
};

// One operation with its arguments in place: what it does, what it reads and
// writes, and where its results are.
struct Kernel {
  std::string shape;
  double bytes = 0;
  std::function<void()> run;
  std::vector<Tensor> results;
};

// Makes an operation's arguments, which live as long as it does. Inputs of the
// same sizes have the same values on any device.
class OpArguments {
 public:
  OpArguments(Backend& backend, Precision precision)
      : device_(*backend.device),
        ops_(*backend.ops),
        dtype_(compute_dtype(precision)) {}

  Ops& ops() { return ops_; }
  Device& device() { return device_; }
  double element() const { return double(bytes_of(dtype_)); }

  Tensor zeros(Dtype dtype, Shape shape) {
    memory_.push_back(device_.allocate(dtype, shape, Category::activations,
                                       "kernel arguments"));
    return memory_.back().tensor(dtype, shape);
  }
  Tensor result(Shape shape) { return zeros(dtype_, shape); }
  Tensor normal(Dtype dtype, Shape shape) {
    const Tensor tensor = zeros(dtype, shape);
    fill_normal(device_, tensor, ++made_);
    return tensor;
  }
  Tensor normal(Shape shape) { return normal(dtype_, shape); }
  Tensor below(std::int64_t count, std::int64_t limit) {
    const Tensor tensor = zeros(Dtype::i32, {count});
    fill_below(device_, tensor, static_cast<std::int32_t>(limit));
    return tensor;
  }

 private:
  Device& device_;
  Ops& ops_;
  Dtype dtype_;
  std::vector<Buffer> memory_;
  std::uint32_t made_ = 0;
};

// An operation by name. Bytes are those that have to move at least, each
// tensor once.
struct Entry {
  const char* name;
  Kernel (*make)(OpArguments&, const Sizes&);
};

Kernel copy(OpArguments& a, const Sizes& s) {
  const Tensor x = a.normal({s.tokens, s.d_model});
  const Tensor y = a.result(x.shape);
  return {x.shape.text(),
          2.0 * double(x.bytes()),
          [=, &a] { a.device().copy(y, x); },
          {y}};
}

Kernel embedding(OpArguments& a, const Sizes& s) {
  const Tensor weight = a.normal({s.vocabulary, s.d_model});
  const Tensor ids = a.below(s.tokens, s.vocabulary);
  const Tensor out = a.result({s.tokens, s.d_model});
  return {out.shape.text(),
          2.0 * double(out.bytes()),
          [=, &a] { a.ops().embedding(out, weight, ids); },
          {out}};
}

Kernel embedding_backward(OpArguments& a, const Sizes& s) {
  const Tensor dweight = a.zeros(Dtype::f32, {s.vocabulary, s.d_model});
  const Tensor ids = a.below(s.tokens, s.vocabulary);
  const Tensor dout = a.normal({s.tokens, s.d_model});
  return {dout.shape.text(),
          double(dout.bytes() + dweight.bytes()),
          [=, &a] {
            a.ops().embedding_backward(dweight, dout, ids, Accumulate::no);
          },
          {dweight}};
}

Kernel rmsnorm(OpArguments& a, const Sizes& s) {
  const Shape shape{s.tokens, s.d_model};
  const Tensor x = a.normal(shape), add = a.normal(shape);
  const Tensor weight = a.normal({s.d_model});
  const Tensor y = a.result(shape), residual = a.result(shape);
  const Tensor inverse_rms = a.zeros(Dtype::f32, {s.tokens});
  return {
      shape.text(),
      4.0 * double(x.bytes()),
      [=, &a] { a.ops().rmsnorm(y, residual, inverse_rms, x, add, weight); },
      {y, residual, inverse_rms}};
}

Kernel rmsnorm_backward(OpArguments& a, const Sizes& s) {
  const Shape shape{s.tokens, s.d_model};
  const Tensor dresidual = a.normal(shape), dy = a.normal(shape);
  const Tensor residual = a.normal(shape), weight = a.normal({s.d_model});
  const Tensor inverse_rms = a.normal(Dtype::f32, {s.tokens});
  const Tensor dweight = a.zeros(Dtype::f32, {s.d_model});
  return {shape.text(),
          4.0 * double(dy.bytes()),
          [=, &a] {
            a.ops().rmsnorm_backward(dresidual, dweight, dy, residual,
                                     inverse_rms, weight, Accumulate::no);
          },
          {dresidual, dweight}};
}

// q and k of packed rows, as the model rotates them.
Kernel rope(OpArguments& a, const Sizes& s) {
  const std::int64_t batch = s.tokens / s.sequence;
  const Tensor qkv = a.normal({s.tokens, 3 * s.d_model});
  const Tensor table = a.zeros(Dtype::f32, {s.sequence, 32, 2});
  upload(a.device(), table, rope_table(s.sequence, 64, 10000));
  Heads heads = packed_heads(qkv, 0, batch, s.heads());
  heads.heads *= 2;
  return {Shape{s.tokens, 2 * s.d_model}.text(),
          2.0 * double(2 * s.tokens * s.d_model) * a.element(),
          [=, &a] { a.ops().rope(heads, table, Pass::forward); },
          {qkv}};
}

Kernel swiglu(OpArguments& a, const Sizes& s) {
  const Tensor gate_up = a.normal({s.tokens, 2 * s.d_ff});
  const Tensor y = a.result({s.tokens, s.d_ff});
  return {y.shape.text(),
          3.0 * double(y.bytes()),
          [=, &a] { a.ops().swiglu(y, gate_up); },
          {y}};
}

Kernel swiglu_backward(OpArguments& a, const Sizes& s) {
  const Tensor gate_up = a.normal({s.tokens, 2 * s.d_ff});
  const Tensor dgate_up = a.result(gate_up.shape);
  const Tensor dy = a.normal({s.tokens, s.d_ff});
  return {dy.shape.text(),
          6.0 * double(dy.bytes()),
          [=, &a] { a.ops().swiglu_backward(dgate_up, dy, gate_up); },
          {dgate_up, dy}};
}

Kernel cross_entropy(OpArguments& a, const Sizes& s) {
  const Tensor logits = a.normal({s.tokens, (s.vocabulary + 7) / 8 * 8});
  const Tensor targets = a.below(s.tokens, s.vocabulary);
  const Tensor losses = a.zeros(Dtype::f32, {s.tokens});
  return {
      logits.shape.text(),
      double(logits.bytes()),
      [=, &a] { a.ops().cross_entropy(losses, logits, targets, s.vocabulary); },
      {losses}};
}

Kernel cross_entropy_backward(OpArguments& a, const Sizes& s) {
  const Tensor logits = a.normal({s.tokens, (s.vocabulary + 7) / 8 * 8});
  const Tensor targets = a.below(s.tokens, s.vocabulary);
  const Tensor losses = a.zeros(Dtype::f32, {s.tokens});
  return {logits.shape.text(),
          2.0 * double(logits.bytes()),
          [=, &a] {
            a.ops().cross_entropy_backward(losses, logits, targets,
                                           s.vocabulary, 1);
          },
          {losses, logits}};
}

Kernel softmax(OpArguments& a, const Sizes& s) {
  const Shape shape{1, s.heads(), s.sequence, s.sequence};
  const Tensor scores = a.normal(shape);
  const Tensor lse = a.zeros(Dtype::f32, {1, s.heads(), s.sequence});
  return {shape.text(),
          2.0 * double(scores.bytes()),
          [=, &a] { a.ops().softmax(scores, lse, 0.125F, /*causal=*/false); },
          {scores, lse}};
}

Kernel softmax_backward(OpArguments& a, const Sizes& s) {
  const Shape shape{1, s.heads(), s.sequence, s.sequence};
  const Tensor dp = a.normal(shape), p = a.normal(shape);
  return {shape.text(),
          3.0 * double(p.bytes()),
          [=, &a] { a.ops().softmax_backward(dp, p, 0.125F); },
          {dp}};
}

Kernel sum_of_squares(OpArguments& a, const Sizes& s) {
  const Tensor x = a.normal(Dtype::f32, {s.parameters});
  const Tensor total = a.zeros(Dtype::f64, {1});
  return {x.shape.text(),
          double(x.bytes()),
          [=, &a] { a.ops().add_sum_of_squares(total, x); },
          {total}};
}

Kernel adamw(OpArguments& a, const Sizes& s) {
  const Shape shape{s.parameters};
  AdamwRange range{a.result(shape),
                   a.element() < 4 ? a.zeros(Dtype::i16, shape) : Tensor(),
                   a.normal(Dtype::f32, shape),
                   a.zeros(Dtype::f32, shape),
                   a.zeros(Dtype::f32, shape),
                   0.1F};
  a.ops().split_weights(range.parameters, range.remainder, range.gradients);
  const Tensor scalars = a.zeros(Dtype::f32, {adamw_scalar_count});
  upload(a.device(), scalars,
         std::array{1e-3F, 0.9F, 0.95F, 1e-8F, 0.1F, 0.05F, 0.0F, 0.0F});
  const Tensor factor = a.zeros(Dtype::f32, {1});
  upload(a.device(), factor, std::array{1.0F});
  // Weights as fp32 in and out, gradients in, moments in and out.
  return {shape.text(),
          28.0 * double(s.parameters),
          [=, &a] { a.ops().adamw(range, scalars, factor); },
          {range.parameters, range.first_moment, range.second_moment}};
}

Kernel add(OpArguments& a, const Sizes& s) {
  const Tensor sum = a.normal(Dtype::f32, {s.parameters});
  const Tensor x = a.normal({s.parameters});
  return {x.shape.text(),
          double(2 * sum.bytes() + x.bytes()),
          [=, &a] { a.ops().add(sum, x); },
          {sum}};
}

Kernel cast(OpArguments& a, const Sizes& s) {
  const Tensor x = a.normal(Dtype::f32, {s.parameters});
  const Tensor out = a.result({s.parameters});
  return {x.shape.text(),
          double(x.bytes() + out.bytes()),
          [=, &a] { a.ops().cast(out, x); },
          {out}};
}

constexpr Entry entries[] = {
    {"copy", copy},
    {"embedding", embedding},
    {"embedding_backward", embedding_backward},
    {"rmsnorm", rmsnorm},
    {"rmsnorm_backward", rmsnorm_backward},
    {"rope", rope},
    {"swiglu", swiglu},
    {"swiglu_backward", swiglu_backward},
    {"cross_entropy", cross_entropy},
    {"cross_entropy_backward", cross_entropy_backward},
    {"softmax", softmax},
    {"softmax_backward", softmax_backward},
    {"sum_of_squares", sum_of_squares},
    {"adamw", adamw},
    {"add", add},
    {"cast", cast},
};

// What one run on a backend leaves in the results.
std::vector<std::vector<double>> results_of(const Entry& entry,
                                            const Sizes& sizes,
                                            Backend& backend,
                                            Precision precision) {
  OpArguments arguments(backend, precision);
  const Kernel kernel = entry.make(arguments, sizes);
  kernel.run();
  std::vector<std::vector<double>> results;
  for (const Tensor& tensor : kernel.results) {
    results.push_back(values_of(*backend.device, tensor));
  }
  return results;
}

class KernelsBenchmark final : public Benchmark {
 public:
  std::string_view name() const override { return "kernels"; }
  std::string_view summary() const override {
    return "the operations that move memory, against the speed of a copy";
  }
  std::vector<OptionRow> options() override {
    constexpr std::int64_t most = std::int64_t{1} << 32;
    return {
        {"tokens", "N", whole(sizes_.tokens, std::int64_t{1}, most),
         "of a batch; a multiple of --context-length"},
        {"context-length", "N", whole(sizes_.sequence, std::int64_t{1}, most),
         "tokens of a sequence"},
        {"d-model", "N", whole(sizes_.d_model, std::int64_t{64}, most),
         "a multiple of 64"},
        {"d-ff", "N", whole(sizes_.d_ff, std::int64_t{1}, most),
         "width of SwiGLU"},
        {"vocab-size", "N", whole(sizes_.vocabulary, std::int64_t{1}, most),
         "classes of the cross-entropy"},
        {"parameters", "N", whole(sizes_.parameters, std::int64_t{1}, most),
         "that AdamW updates"},
        {"precisions", "NAME", choice_list(precisions_, precisions),
         "how numbers are stored"}};
  }

  void check() const override {
    if (sizes_.d_model % 64 != 0) {
      usage_error("--d-model {} is no multiple of 64", sizes_.d_model);
    }
    if (sizes_.tokens % sizes_.sequence != 0) {
      usage_error("--tokens {} is no multiple of --context-length {}",
                  sizes_.tokens, sizes_.sequence);
    }
  }

  bool run(Bench& bench) override {
    using Kind = ResultColumn::Kind;
    bench.backend(precisions_.front());
    ResultTable table =
        bench.table("kernels", {{"kernel", "", Kind::text, 22},
                                {"precision", "", Kind::text, 9},
                                {"shape", "", Kind::text, 22},
                                {"time", "us", Kind::real, 9, 1},
                                {"spread", "%", Kind::real, 6, 1},
                                {"rate", "GB/s", Kind::real, 8, 0},
                                {"of_copy", "%", Kind::real, 7, 1},
                                {"difference", "", Kind::real, 10, 7}});
    bool right = true;
    for (const Precision precision : precisions_) {
      Backend& backend = bench.backend(precision);
      double copy_rate = 0;
      for (const Entry& entry : entries) {
        right &= run_kernel(entry, precision, backend, bench.settings(),
                            copy_rate, table);
      }
    }
    return right;
  }

 private:
  // The first kernel, a copy, sets the rate that the others are compared with.
  bool run_kernel(const Entry& entry, Precision precision, Backend& backend,
                  const Settings& settings, double& copy_rate,
                  ResultTable& table) const {
    const double error = difference(entry, precision, backend);
    const bool right = error <= (precision == Precision::bf16 ? 1e-2 : 2e-5);

    Stopwatch stopwatch(*backend.device, settings.warmup, settings.iterations);
    OpArguments arguments(backend, precision);
    const Kernel kernel = entry.make(arguments, sizes_);
    const Times times = stopwatch.time(kernel.run);
    const double rate = kernel.bytes / times.median / 1e6;
    if (copy_rate == 0) copy_rate = rate;
    table.add(
        {std::string(entry.name), std::string(name_of(precision)), kernel.shape,
         1000 * times.median, 100 * times.deviation / times.mean, rate,
         100 * rate / copy_rate, error},
        right ? "" : "WRONG: differs from the CPU's");
    return right;
  }

  // From the CPU's results, at a small size.
  static double difference(const Entry& entry, Precision precision,
                           Backend& backend) {
    constexpr Sizes small = {96, 32, 128, 200, 1003, 5000};
    Backend cpu = make_cpu_backend(1, precision);
    const auto got = results_of(entry, small, backend, precision);
    const auto wanted = results_of(entry, small, cpu, precision);
    double worst = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double error = relative_difference(got[i], wanted[i]);
      if (!(error <= worst)) worst = error;
    }
    return worst;
  }

  Sizes sizes_ = {16384, 1024, 2048, 8192, 10000, 128'000'000};
  std::vector<Precision> precisions_ = {Precision::fp32, Precision::bf16};
};

}  // namespace

std::unique_ptr<Benchmark> make_kernels_benchmark() {
  return std::make_unique<KernelsBenchmark>();
}

}  // namespace lockstep::bench
