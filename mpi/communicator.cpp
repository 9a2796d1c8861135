#include "mpi/communicator.h"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace lockstep {

Traffic CommFigures::total() const {
  Traffic sum;
  for (const Traffic& each : traffic) {
    sum.calls += each.calls;
    sum.elements += each.elements;
    sum.bytes += each.bytes;
  }
  return sum;
}

template <class Work>
void Communicator::book(Collective collective, int times, const Tensor& tensor,
                        Work work) {
  Event begin = record();
  work();
  Traffic& traffic = slot_->traffic[static_cast<int>(collective)];
  traffic.calls += 1;
  traffic.elements += times * tensor.elements();
  traffic.bytes += times * tensor.bytes();
  Event end = record();
  if (on_stuck_) {
    const std::lock_guard lock(watched_mutex_);
    watched_.push_back(
        {fmt::format("{} number {} of step {} ({} {})",
                     collective_names[static_cast<int>(collective)],
                     traffic.calls, step_, tensor.elements(),
                     name_of(tensor.dtype)),
         begin, end});
  }
  slot_->busy.push_back(
      {std::string(collective_names[static_cast<int>(collective)]), 0,
       tensor.bytes(), std::move(begin), std::move(end)});
}

void Communicator::watch(double seconds,
                         std::function<void(const std::string&)> on_stuck) {
  on_stuck_ = std::move(on_stuck);
  watchdog_ = std::jthread([this, seconds](const std::stop_token& stop) {
    enter_thread();
    watch_until(stop, seconds);
  });
}

void Communicator::watch_until(const std::stop_token& stop, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto pause = std::chrono::duration<double>(std::min(0.2, seconds / 4));
  Event oldest;  // the one that the lane is at, and since when
  Clock::time_point since;
  while (!stop.stop_requested()) {
    std::this_thread::sleep_for(pause);
    try {
      check_health();
    } catch (const Error& error) {
      return on_stuck_(error.what());
    }
    const std::lock_guard lock(watched_mutex_);
    while (!watched_.empty() && watched_.front().end->completed()) {
      watched_.pop_front();
    }
    if (watched_.empty() || !watched_.front().begin->completed()) {
      oldest = nullptr;
      continue;
    }
    if (watched_.front().end != oldest) {
      oldest = watched_.front().end;
      since = Clock::now();
      continue;
    }
    if (Clock::now() - since < std::chrono::duration<double>(seconds)) continue;
    on_stuck_(fmt::format(
        "{} has not ended within {} s: another rank is gone, far behind, or "
        "has issued another collective (see --timeout)",
        watched_.front().what, seconds));
    return;
  }
}

void Communicator::stop_watching() {
  watchdog_ = {};
  watched_.clear();
}

namespace {

void require_alike(const char* what, const Tensor& out, const Tensor& in) {
  require(out.elements() == in.elements() && out.dtype == in.dtype,
          "{} of {} {} into {} {}", what, in.elements(), name_of(in.dtype),
          out.elements(), name_of(out.dtype));
}

}  // namespace

void Communicator::all_reduce(const Tensor& out, const Tensor& in,
                              Reduction reduction) {
  require_alike("all-reduce", out, in);
  book(Collective::all_reduce, 2, out,
       [&] { do_all_reduce(out, in, reduction); });
}

void Communicator::reduce_scatter(const Tensor& shard, const Tensor& whole,
                                  Reduction reduction) {
  require(whole.elements() == shard.elements() * size() &&
              whole.dtype == shard.dtype,
          "reduce-scatter of {} {} into shards of {} {} on {} ranks",
          whole.elements(), name_of(whole.dtype), shard.elements(),
          name_of(shard.dtype), size());
  book(Collective::reduce_scatter, 1, whole,
       [&] { do_reduce_scatter(shard, whole, reduction); });
}

void Communicator::all_gather(const Tensor& whole, const Tensor& shard) {
  require(whole.elements() == shard.elements() * size() &&
              whole.dtype == shard.dtype,
          "all-gather of {} {} into {} {} on {} ranks", shard.elements(),
          name_of(shard.dtype), whole.elements(), name_of(whole.dtype), size());
  book(Collective::all_gather, 1, whole, [&] { do_all_gather(whole, shard); });
}

void Communicator::broadcast(const Tensor& out, const Tensor& in, int root) {
  require_alike("broadcast", out, in);
  require(root >= 0 && root < size(), "broadcast from rank {} of {}", root,
          size());
  book(Collective::broadcast, 1, out, [&] { do_broadcast(out, in, root); });
}

void Communicator::join(Device& device, const Event& done) {
  Event begin = device.record();
  device.wait(done);
  slot_->exposed.push_back({"wait", 0, 0, std::move(begin), device.record()});
}

void Communicator::begin_step(std::int64_t step) {
  slot_ = &slots_[step % figure_slots];
  step_ = step;
  slot_->traffic = {};
  slot_->busy.clear();
  slot_->exposed.clear();
}

CommFigures Communicator::figures_of(std::int64_t step) const {
  const Slot& slot = slots_[step % figure_slots];
  const auto total = [](const std::vector<Span>& spans) {
    return std::accumulate(
        spans.begin(), spans.end(), 0.0, [](double sum, const Span& span) {
          span.end->wait();
          return sum + span.end->milliseconds_since(*span.begin);
        });
  };
  return {slot.traffic, total(slot.busy), total(slot.exposed)};
}

std::vector<Span> Communicator::collectives_of(std::int64_t step) const {
  return slots_[step % figure_slots].busy;
}

std::vector<Span> Communicator::waits_of(std::int64_t step) const {
  return slots_[step % figure_slots].exposed;
}

}  // namespace lockstep
