#pragma once

#include <string>

#include "config/options.h"
#include "core/memory_ledger.h"
#include "mpi/communicator.h"

namespace lockstep {

// What one rank of a run would hold and, in each step, send.
struct RankPlan {
  MemoryFigures memory;  // workspace without the scratch of kernels
  CommFigures comm;
};

// Runs a step of the real program on a device and a communicator that do
// nothing, so the figures are those of a run by construction.
RankPlan plan_rank(const Options& options, int rank);

// --dry-run: the plan for --world-size ranks as text or, with exact bytes, as
// CSV. Where ranks differ, of the one that holds the most.
std::string dry_run(const Options& options);

}  // namespace lockstep
