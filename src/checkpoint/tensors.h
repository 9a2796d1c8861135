#pragma once

#include <span>
#include <string>

#include "core/hdf5.h"
#include "model/parameter_store.h"

namespace lockstep {

// The tensors of a model in a group of an HDF5 file: datasets in fp32, named as
// in the state dict ("layers.0.attn.q_proj.weight"), shaped as there.

// Error unless the group holds a tensor for each parameter, in its shape, and
// no other datasets. `source` is what messages call the group.
void check_tensors(const hdf5::Group& group, const std::string& source,
                   const ParameterStore& store);

// A unit's tensors from and to its flat layout, f32 [unit.elements]. Padding is
// left alone.
void read_tensors(const hdf5::Group& group, const Unit& unit,
                  std::span<float> values);
// New datasets in the group at `path`, which comes to be if it is not there.
void write_tensors(hdf5::Group& file, const std::string& path, const Unit& unit,
                   std::span<const float> values);

}  // namespace lockstep
