#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint_file.h"
#include "checkpoint/checkpoint_folder.h"
#include "config/options.h"

namespace lockstep {

// Where a run starts.
struct Start {
  std::string checkpoint;          // on rank 0: what to resume from, or ""
  Position position;               // on every rank
  std::vector<std::string> notes;  // on rank 0: what a user should know of it
};

// What --resume means. `folder` is that of --checkpoint, or null: on rank 0,
// which alone looks at files. A checkpoint that is damaged gives way to the
// one before it, unless it was named itself; those of the folder that are
// newer than the one resumed are set aside. Errors, on all ranks: no
// checkpoint where one was named; checkpoints in the folder of a run that does
// not resume; a checkpoint of another model. Collective.
Start find_start(const Options& options, const CheckpointFolder* folder,
                 World& world);

// Loads the state that `start` found into the strategy. Collective.
void restore_checkpoint(const Start& start, ParameterStore& store,
                        GradientSync& sync, World& world);

}  // namespace lockstep
