#include "mpi/communicator.h"

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
  slot_->busy.emplace_back(std::move(begin), record());
}

void Communicator::all_reduce(const Tensor& buffer, Reduction reduction) {
  book(Collective::all_reduce, 2, buffer,
       [&] { do_all_reduce(buffer, reduction); });
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
  book(Collective::all_gather, 1, whole,
       [&] { do_all_gather(whole, shard); });
}

void Communicator::broadcast(const Tensor& buffer, int root) {
  require(root >= 0 && root < size(), "broadcast from rank {} of {}", root,
          size());
  book(Collective::broadcast, 1, buffer,
       [&] { do_broadcast(buffer, root); });
}

void Communicator::join(Device& device, const Event& done) {
  Event begin = device.record();
  device.wait(done);
  slot_->exposed.emplace_back(std::move(begin), device.record());
}

void Communicator::begin_step(std::int64_t step) {
  slot_ = &slots_[step % figure_slots];
  slot_->traffic = {};
  slot_->busy.clear();
  slot_->exposed.clear();
}

CommFigures Communicator::figures_of(std::int64_t step) const {
  const Slot& slot = slots_[step % figure_slots];
  const auto total = [](const Spans& spans) {
    return std::accumulate(spans.begin(), spans.end(), 0.0,
                           [](double sum, const auto& span) {
                             span.second->wait();
                             return sum + span.second->milliseconds_since(
                                              *span.first);
                           });
  };
  return {slot.traffic, total(slot.busy), total(slot.exposed)};
}

}  // namespace lockstep
