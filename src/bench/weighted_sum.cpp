#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "bench/benchmark.h"
#include "bench/stopwatch.h"
#include "bench/values.h"

namespace lockstep::bench {
namespace {

constexpr Precision precision = Precision::fp32;

// y = x·weight with its gradients, as kernels of their own and as the matrix
// products of a linear layer with one output.
struct Problem {
  Problem(Backend& backend, std::int64_t rows, std::int64_t columns)
      : device(*backend.device), ops(*backend.ops), n(rows), d(columns) {
    x = fresh({n, d}, 1);
    weight = fresh({1, d}, 2);
    dy = fresh({n, 1}, 3);
    y = fresh({n, 1}, 0);
    dx = fresh({n, d}, 0);
    dweight = fresh({1, d}, 0);
  }
  Tensor fresh(Shape shape, std::uint32_t stream) {
    memory.push_back(device.allocate(Dtype::f32, shape, Category::activations,
                                     "weighted sum"));
    const Tensor tensor = memory.back().tensor(Dtype::f32, shape);
    if (stream > 0) fill_normal(device, tensor, stream);
    return tensor;
  }
  static Tensor flat(const Tensor& tensor) {
    return tensor.range(0, tensor.elements());
  }

  void forward() { ops.weighted_sum(flat(y), x, flat(weight)); }
  void backward() {
    ops.weighted_sum_backward(dx, flat(dweight), flat(dy), x, flat(weight));
  }
  void product_forward() { ops.linear(y, x, weight); }
  void product_backward() {
    ops.linear_backward_input(dx, dy, weight);
    ops.linear_backward_weight(dweight, dy, x, Accumulate::no);
  }
  // The largest difference between the two ways.
  double difference() {
    const auto results = [&] {
      return std::array{values_of(device, y), values_of(device, dx),
                        values_of(device, dweight)};
    };
    product_forward();
    product_backward();
    const auto wanted = results();
    forward();
    backward();
    const auto got = results();
    double worst = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double error = relative_difference(got[i], wanted[i]);
      worst = std::isnan(error) ? error : std::max(worst, error);
    }
    return worst;
  }

  Device& device;
  Ops& ops;
  std::int64_t n, d;
  std::vector<Buffer> memory;
  Tensor x, weight, dy, y, dx, dweight;
};

class WeightedSumBenchmark final : public Benchmark {
 public:
  std::string_view name() const override { return "weighted-sum"; }
  std::string_view summary() const override {
    return "a weighted sum of each row against a matrix-vector product and "
           "the speed of memory";
  }
  std::vector<OptionRow> options() override {
    constexpr std::int64_t most = 1 << 20;
    return {{"rows", "N", whole_list(rows_, 1, most),
             "of the matrix; with as many --columns, in pairs"},
            {"columns", "N", whole_list(columns_, 1, most), "of the matrix"}};
  }

  void check() const override {
    if (rows_.size() != columns_.size()) {
      usage_error("--rows has {} numbers and --columns {}", rows_.size(),
                  columns_.size());
    }
  }

  bool run(Bench& bench) override {
    using Kind = ResultColumn::Kind;
    Backend& backend = bench.backend(precision);
    ResultTable table =
        bench.table("weighted_sum", {{"pass", "", Kind::text, 9},
                                     {"rows", "", Kind::whole, 7},
                                     {"columns", "", Kind::whole, 7},
                                     {"kernel", "ms", Kind::real, 9, 4},
                                     {"product", "ms", Kind::real, 9, 4},
                                     {"rate", "GB/s", Kind::real, 9, 1},
                                     {"copy_rate", "GB/s", Kind::real, 9, 1},
                                     {"of_copy", "%", Kind::real, 8, 1}});
    bool right = true;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      right &=
          run_size(rows_[i], columns_[i], backend, bench.settings(), table);
    }
    return right;
  }

 private:
  static bool run_size(std::int64_t rows, std::int64_t columns,
                       Backend& backend, const Settings& settings,
                       ResultTable& table) {
    Stopwatch stopwatch(*backend.device, settings.warmup, settings.iterations);
    Problem problem(backend, rows, columns);
    const double error = problem.difference();
    const bool right = error <= 2e-5;
    const std::string note =
        right ? ""
              : fmt::format("WRONG: differs from the product by {:.1e}", error);
    // Memory is read and written at the speed of a copy of the matrix.
    const double matrix = double(problem.x.bytes());
    const double copy_rate =
        2 * matrix /
        stopwatch.time([&] { backend.device->copy(problem.dx, problem.x); })
            .median /
        1e6;
    const auto add = [&](const char* pass, double bytes, const Times& kernel,
                         const Times& product) {
      const double rate = bytes / kernel.median / 1e6;
      table.add({std::string(pass), rows, columns, kernel.median,
                 product.median, rate, copy_rate, 100 * rate / copy_rate},
                note);
    };
    const double vectors = double(4 * (rows + columns));
    add("forward", matrix + vectors, stopwatch.time([&] { problem.forward(); }),
        stopwatch.time([&] { problem.product_forward(); }));
    add("backward", 2 * matrix + 2 * vectors,
        stopwatch.time([&] { problem.backward(); }),
        stopwatch.time([&] { problem.product_backward(); }));
    return right;
  }

  std::vector<std::int64_t> rows_ = {256, 4096, 32768};
  std::vector<std::int64_t> columns_ = {256, 4096, 8192};
};

}  // namespace

std::unique_ptr<Benchmark> make_weighted_sum_benchmark() {
  return std::make_unique<WeightedSumBenchmark>();
}

}  // namespace lockstep::bench
