#pragma once

#include <sched.h>

#include <span>
#include <string>
#include <vector>

namespace lockstep {

// Where a rank runs, as far as it can be badly placed.
struct RankPlacement {
  int rank = 0;
  std::string host;
  int threads = 1;
  cpu_set_t mask{};             // the cores it may run on
  double quota = 0;             // cores' worth of time for its host; 0: all
  std::vector<int> core_nodes;  // NUMA nodes of these; empty: only one
  std::string gpu;              // bus id; "" on CPUs
  int gpu_node = -1;            // its NUMA node; -1: not known, or only one
  // GPUs that it sees but cannot copy to directly, by bus id.
  std::vector<std::string> not_peers;
};

// A line for each kind of mistake and host: threads that have fewer cores than
// there are of them, GPUs far from their ranks' cores, GPUs of one host that
// cannot reach each other. Says which ranks, and what to do.
std::vector<std::string> placement_warnings(
    std::span<const RankPlacement> ranks);

}  // namespace lockstep
