#pragma once

#include <future>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_file.h"
#include "checkpoint/checkpoint_folder.h"

namespace lockstep {

// Writes checkpoints on rank 0 beside training: the caller hands over a copy
// of the state, a thread writes it. One that cannot be written gives a warning
// and stays away; those before it are still there, and the next may succeed.
class CheckpointSaver {
 public:
  // All outlive it; `facts` lacks the position.
  CheckpointSaver(CheckpointFolder& folder, std::int64_t keep,
                  CheckpointFacts facts, const ParameterStore& layout);

  // Whether one is being written. save() then waits.
  bool busy() const;
  void save(const Position& position, std::vector<UnitState> state);
  // Waits for the last one. Whether it was written.
  bool finish();
  // What went wrong in those that are done, each cause once.
  std::vector<std::string> take_warnings();

 private:
  void write(const Position& position, std::vector<UnitState> state) const;
  void collect();

  CheckpointFolder& folder_;
  std::int64_t keep_;
  CheckpointFacts facts_;
  const ParameterStore& layout_;
  std::set<std::string> causes_said_;
  std::vector<std::string> warnings_;
  bool written_ = true;        // the last one that is done
  std::future<void> writing_;  // its end waits for the thread
};

}  // namespace lockstep
