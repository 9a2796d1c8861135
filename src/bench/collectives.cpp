#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "bench/benchmark.h"
#include "config/choices.h"
#include "mpi/communicator.h"

namespace lockstep::bench {
namespace {

constexpr Choice<Collective> operations[] = {
    {"all_reduce", Collective::all_reduce},
    {"reduce_scatter", Collective::reduce_scatter},
    {"all_gather", Collective::all_gather},
    {"broadcast", Collective::broadcast}};
constexpr Choice<Dtype> dtypes[] = {{"float", Dtype::f32},
                                    {"bfloat16", Dtype::bf16}};

// "4096", or with a binary suffix, "64K", "1M", "2G".
OptionValue byte_count(std::int64_t& field) {
  return {"a number of bytes such as 4096, 64K, 1M or 2G",
          [&field](const std::string& given) {
            constexpr std::string_view suffixes = "KMG";
            constexpr std::int64_t most = std::int64_t{1} << 40;
            std::string digits = given;
            std::int64_t unit = 1;
            if (!given.empty()) {
              const auto power = suffixes.find(given.back());
              if (power != std::string_view::npos) {
                unit <<= 10 * (power + 1);
                digits.pop_back();
              }
            }
            std::int64_t value = 0;
            if (!whole(value, std::int64_t{1}, most / unit).set(digits)) {
              return false;
            }
            field = value * unit;
            return true;
          },
          [&field] { return fmt::format("{}", field); }};
}

// What element `i` of a rank's input is: small whole numbers, whose sums are
// exact in any dtype. The period of 4 makes expected values cheap.
constexpr std::int64_t period = 4;
float input_value(int rank, std::int64_t i, int seed) {
  return static_cast<float>((i + std::int64_t{3} * rank + seed) % period);
}

// One collective on buffers of its own. Terms are those of nccl-tests: sizes
// are of the whole buffer, for a reduce-scatter and an all-gather all ranks'
// shards together.
class Exchange {
 public:
  Exchange(Collective collective, Dtype dtype, std::int64_t bytes,
           Device& device, Communicator& comm)
      : collective_(collective), device_(device), comm_(comm) {
    // Shards are aligned to 16 bytes.
    const std::int64_t step = 16 / bytes_of(dtype);
    const std::int64_t shard =
        bytes / bytes_of(dtype) / comm.size() / step * step;
    elements_ = sharded() ? shard * comm.size() : bytes / bytes_of(dtype);
    require(elements_ > 0, "{} bytes are too few for {} ranks", bytes,
            comm.size());
    in_memory_ = device.allocate(dtype, {elements_}, Category::communication,
                                 "what is sent");
    out_memory_ = device.allocate(dtype, {elements_}, Category::communication,
                                  "what is received");
    in_ = in_memory_.tensor(dtype, {elements_});
    out_ = out_memory_.tensor(dtype, {elements_});
  }

  std::int64_t bytes() const { return in_.bytes(); }
  // The count that MPI's and NCCL's calls take.
  std::int64_t count() const {
    return sharded() ? part().elements() : elements_;
  }
  // Bus bandwidth is algorithm bandwidth times this: what a link carries,
  // whatever the number of ranks (nccl-tests, doc/PERFORMANCE.md).
  double bus_factor() const {
    const double ranks = comm_.size();
    switch (collective_) {
      case Collective::all_reduce:
        return 2 * (ranks - 1) / ranks;
      case Collective::reduce_scatter:
      case Collective::all_gather:
        return (ranks - 1) / ranks;
      case Collective::broadcast:
        return 1;
    }
    return 1;
  }

  void issue(bool in_place) {
    const Tensor to = in_place ? in_ : out_;
    switch (collective_) {
      case Collective::all_reduce:
        return comm_.all_reduce(to, in_, Reduction::sum);
      case Collective::reduce_scatter:
        return comm_.reduce_scatter(in_place ? part() : shard(), in_,
                                    Reduction::sum);
      case Collective::all_gather:
        return comm_.all_gather(to, in_place ? part() : shard_in());
      case Collective::broadcast:
        return comm_.broadcast(to, in_, root);
    }
  }

