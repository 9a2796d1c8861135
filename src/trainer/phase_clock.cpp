#include "trainer/phase_clock.h"

namespace lockstep {

PhaseClock::PhaseClock(Device& device, bool synchronise)
    : device_(device), synchronise_(synchronise) {}

void PhaseClock::begin_step(std::int64_t step) {
  now_ = &marks_[step % slots];
  now_->clear();
}

void PhaseClock::mark(Phase phase) {
  if (in_range_) device_.pop_range();
  if (synchronise_) device_.synchronize();
  now_->emplace_back(phase, device_.record());
}

void PhaseClock::enter(Phase phase) {
  mark(phase);
  device_.push_range(phase_names[static_cast<int>(phase)].data());
  in_range_ = true;
}

Event PhaseClock::end_step() {
  mark(Phase::step);
  in_range_ = false;
  return now_->back().second;
}

void PhaseClock::append(const Marks& marks) {
  now_->insert(now_->end(), marks.begin(), marks.end());
}

std::array<double, phase_count> PhaseClock::milliseconds(
    std::int64_t step) const {
  const Marks& marks = marks_[step % slots];
  std::array<double, phase_count> total{};
  for (std::size_t i = 0; i + 1 < marks.size(); ++i) {
    total[static_cast<int>(marks[i].first)] +=
        marks[i + 1].second->milliseconds_since(*marks[i].second);
  }
  total[static_cast<int>(Phase::step)] =
      marks.back().second->milliseconds_since(*marks.front().second);
  return total;
}

}  // namespace lockstep
