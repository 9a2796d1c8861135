#include "trainer/dry_run.h"

#include <fmt/format.h>

#include <cmath>

#include "mpi/dry_communicator.h"
#include "ops/dry_backend.h"
#include "trainer/run_data.h"
#include "trainer/step_engine.h"

namespace lockstep {
namespace {

// Ranks differ only in how whole parameters were shared out, and by less the
// more there are.
constexpr int most_ranks_planned = 64;

// What activations take with --recompute block:K, from K = 1 on: blocks' inputs
// get fewer, and blocks in work more.
std::string block_choices(Options options) {
  std::string text = "activations with --recompute block:K\n";
  std::int64_t least = 0, best = 0;
  const auto most = std::int64_t(2 * std::sqrt(options.model.num_layers));
  for (std::int64_t k = 1; k <= most; ++k) {
    options.recompute.blocks = k;
    const std::int64_t bytes =
        plan_rank(options, 0)
            .memory.bytes[static_cast<int>(Category::activations)];
    if (best == 0 || bytes < least) {
      least = bytes;
      best = k;
    }
    text += fmt::format("  K = {:<11}{:>12}\n", k, format_bytes(double(bytes)));
  }
  return text + fmt::format("  least with K = {}\n\n", best);
}

// A plan, and of which rank: the one that holds the most.
struct FullestRank {
  int rank = 0;
  RankPlan plan;
};

FullestRank plan_fullest_rank(const Options& options) {
  FullestRank fullest{0, plan_rank(options, 0)};
  for (int rank = 1; rank < std::min(options.world_size, most_ranks_planned);
       ++rank) {
    RankPlan other = plan_rank(options, rank);
    if (other.memory.total <= fullest.plan.memory.total) continue;
    fullest = {rank, other};
  }
  return fullest;
}

std::string as_csv(const RankPlan& plan) {
  std::string text = "what,name,bytes,calls,elements\n";
  for (int i = 0; i < category_count; ++i) {
    text += fmt::format("memory,{},{},,\n", category_names[i],
                        plan.memory.bytes[i]);
  }
  text += fmt::format("memory,total,{},,\n", plan.memory.total);
  for (std::size_t i = 0; i < collective_names.size(); ++i) {
    const Traffic& traffic = plan.comm.traffic[i];
    text += fmt::format("sent,{},{},{},{}\n", collective_names[i],
                        traffic.bytes, traffic.calls, traffic.elements);
  }
  return text;
}

std::string memory_text(const MemoryFigures& memory) {
  std::string text;
  for (int i = 0; i < category_count; ++i) {
    text += fmt::format("  {:<15}{:>12}{}\n", category_names[i],
                        format_bytes(double(memory.bytes[i])),
                        i == static_cast<int>(Category::workspace)
                            ? ", without the scratch of kernels and libraries"
                            : "");
  }
  return text + fmt::format("  {:<15}{:>12}\n", "total",
                            format_bytes(double(memory.total)));
}

std::string traffic_text(const CommFigures& comm, double parameters) {
  std::string text;
  const auto line = [&](std::string_view name, const Traffic& traffic) {
    text += fmt::format("  {:<15}{:>12}{:>8} call{}{:>8.2f} Ψ\n", name,
                        format_bytes(double(traffic.bytes)), traffic.calls,
                        traffic.calls == 1 ? " " : "s",
                        double(traffic.elements) / parameters);
  };
  for (std::size_t i = 0; i < collective_names.size(); ++i) {
    if (comm.traffic[i].calls > 0) line(collective_names[i], comm.traffic[i]);
  }
  line("total", comm.total());
  return text + "  an all-reduce counts twice its elements, the others once\n";
}

}  // namespace

RankPlan plan_rank(const Options& options, int rank) {
  Backend backend = make_dry_backend();
  DryCommunicator comm(rank, options.world_size);
  const auto batches = noise_batches(
      batch_shape(options, rank, options.world_size), options.seed);
  StepEngine engine(options, backend, comm, *batches);
  engine.issue(1);
  return {backend.device->ledger().figures(), comm.figures_of(1)};
}

std::string dry_run(const Options& options) {
  const auto [rank, plan] = plan_fullest_rank(options);
  if (options.dry_run == DryRun::csv) return as_csv(plan);
  const std::int64_t parameters = options.model.parameters();
  std::string text = fmt::format(
      "dry run: {} parameters, {} precision, --sync {} on {} rank{}, {} "
      "sequences of {} tokens a rank and micro-step\n"
      "{:.0f} FLOPs a token, forward and backward, with the causal half of "
      "attention and without the lookup\n\n"
      "memory of rank {}{}\n{}\n",
      parameters, name_of(options.precision), options.sync, options.world_size,
      options.world_size == 1 ? "" : "s", options.batch_size,
      options.model.context_length, options.model.flops_per_token(), rank,
      options.world_size > 1 ? ", which holds the most" : "",
      memory_text(plan.memory));
  if (options.recompute.level == RecomputeLevel::block) {
    text += block_choices(options);
  }
  if (plan.comm.total().calls == 0) return text + "nothing is sent\n";
  return text + "sent in a step (Ψ: the number of parameters)\n" +
         traffic_text(plan.comm, double(parameters));
}

}  // namespace lockstep
