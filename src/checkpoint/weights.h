#pragma once

#include <cstdint>
#include <string>

#include "mpi/world.h"
#include "sync/gradient_sync.h"

namespace lockstep {

// Weights outside of a run, as tensors of an HDF5 file (see tensors.h).

// Fresh weights drawn from the seed.
void initialise_weights(ParameterStore& store, GradientSync& sync,
                        std::uint64_t seed);

// FILE.h5[:/group], or a checkpoint, which rank 0 reads; collective. Errors, on
// all ranks, name the first tensor that is missing, not of this model, or of
// another shape.
void load_weights(const std::string& source, ParameterStore& store,
                  GradientSync& sync, World& world);

// Writes all weights to the root of a new file at `path`, which rank 0 does;
// collective. The file appears when it is complete, or not at all.
void save_weights(const std::string& path, ParameterStore& store,
                  GradientSync& sync, World& world);

}  // namespace lockstep
