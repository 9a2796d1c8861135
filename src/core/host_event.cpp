#include "core/host_event.h"

#include "core/error.h"

namespace lockstep {

std::shared_ptr<HostEvent> HostEvent::now() {
  auto event = std::make_shared<HostEvent>();
  event->complete();
  return event;
}

void HostEvent::complete() {
  time_ = std::chrono::steady_clock::now();
  done_.store(1, std::memory_order_release);
  done_.notify_all();
}

bool HostEvent::completed() const {
  return done_.load(std::memory_order_acquire) == 1;
}

void HostEvent::wait() const {
  done_.wait(0, std::memory_order_acquire);
}

double HostEvent::milliseconds_since(const EventState& earlier) const {
  const auto* start = dynamic_cast<const HostEvent*>(&earlier);
  require(start != nullptr, "cannot time a host event against a GPU's");
  require(completed() && start->completed(),
          "cannot time events that have not completed");
  return std::chrono::duration<double, std::milli>(time_ - start->time_)
      .count();
}

}  // namespace lockstep
