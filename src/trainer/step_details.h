#pragma once

#include <vector>

#include "mpi/world.h"
#include "record/run_record.h"

namespace lockstep {

// What a rank tells the others of a step.
struct RankReport {
  RankFigures figures;
  double loss = 0;
  double gradient_norm = 0;
  int stop_signal = 0;
  bool saves = false;  // a checkpoint is still being written
};

// Every rank's report, trace or memory timeline of a step, in rank order. All
// ranks call.
std::vector<RankReport> gather(const RankReport& mine, World& world);
std::vector<std::vector<TraceRow>> gather(const std::vector<TraceRow>& mine,
                                          World& world);
std::vector<MemoryTimeline> gather(const MemoryTimeline& mine, World& world);

}  // namespace lockstep
