#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "bench/benchmark.h"
#include "config/choices.h"
#include "trainer/build_info.h"

namespace lockstep::bench {
namespace {

std::vector<OptionGroup> option_table(Benchmark& benchmark, Settings& s) {
  constexpr std::int64_t most = 1'000'000;
  return {{std::string(benchmark.name()), benchmark.options()},
          {"Measurement",
           {{"warmup-iterations", "N", whole(s.warmup, std::int64_t{0}, most),
             "runs before those that are measured"},
            {"iterations", "N", whole(s.iterations, std::int64_t{1}, most),
             "runs that are measured; tables show their median"},
            {"output", "FILE.h5", path(s.output), "the table as HDF5"}}},
          {"System",
           {{"device", "NAME", choice(s.machine.device, devices),
             "what to compute on; auto takes a GPU where there is one"},
            {"share-gpu", "[=BOOL]", choice(s.machine.share_gpu, booleans),
             "let several ranks use one GPU"},
            {"threads", "N", whole(s.machine.threads, 0, 4096),
             "CPU threads per rank; 0: the rank's share of the cores"}}}};
}

std::string help_text(const std::vector<std::unique_ptr<Benchmark>>& all) {
  std::string text =
      "Measures the parts that training is made of.\n\n"
      "Usage: bench NAME [options]     (bench NAME --help has them)\n\n";
  for (const auto& benchmark : all) {
    text +=
        fmt::format("  {:<14}{}\n", benchmark->name(), benchmark->summary());
  }
  return text +
         "\nExamples:\n"
         "  bench attention --seq-lens 128..4096 --precisions fp32,bf16\n"
         "  bench kernels --device cuda\n";
}

int run(World& world, int argc, char** argv) {
  const auto all = benchmarks();
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h") {
    if (world.root()) fmt::print("{}", help_text(all));
    return 0;
  }
  if (name == "--version") {
    if (world.root()) fmt::print("lockstep {}\n", build_version);
    return 0;
  }
  const auto chosen = std::find_if(
      all.begin(), all.end(), [&](const auto& b) { return b->name() == name; });
  Settings settings;
  Arguments arguments;
  std::vector<OptionGroup> table;
  world.together([&] {
    std::vector<std::string_view> names;
    for (const auto& benchmark : all) names.push_back(benchmark->name());
    if (chosen == all.end()) {
      usage_error("{}: a benchmark comes first, {}",
                  name.empty() ? "bench" : "'" + name + "'", one_of(names));
    }
    table = option_table(**chosen, settings);
    arguments = parse_arguments(argc - 1, argv + 1, table);
    if (!arguments.config_file.empty()) {
      usage_error("'{}': an option starts with --", arguments.config_file);
    }
    for (const Setting& setting : arguments.settings)
      lockstep::apply(setting, table);
    (*chosen)->check();
    if (world.size() > 1 && !(*chosen)->takes_several_ranks()) {
      usage_error("bench {} runs on one rank, not on {}", name, world.size());
    }
  });
  if (arguments.action == Action::help) {
    if (world.root()) {
      fmt::print("{}.\n\nUsage: bench {} [options]\n{}", (*chosen)->summary(),
                 name, options_text(table));
    }
    return 0;
  }
  Bench bench(world, settings, argc, argv);
  const bool right = (*chosen)->run(bench);
  world.together([&] { require(right, "results marked WRONG are wrong"); });
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::World world(argc, argv);
  return world.guard([&] { return lockstep::bench::run(world, argc, argv); });
}
