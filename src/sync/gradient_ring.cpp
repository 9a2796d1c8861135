#include "sync/gradient_ring.h"

#include "sync/unit_shards.h"

namespace lockstep {

GradientRing::GradientRing(const SyncContext& context, std::span<Shard> shards)
    : context_(context), shards_(shards) {
  const auto slots = static_cast<std::int64_t>(slots_.size());
  const Dtype dtype = context_.options.gradient_dtype;
  const Dtype wire = context_.options.reduce_dtype;
  const std::int64_t whole = largest_unit(context_.store);
  const std::int64_t part = whole / context_.comm.size();
  const bool copies = context_.options.converts_gradients();
  const std::int64_t sent = (copies ? whole : 0) + part;  // a slot
  gradients_memory_ = context_.device.allocate(
      dtype, {slots * whole}, Category::gradients, "gradients in work");
  wire_memory_ = context_.device.allocate(
      wire, {slots * sent}, Category::communication, "gradients on their way");
  const Tensor gradients = gradients_memory_.tensor(dtype, {slots * whole});
  const Tensor buffers = wire_memory_.tensor(wire, {slots * sent});
  for (std::int64_t i = 0; i < slots; ++i) {
    Slot& slot = slots_[i];
    slot.gradients = gradients.range(i * whole, whole);
    slot.received = buffers.range(i * sent, part);
    slot.wire = copies ? buffers.range(i * sent + part, whole) : slot.gradients;
  }
}

void GradientRing::acquire(Unit& unit) {
  Slot& slot = slots_[next_];
  complete(slot);
  unit.gradients = slot.gradients.range(0, unit.elements);
  unit.accumulate = Accumulate::no;
  for (const Tensor& gap : padding_of(unit, unit.gradients)) {
    context_.device.zero(gap);  // another unit's gradients were there
  }
}

void GradientRing::release(Unit& unit) {
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  const Tensor sent = slot.wire.range(0, unit.elements);
  if (context_.options.converts_gradients()) {
    context_.ops.cast(sent, unit.gradients);
  }
  slot.shard = &shards_[unit.index];
  context_.comm.wait(context_.device.record());
  context_.comm.reduce_scatter(slot.received.range(0, slot.shard->count), sent,
                               Reduction::average);
  slot.done = context_.comm.record();
  unit.gradients = {};
}

void GradientRing::complete(Slot& slot) {
  if (slot.shard == nullptr) return;
  context_.comm.join(context_.device, slot.done);
  context_.ops.add(slot.shard->gradients,
                   slot.received.range(0, slot.shard->count));
  slot.shard = nullptr;
}

void GradientRing::finish() {
  // In the order of sending: the older slot is the next to be taken.
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    complete(slots_[(next_ + i) % slots_.size()]);
  }
}

}  // namespace lockstep