  // Elements that are wrong on this rank after one run on fresh values.
  std::int64_t wrong(bool in_place, int seed) {
    fill(in_place, seed);
    comm_.wait(device_.record());
    issue(in_place);
    comm_.synchronize();
    const bool scattered = collective_ == Collective::reduce_scatter;
    const Tensor result = scattered  ? (in_place ? part() : shard())
                          : in_place ? in_
                                     : out_;
    std::vector<float> values(result.elements());
    download(device_, values, result);
    const std::int64_t first = scattered ? comm_.rank() * count() : 0;
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < std::ssize(values); ++i) {
      wrong += values[i] == expected(first + i, seed) ? 0 : 1;
    }
    return wrong;
  }

  static constexpr int root = 0;

 private:
  bool sharded() const {
    return collective_ == Collective::reduce_scatter ||
           collective_ == Collective::all_gather;
  }
  // This rank's part of the whole buffer, and shards beside it.
  Tensor part() const {
    const std::int64_t n = elements_ / comm_.size();
    return in_.range(comm_.rank() * n, n);
  }
  Tensor shard() const { return out_.range(0, elements_ / comm_.size()); }
  Tensor shard_in() const { return in_.range(0, elements_ / comm_.size()); }

  void fill(bool in_place, int seed) {
    const int rank = comm_.rank();
    const auto put = [&](const Tensor& tensor, std::int64_t first) {
      std::vector<float> values(tensor.elements());
      for (std::int64_t i = 0; i < std::ssize(values); ++i) {
        values[i] = input_value(rank, first + i, seed);
      }
      upload(device_, tensor, values);
    };
    // What has to be received is not there before.
    std::vector<float> nothing(elements_, -1);
    upload(device_, out_, nothing);
    if (collective_ != Collective::all_gather) return put(in_, 0);
    upload(device_, in_, nothing);
    put(in_place ? part() : shard_in(), rank * count());
  }

  float expected(std::int64_t i, int seed) const {
    const int ranks = comm_.size();
    switch (collective_) {
      case Collective::all_gather:
        return input_value(static_cast<int>(i / count()), i, seed);
      case Collective::broadcast:
        return input_value(root, i, seed);
      default:
        break;
    }
    float sum = 0;
    for (int rank = 0; rank < std::min<std::int64_t>(ranks, period); ++rank) {
      // Every period-th rank has the same values.
      const std::int64_t alike = (ranks - rank + period - 1) / period;
      sum += float(alike) * input_value(rank, i, seed);
    }
    return sum;
  }

  Collective collective_;
  Device& device_;
  Communicator& comm_;
  std::int64_t elements_ = 0;
  Buffer in_memory_, out_memory_;
  Tensor in_, out_;
};

class CollectivesBenchmark final : public Benchmark {
 public:
  std::string_view name() const override { return "collectives"; }
  std::string_view summary() const override {
    return "collectives by size, over NCCL on GPUs and MPI on CPUs, as "
           "nccl-tests measures them";
  }
  bool takes_several_ranks() const override { return true; }

  std::vector<OptionRow> options() override {
    return {{"op", "NAME", choice_list(operations_, operations),
             "collectives, one after the other"},
            {"min-bytes", "N", byte_count(least_), "smallest buffer"},
            {"max-bytes", "N", byte_count(most_), "largest buffer"},
            {"factor", "N", whole(factor_, std::int64_t{2}, std::int64_t{1024}),
             "from one size to the next"},
            {"dtype", "NAME", choice_list(dtypes_, dtypes), "of the elements"},
            {"check", "[=BOOL]", choice(check_, booleans),
             "compare every element with what it has to be"}};
  }

  void check() const override {
    if (least_ > most_) {
      usage_error("--min-bytes {} is above --max-bytes {}", least_, most_);
    }
  }

