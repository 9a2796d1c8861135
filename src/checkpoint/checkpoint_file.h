#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/state.h"
#include "core/hdf5.h"

namespace lockstep {

// How far a run has come.
struct Position {
  std::int64_t step = 0;     // steps done
  std::int64_t samples = 0;  // sequences taken, by all ranks together
};

// A checkpoint but for its tensors.
struct CheckpointFacts {
  using Texts = std::vector<std::pair<std::string, std::string>>;
  Position position;
  Texts options;   // of the run, by name
  Texts versions;  // of what wrote it
};

// A checkpoint is an HDF5 file:
//   /            attributes: format, format_version, step, samples, created,
//                versions
//   /options     attributes: every option of the run
//   /weights/NAME, /first_moment/NAME, /second_moment/NAME
//                fp32, named and shaped as in the state dict
// whose user block, the first 512 bytes, holds the SHA-256 of all bytes after
// it. So a file that changed anywhere since it was written is told before HDF5
// looks at it. Nothing in it depends on the strategy, the number of ranks, the
// precision or the device.

// Writes a checkpoint, whole or not at all (see replace_file). `state` is let
// go of on the way, as its values are in the file's image then.
void write_checkpoint(const std::string& path, const CheckpointFacts& facts,
                      const ParameterStore& layout,
                      std::vector<UnitState> state);

// Whether the file begins as a checkpoint does.
bool is_checkpoint(const std::string& path);
// Error unless the file is exactly as it was written.
void verify_checkpoint(const std::string& path);
// Of a verified checkpoint.
CheckpointFacts read_facts(const std::string& path);

}  // namespace lockstep
