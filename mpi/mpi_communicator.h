#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "mpi/communicator.h"

namespace lockstep {

// What tests change.
struct MpiSettings {
  // MPI counts are ints: more elements than this travel in pieces.
  std::int64_t chunk = std::int64_t{1} << 30;
  // Called on the lane before each collective.
  std::function<void()> before_each;
};

// Collectives by MPI on host memory. Its lane is one worker thread, which alone
// calls MPI and runs the collectives in order, so that they go on while the
// calling thread computes. An MPI error there aborts the run, naming the
// collective.
std::unique_ptr<Communicator> make_mpi_communicator(World& world,
                                                    MpiSettings settings = {});

}  // namespace lockstep
