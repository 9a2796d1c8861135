#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/device.h"
#include "record/run_record.h"

namespace lockstep {

// Times the phases of steps by events on the compute lane. The host is free to
// run ahead: a step's times may be read once its last event has completed.
// A phase that comes several times (micro-steps) counts the sum.
class PhaseClock {
 public:
  static constexpr int slots = 4;  // steps that can be in flight

  // synchronise: wait for the device at each change of phase, as a stopwatch
  // on the host would. Costs speed; shows each phase alone.
  PhaseClock(Device& device, bool synchronise);

  void begin_step(std::int64_t step);
  void enter(Phase phase);  // ends the phase before
  Event end_step();         // completes when the step is done

  // The marks of this step so far, and marks to have in it: those that were
  // made while work was captured count for each launch of it.
  // What began when; Phase::step marks the end.
  using Marks = std::vector<std::pair<Phase, Event>>;
  const Marks& marks() const { return *now_; }
  void append(const Marks& marks);

  // When a step began.
  const Event& beginning(std::int64_t step) const {
    return marks_[step % slots].front().second;
  }

  // Milliseconds by phase; Phase::step is the whole.
  std::array<double, phase_count> milliseconds(std::int64_t step) const;

 private:
  void mark(Phase phase);

  Device& device_;
  bool synchronise_;
  bool in_range_ = false;
  std::array<Marks, slots> marks_;
  Marks* now_ = &marks_[0];
};

}  // namespace lockstep
