#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "bench/benchmark.h"
#include "bench/stopwatch.h"
#include "bench/values.h"
#include "config/choices.h"
#include "ops/attention.h"

namespace lockstep::bench {
namespace {

// One point of the sweep.
struct Problem {
  std::int64_t batch, heads, tokens, head_dim;
  Precision precision;
  bool causal;

  // Two products of 2·T²·D forward and five backward, half of each if causal
  // (Dao et al. 2022, section 3.1).
  double forward_flops() const {
    return 4.0 * double(batch * heads * tokens) * double(tokens * head_dim) *
           (causal ? 0.5 : 1.0);
  }
  double backward_flops() const { return 2.5 * forward_flops(); }
};

// The tensors of an attention, [B, T, H, D] each, with random inputs, and one
// implementation of it. The backward pass has tensors of its own, so that
// memory before it is what the forward pass leaves.
class Attempt {
 public:
  Attempt(const Problem& problem, AttentionKind kind, Backend& backend)
      : problem_(problem),
        device_(*backend.device),
        attention_(make_attention(kind, backend)) {
    saved_ = {input(1), input(2), input(3), fresh("o"), lse()};
    gradients_.dout = input(4);
  }

  void forward() { attention_->forward(saved_, problem_.causal); }
  void make_gradients() {
    gradients_.dq = fresh("dq");
    gradients_.dk = fresh("dk");
    gradients_.dv = fresh("dv");
  }
  void backward() { attention_->backward(gradients_, saved_, problem_.causal); }

  // Values of o, dq, dk and dv, one after the other.
  std::vector<double> results() {
    std::vector<double> all;
    for (const Heads& heads :
         {saved_.o, gradients_.dq, gradients_.dk, gradients_.dv}) {
      const auto values =
          values_of(device_, {heads.data, heads.dtype, {elements()}});
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

 private:
  std::int64_t elements() const {
    return problem_.batch * problem_.tokens * problem_.heads *
           problem_.head_dim;
  }
  Heads fresh(const char* name) {
    const Dtype dtype = compute_dtype(problem_.precision);
    const Shape shape{problem_.batch * problem_.tokens,
                      problem_.heads * problem_.head_dim};
    memory_.push_back(
        device_.allocate(dtype, shape, Category::activations, name));
    return row_heads(memory_.back().tensor(dtype, shape), problem_.batch,
                     problem_.heads);
  }
  Heads input(std::uint32_t which) {
    const Heads heads = fresh("inputs");
    fill_normal(device_, {heads.data, heads.dtype, {elements()}}, which);
    return heads;
  }
  Tensor lse() {
    const Shape shape{problem_.batch, problem_.heads, problem_.tokens};
    memory_.push_back(device_.allocate(Dtype::f32, shape, Category::activations,
                                       "log-sum-exp"));
    return memory_.back().tensor(Dtype::f32, shape);
  }

  Problem problem_;
  Device& device_;
  std::unique_ptr<Attention> attention_;
  std::vector<Buffer> memory_;
  Attention::Saved saved_;
  Attention::Gradients gradients_;
};

// Both implementations have to agree before either is timed, at up to this
// many tokens, as their difference allows in this precision.
constexpr std::int64_t most_tokens_checked = 1024;
double tolerance(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return 4e-5;
    case Precision::tf32:
      return 1e-2;
    default:
      return 3e-2;
  }
}

double difference(Problem problem, Backend& backend) {
  problem.batch = 1;
  problem.heads = std::min<std::int64_t>(problem.heads, 2);
  problem.tokens = std::min(problem.tokens, most_tokens_checked);
  const auto results = [&](AttentionKind kind) {
    Attempt attempt(problem, kind, backend);
    attempt.make_gradients();
    attempt.forward();
    attempt.backward();
    return attempt.results();
  };
  return relative_difference(results(AttentionKind::flash),
                             results(AttentionKind::naive));
}

class AttentionBenchmark final : public Benchmark {
 public:
  std::string_view name() const override { return "attention"; }
  std::string_view summary() const override {
    return "attention's passes by sequence length, tile by tile and with its "
           "scores in memory";
  }

  std::vector<OptionRow> options() override {
    constexpr std::int64_t most = std::numeric_limits<int>::max();
    return {
        {"batch", "N", whole_list(batches_, 1, most), "sequences"},
        {"heads", "N", whole_list(heads_, 1, most), "of a sequence"},
        {"head-dims", "N", whole_list(head_dims_, 1, 256), "of a head"},
        {"seq-lens", "N", whole_list(tokens_, 1, most), "tokens of a sequence"},
        {"precisions", "NAME", choice_list(precisions_, precisions),
         "how numbers are stored and multiplied"},
        {"attention", "NAME", choice_list(kinds_, attentions),
         "flash, naive or both"},
        {"causal", "[=BOOL]", choice(causal_, booleans),
         "whether tokens see only those before them"}};
  }

