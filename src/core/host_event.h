#pragma once

#include <atomic>
#include <chrono>
#include <memory>

#include "core/lane.h"

namespace lockstep {

// An event of a lane that runs on the host: the calling thread of a CPU
// device, or the worker thread of a communicator. Events of any two such lanes
// share the steady clock, so times between them are meaningful.
class HostEvent final : public EventState {
 public:
  // An event that has completed now.
  static std::shared_ptr<HostEvent> now();

  // Takes the time and releases all who wait. Called once, by the lane.
  void complete();

  bool completed() const override;
  void wait() const override;
  double milliseconds_since(const EventState& earlier) const override;

 private:
  std::chrono::steady_clock::time_point time_;  // valid once done_ is 1
  std::atomic<int> done_ = 0;
};

}  // namespace lockstep
