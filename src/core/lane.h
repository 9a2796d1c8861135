#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace lockstep {

// A point in a lane's work. It completes once everything issued on that lane
// before it was recorded is done. Events are cheap handles; a default-made one
// counts as completed.
class EventState {
 public:
  virtual ~EventState() = default;
  virtual bool completed() const = 0;
  virtual void wait() const = 0;  // blocks the host
  // Milliseconds from `earlier` to this event. Both must have completed and
  // be of the same kind of lane.
  virtual double milliseconds_since(const EventState& earlier) const = 0;
};
using Event = std::shared_ptr<EventState>;

// A named stretch of work on a lane. Stretches nest; 0 is the outermost.
struct Span {
  std::string name;
  int depth = 0;
  std::int64_t bytes = 0;  // that it moved, where that is what it does
  Event begin;
  Event end;
};

// An in-order queue of work: the compute lane (a Device) or the communication
// lane (a Communicator). On CUDA a lane is a stream. On CPUs the compute lane
// is the calling thread and the communication lane a worker thread.
//
//   comm.wait(device.record());   // what device has issued so far is ready
//   comm.all_reduce(...);         // before this starts
//   device.wait(comm.record());   // and this is done before device goes on
class Lane {
 public:
  virtual ~Lane() = default;

  virtual Event record() = 0;
  // Work issued on this lane from now on starts once `event` has completed.
  virtual void wait(const Event& event) = 0;
  // Blocks the host until everything issued so far is done.
  virtual void synchronize() = 0;
};

}  // namespace lockstep
