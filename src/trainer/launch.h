#pragma once

#include <vector>

#include "config/options.h"
#include "mpi/world.h"
#include "ops/ops.h"
#include "record/console.h"
#include "record/run_record.h"

namespace lockstep {

// The device this rank computes on, by --device, --share-gpu and --threads.
// Collective: ranks of one host share out its GPUs, the local rank's own where
// all see the same, the first free one where each sees others. Errors, on all
// ranks: more local ranks than GPUs (unless they may share), no GPU, no CUDA
// in this build.
struct Placement {
  Backend backend;
  int threads = 1;
  std::vector<RankRow> rows;  // every rank's, for the console
  std::vector<std::string> warnings;
};
Placement place_rank(const Options& options, World& world);

// The ordinal of the GPU this rank takes among those it sees, as said above.
int choose_gpu(const std::vector<CudaDeviceInfo>& mine, bool share,
               World& world);

// --progress auto, settled: plain where mpirun's own output is no terminal. It
// gives its ranks a pseudo-terminal whatever it writes to itself.
Progress settled_progress(Progress progress);

// What a record says about the machine and the programs that made it.
RunFacts machine_facts(const World& world, const Placement& placement, int argc,
                       char** argv);
// The same and what the run record says about a run.
RunFacts run_facts(const Options& options, const World& world,
                   const Placement& placement, int argc, char** argv);

}  // namespace lockstep
