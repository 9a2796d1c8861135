#pragma once

#include <vector>

#include "mpi/world.h"
#include "record/run_record.h"

namespace lockstep {

// Every rank's trace or memory timeline of a step, in rank order. All ranks
// call.
std::vector<std::vector<TraceRow>> gather(const std::vector<TraceRow>& mine,
                                          World& world);
std::vector<MemoryTimeline> gather(const MemoryTimeline& mine, World& world);

}  // namespace lockstep
