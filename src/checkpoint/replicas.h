#pragma once

#include <string>
#include <vector>

#include "mpi/world.h"
#include "sync/gradient_sync.h"

namespace lockstep {

// Ranks whose copy of something that all should hold alike is another.
struct Drift {
  std::vector<int> ranks;  // in order; empty: there are none
  std::string unit;        // the first that differs
};

// Compares checksums of what ranks hold alike, bit by bit: parameters of
// strategies that replicate them, and optimizer state where that is whole, too.
// Those that are not like most ranks' count as drifted; where there is no
// majority, those not like rank 0's. Collective, between steps.
Drift find_drift(const ParameterStore& store, GradientSync& sync,
                 Device& device, Communicator& comm, World& world);

// Gives all ranks rank 0's parameters and optimizer state; of what is sharded,
// every rank keeps its own. Collective, between steps.
void repair_replicas(ParameterStore& store, GradientSync& sync, World& world);

}  // namespace lockstep
