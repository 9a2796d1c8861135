#include "bench/benchmark.h"

#include <utility>

namespace lockstep::bench {

Backend& Bench::backend(Precision precision) {
  placement_.reset();
  Options machine = settings_.machine;
  machine.precision = precision;
  placement_ = place_rank(machine, world_);
  return placement_->backend;
}

ResultTable Bench::table(std::string name, std::vector<ResultColumn> columns) {
  RunFacts facts = machine_facts(world_, *placement_, argc_, argv_);
  facts.integers.emplace_back("warmup_iterations", settings_.warmup);
  facts.integers.emplace_back("iterations", settings_.iterations);
  std::optional<ResultTable> table;
  world_.together([&] {
    table.emplace(std::move(name), std::move(columns), settings_.output,
                  std::move(facts), world_.root());
  });
  return std::move(*table);
}

std::vector<std::unique_ptr<Benchmark>> benchmarks() {
  std::vector<std::unique_ptr<Benchmark>> all;
  all.push_back(make_attention_benchmark());
  all.push_back(make_kernels_benchmark());
  all.push_back(make_gemm_benchmark());
  all.push_back(make_weighted_sum_benchmark());
  all.push_back(make_collectives_benchmark());
  return all;
}

}  // namespace lockstep::bench
