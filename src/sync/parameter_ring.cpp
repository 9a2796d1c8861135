#include "sync/parameter_ring.h"

#include <algorithm>

#include "sync/unit_shards.h"

namespace lockstep {

ParameterRing::ParameterRing(const SyncContext& context,
                             std::span<Shard> shards)
    : context_(context),
      shards_(shards),
      slots_(1 + context.options.fsdp_prefetch) {
  const auto slots = static_cast<std::int64_t>(slots_.size());
  const std::int64_t whole = largest_unit(context_.store);
  const Dtype dtype = context_.parameter_dtype;
  memory_ = context_.device.allocate(
      dtype, {slots * whole}, Category::parameters, "gathered parameters");
  const Tensor all = memory_.tensor(dtype, {slots * whole});
  for (std::int64_t i = 0; i < slots; ++i) {
    slots_[i].parameters = all.range(i * whole, whole);
  }
}

ParameterRing::Slot& ParameterRing::gathered(Unit& unit) {
  const auto holding = [&](const Unit* wanted) {
    return std::find_if(slots_.begin(), slots_.end(),
                        [&](const Slot& slot) { return slot.unit == wanted; });
  };
  if (const auto slot = holding(&unit); slot != slots_.end()) return *slot;

  const auto slot = holding(nullptr);
  require(slot != slots_.end(), "no buffer is free to gather '{}'", unit.name);
  context_.comm.wait(context_.device.record());
  context_.comm.all_gather(slot->parameters.range(0, unit.elements),
                           shards_[unit.index].parameters);
  slot->arrived = context_.comm.record();
  slot->unit = &unit;
  return *slot;
}

bool ParameterRing::has_room() const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [](const Slot& slot) { return slot.unit == nullptr; });
}

void ParameterRing::acquire(Unit& unit, Pass pass) {
  if (pass == Pass::backward) {
    // What a forward pass gathered beyond its last unit, which is no more used.
    for (Slot& slot : slots_) {
      if (slot.unit != nullptr && slot.unit->index > unit.index) {
        slot.unit = nullptr;
      }
    }
  }
  Slot& slot = gathered(unit);
  auto& units = context_.store.units();
  const int direction = pass == Pass::forward ? 1 : -1;
  for (int ahead = 1; ahead <= context_.options.fsdp_prefetch; ++ahead) {
    const int index = unit.index + direction * ahead;
    // The lookup's backward pass doesn't read its table.
    const int first = pass == Pass::forward ? 0 : 1;
    if (index < first || index >= std::ssize(units) || !has_room()) break;
    gathered(units[index]);
  }
  context_.comm.join(context_.device, slot.arrived);
  unit.parameters = slot.parameters.range(0, unit.elements);
}

void ParameterRing::release(Unit& unit) {
  for (Slot& slot : slots_) {
    if (slot.unit == &unit) slot.unit = nullptr;
  }
  unit.parameters = {};
}

}  // namespace lockstep
