#include "trainer/placement_warnings.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "mpi/cores.h"

namespace lockstep {
namespace {

using Ranks = std::vector<const RankPlacement*>;

std::vector<Ranks> by_host(std::span<const RankPlacement> ranks) {
  std::vector<Ranks> hosts;
  for (const RankPlacement& rank : ranks) {
    auto host = std::find_if(hosts.begin(), hosts.end(), [&](const Ranks& r) {
      return r.front()->host == rank.host;
    });
    if (host == hosts.end()) host = hosts.insert(hosts.end(), Ranks());
    host->push_back(&rank);
  }
  return hosts;
}

// "rank 3", "ranks 0-3,7"
std::string names(const Ranks& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::size_t last = i;
    while (last + 1 < ranks.size() &&
           ranks[last + 1]->rank == ranks[last]->rank + 1) {
      ++last;
    }
    text += fmt::format("{}{}{}", text.empty() ? "" : ",", ranks[i]->rank,
                        last > i ? fmt::format("-{}", ranks[last]->rank) : "");
    i = last;
  }
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", text);
}

// Cores' worth of time in a mask.
double worth(const cpu_set_t& mask, double quota) {
  return quota > 0 ? std::min(quota, double(CPU_COUNT(&mask)))
                   : CPU_COUNT(&mask);
}

// "2 cores (0-1)", "1.5 of 8 cores (0-7)"
std::string cores_text(const cpu_set_t& mask, double quota) {
  const int count = CPU_COUNT(&mask);
  const double granted = worth(mask, quota);
  return fmt::format("{}{} core{} ({})",
                     granted < count ? fmt::format("{:.3g} of ", granted) : "",
                     count, count == 1 ? "" : "s", mask_text(mask));
}

// Threads that run on a rank's cores, if each rank's spread over its mask.
double threads_on_cores_of(const RankPlacement& rank, const Ranks& host) {
  double threads = 0;
  for (const RankPlacement* other : host) {
    cpu_set_t both;
    CPU_AND(&both, &rank.mask, &other->mask);
    threads += double(other->threads) * CPU_COUNT(&both) /
               std::max(1, CPU_COUNT(&other->mask));
  }
  return threads;
}

void warn_of_crowded_cores(const Ranks& host,
                           std::vector<std::string>& warnings) {
  Ranks crowded;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  int threads = 0;
  for (const RankPlacement* rank : host) {
    const double granted = worth(rank->mask, rank->quota);
    if (threads_on_cores_of(*rank, host) < granted + 0.01) continue;
    crowded.push_back(rank);
    threads += rank->threads;
    CPU_OR(&cores, &cores, &rank->mask);
  }
  if (crowded.empty()) return;
  const std::string where = cores_text(cores, crowded.front()->quota);
  if (crowded.size() == 1) {
    warnings.push_back(fmt::format(
        "{} runs {} threads on {}; with mpirun, --bind-to none or --map-by "
        "slot:PE={} gives it more",
        names(crowded), threads, where, threads));
    return;
  }
  warnings.push_back(fmt::format(
      "{} on {} are oversubscribed: {} threads take turns on {}, so steps are "
      "slower than with a core for each, though just as right; for speed start "
      "fewer ranks, or, if the host has more cores, give each rank its own: "
      "mpirun --map-by slot:PE=N, srun --cpu-bind=cores",
      names(crowded), host.front()->host, threads, where));
}

void warn_of_far_gpus(const Ranks& host, std::vector<std::string>& warnings) {
  Ranks far;
  for (const RankPlacement* rank : host) {
    const auto& nodes = rank->core_nodes;
    if (rank->gpu_node < 0 || nodes.empty()) continue;
    if (std::find(nodes.begin(), nodes.end(), rank->gpu_node) == nodes.end()) {
      far.push_back(rank);
    }
  }
  if (far.empty()) return;
  const RankPlacement& first = *far.front();
  warnings.push_back(fmt::format(
      "{} on {}: GPU {} is on NUMA node {}, cores {} on {}{}; place ranks in "
      "blocks: srun --distribution=block:block, mpirun --map-by slot:PE=N",
      names(far), first.host, first.gpu, first.gpu_node, mask_text(first.mask),
      fmt::join(first.core_nodes, ","),
      far.size() == 1 ? "" : ", and the others' likewise"));
}

void warn_of_missing_peers(const Ranks& host,
                           std::vector<std::string>& warnings) {
  for (const RankPlacement* rank : host) {
    for (const RankPlacement* other : host) {
      const auto& not_peers = rank->not_peers;
      if (std::find(not_peers.begin(), not_peers.end(), other->gpu) ==
          not_peers.end()) {
        continue;
      }
      warnings.push_back(fmt::format(
          "GPUs {} and {} on {} have no peer access to each other, so NCCL "
          "copies through host memory; scripts/doctor shows the topology",
          rank->gpu, other->gpu, rank->host));
      return;  // where one pair has none, many have none
    }
  }
}

}  // namespace

std::vector<std::string> placement_warnings(
    std::span<const RankPlacement> ranks) {
  std::vector<std::string> warnings;
  for (const Ranks& host : by_host(ranks)) {
    warn_of_crowded_cores(host, warnings);
    warn_of_far_gpus(host, warnings);
    warn_of_missing_peers(host, warnings);
  }
  return warnings;
}

}  // namespace lockstep