  bool run(Bench& bench) override {
    using Kind = ResultColumn::Kind;
    Device& device = *bench.backend(Precision::fp32).device;
    const auto comm = make_communicator(bench.world(), device,
                                        bench.settings().machine.share_gpu);
    std::vector<ResultColumn> columns = {{"op", "", Kind::text, 14},
                                         {"type", "", Kind::text, 8},
                                         {"size", "B", Kind::whole, 12},
                                         {"count", "", Kind::whole, 12}};
    for (const char* prefix : {"", "in_place_"}) {
      const int width = *prefix == '\0' ? 10 : 17;
      columns.push_back(
          {fmt::format("{}time", prefix), "us", Kind::real, width, 1});
      columns.push_back(
          {fmt::format("{}algbw", prefix), "GB/s", Kind::real, width, 3});
      columns.push_back(
          {fmt::format("{}busbw", prefix), "GB/s", Kind::real, width, 3});
      columns.push_back(
          {fmt::format("{}wrong", prefix), "", Kind::real, width, 0});
    }
    ResultTable table = bench.table("collectives", std::move(columns));
    std::int64_t wrong = 0;
    for (const Collective collective : operations_) {
      for (const Dtype dtype : dtypes_) {
        for (std::int64_t bytes = least_; bytes <= most_; bytes *= factor_) {
          wrong +=
              run_size(collective, dtype, bytes, device, *comm, bench, table);
        }
      }
    }
    return wrong == 0;
  }

 private:
  // Elements that were wrong on any rank.
  std::int64_t run_size(Collective collective, Dtype dtype, std::int64_t bytes,
                        Device& device, Communicator& comm, Bench& bench,
                        ResultTable& table) {
    World& world = bench.world();
    std::optional<Exchange> exchange;
    world.together(
        [&] { exchange.emplace(collective, dtype, bytes, device, comm); });
    std::vector<Cell> row = {choice(collective, operations).get(),
                             choice(dtype, dtypes).get(), exchange->bytes(),
                             exchange->count()};
    std::int64_t all_wrong = 0;
    for (const bool in_place : {false, true}) {
      const double us = microseconds(*exchange, in_place, comm, bench);
      const double algorithm = double(exchange->bytes()) / us / 1e3;
      double wrong = std::nan("");
      if (check_) {
        const auto mine = double(exchange->wrong(in_place, in_place ? 1 : 2));
        const auto all = world.all_gather({&mine, 1});
        wrong = std::accumulate(all.begin(), all.end(), 0.0);
        all_wrong += static_cast<std::int64_t>(wrong);
      }
      row.insert(row.end(),
                 {us, algorithm, algorithm * exchange->bus_factor(), wrong});
    }
    table.add(std::move(row), all_wrong > 0 ? "WRONG" : "");
    return all_wrong;
  }

  // Of one operation, the mean of many that are issued back to back, and of
  // all ranks' clocks.
  static double microseconds(Exchange& exchange, bool in_place,
                             Communicator& comm, Bench& bench) {
    using Clock = std::chrono::steady_clock;
    const auto issue = [&](std::int64_t times) {
      for (std::int64_t i = 0; i < times; ++i) exchange.issue(in_place);
      comm.synchronize();
    };
    const auto barrier = [&] { bench.world().all_gather(std::string()); };
    // Figures of a step are of what is measured, and forget what was before.
    comm.begin_step(0);
    issue(bench.settings().warmup + 1);
    barrier();
    comm.begin_step(0);
    const auto begin = Clock::now();
    issue(bench.settings().iterations);
    const std::chrono::duration<double, std::micro> passed =
        Clock::now() - begin;
    const double mine = passed.count() / double(bench.settings().iterations);
    const auto all = bench.world().all_gather({&mine, 1});
    return std::accumulate(all.begin(), all.end(), 0.0) / double(all.size());
  }

  std::vector<Collective> operations_ = {Collective::all_reduce};
  std::int64_t least_ = std::int64_t{1} << 20;
  std::int64_t most_ = std::int64_t{1} << 30;
  std::int64_t factor_ = 10;
  std::vector<Dtype> dtypes_ = {Dtype::f32};
  bool check_ = true;
};

}  // namespace

std::unique_ptr<Benchmark> make_collectives_benchmark() {
  return std::make_unique<CollectivesBenchmark>();
}

}  // namespace lockstep::bench