  bool run(Bench& bench) override {
    using Kind = ResultColumn::Kind;
    bench.backend(precisions_.front());
    ResultTable table = bench.table(
        "attention", {{"attention", "", Kind::text, 9},
                      {"precision", "", Kind::text, 9},
                      {"causal", "", Kind::whole, 6},
                      {"batch", "", Kind::whole, 5},
                      {"heads", "", Kind::whole, 5},
                      {"head_dim", "", Kind::whole, 8},
                      {"tokens", "", Kind::whole, 7},
                      {"forward", "ms", Kind::real, 9, 4},
                      {"backward", "ms", Kind::real, 9, 4},
                      {"both", "ms", Kind::real, 9, 4},
                      {"forward_rate", "TFLOP/s", Kind::real, 12, 2},
                      {"backward_rate", "TFLOP/s", Kind::real, 13, 2},
                      {"memory", "MiB", Kind::real, 10, 1},
                      {"spread", "%", Kind::real, 6, 1}});
    bool right = true;
    for (const Precision precision : precisions_) {
      Backend& backend = bench.backend(precision);
      for (const std::int64_t batch : batches_) {
        for (const std::int64_t heads : heads_) {
          for (const std::int64_t head_dim : head_dims_) {
            for (const std::int64_t tokens : tokens_) {
              const Problem problem{batch,    heads,     tokens,
                                    head_dim, precision, causal_};
              right &= run_point(problem, backend, bench.settings(), table);
            }
          }
        }
      }
    }
    return right;
  }

 private:
  bool run_point(const Problem& problem, Backend& backend,
                 const Settings& settings, ResultTable& table) {
    std::string wrong;
    if (const double error = difference(problem, backend);
        !(error <= tolerance(problem.precision))) {
      wrong = fmt::format("WRONG: flash and naive differ by {:.1e}", error);
    }
    for (const AttentionKind kind : kinds_) {
      AttentionKind mine = kind;
      std::vector<Cell> row = {
          choice(mine, attentions).get(),
          std::string(name_of(problem.precision)),
          std::int64_t{problem.causal},
          problem.batch,
          problem.heads,
          problem.head_dim,
          problem.tokens,
      };
      const std::size_t measured = row.size();
      std::string note = wrong;
      try {
        append(row, problem, kind, backend, settings);
      } catch (const OutOfMemory& error) {
        row.resize(measured);
        row.insert(row.end(), 7, std::nan(""));
        note = fmt::format("OUT OF MEMORY: {} more wanted",
                           format_bytes(double(error.bytes)));
      }
      table.add(std::move(row), note);
    }
    return wrong.empty();
  }

  static void append(std::vector<Cell>& row, const Problem& problem,
                     AttentionKind kind, Backend& backend,
                     const Settings& settings) {
    Stopwatch stopwatch(*backend.device, settings.warmup, settings.iterations);
    Attempt attempt(problem, kind, backend);
    const Times forward = stopwatch.time([&] { attempt.forward(); });
    const std::int64_t held =
        backend.device->ledger().figures().bytes[int(Category::activations)];
    attempt.make_gradients();
    const Times backward = stopwatch.time([&] { attempt.backward(); });
    const Times both = stopwatch.time([&] {
      attempt.forward();
      attempt.backward();
    });
    row.insert(row.end(),
               {forward.median, backward.median, both.median,
                problem.forward_flops() / forward.median / 1e9,
                problem.backward_flops() / backward.median / 1e9,
                double(held) / (1 << 20), 100 * both.deviation / both.mean});
  }

  std::vector<std::int64_t> batches_ = {8}, heads_ = {1};
  std::vector<std::int64_t> head_dims_ = {16, 32, 64, 128};
  std::vector<std::int64_t> tokens_ = {256, 1024, 4096, 8192, 16384};
  std::vector<Precision> precisions_ = {Precision::fp32};
  std::vector<AttentionKind> kinds_ = {AttentionKind::flash,
                                       AttentionKind::naive};
  bool causal_ = true;
};

}  // namespace

std::unique_ptr<Benchmark> make_attention_benchmark() {
  return std::make_unique<AttentionBenchmark>();
}

}  // namespace lockstep::bench
