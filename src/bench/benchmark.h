#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/option_parser.h"
#include "config/options.h"
#include "mpi/world.h"
#include "record/result_table.h"
#include "trainer/launch.h"

namespace lockstep::bench {

// What every benchmark can be told.
struct Settings {
  Options machine;  // its device, share-gpu and threads
  std::int64_t warmup = 10;
  std::int64_t iterations = 100;
  std::string output = "bench.h5";
};

// What a benchmark works with.
class Bench {
 public:
  Bench(World& world, const Settings& settings, int argc, char** argv)
      : world_(world), settings_(settings), argc_(argc), argv_(argv) {}

  World& world() { return world_; }
  const Settings& settings() const { return settings_; }
  // This rank's device, with operations in this precision. Valid until the next
  // call, before which everything allocated on it is to be gone. Collective.
  Backend& backend(Precision precision);
  // An empty table that goes to --output. After the first backend().
  // Collective.
  ResultTable table(std::string name, std::vector<ResultColumn> columns);

 private:
  World& world_;
  const Settings& settings_;
  int argc_;
  char** argv_;
  std::optional<Placement> placement_;
};

// One subcommand of `bench`.
class Benchmark {
 public:
  virtual ~Benchmark() = default;
  virtual std::string_view name() const = 0;
  virtual std::string_view summary() const = 0;  // a line for --help
  // Its options, bound to fields of its own.
  virtual std::vector<OptionRow> options() = 0;
  // A UsageError where these contradict each other.
  virtual void check() const {}
  virtual bool takes_several_ranks() const { return false; }
  // Prints and records its table. False if a result was wrong.
  virtual bool run(Bench& bench) = 0;
};

// All of them, in the order of --help.
std::vector<std::unique_ptr<Benchmark>> benchmarks();

std::unique_ptr<Benchmark> make_attention_benchmark();
std::unique_ptr<Benchmark> make_weighted_sum_benchmark();
std::unique_ptr<Benchmark> make_kernels_benchmark();
std::unique_ptr<Benchmark> make_gemm_benchmark();
std::unique_ptr<Benchmark> make_collectives_benchmark();

}  // namespace lockstep::bench
