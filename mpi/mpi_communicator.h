#pragma once

#include <cstdint>
#include <memory>

#include "mpi/communicator.h"

namespace lockstep {

// Collectives by MPI on host memory. Its lane is one worker thread, which alone
// calls MPI and runs the collectives in order, so that they go on while the
// calling thread computes. An MPI error there aborts the run, naming the
// collective. MPI counts are ints: more than `chunk` elements travel in pieces
// (tests lower it).
std::unique_ptr<Communicator> make_mpi_communicator(
    World& world, std::int64_t chunk = std::int64_t{1} << 30);

}  // namespace lockstep
