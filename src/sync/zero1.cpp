#include "sync/zero1.h"

#include "sync/unit_shards.h"

namespace lockstep {

Zero1::Zero1(const SyncContext& context)
    : Replica(context, OptimizerState::elsewhere) {
  for (Unit& unit : context_.store.units()) {
    const auto [begin, count] = shard_bounds(unit, context_.comm);
    shards_.emplace_back(
        context_.device, unit, begin, unit.parameters.range(begin, count),
        context_.trains ? unit.gradients.range(begin, count) : Tensor());
  }
}

void Zero1::release(Unit& unit, Pass pass) {
  if (pass != Pass::backward || !last_micro_step_) return;
  const Tensor sent = on_the_wire(unit.gradients);
  if (context_.options.converts_gradients()) {
    context_.ops.cast(sent, unit.gradients);
  }
  order_after_compute();
  context_.comm.reduce_scatter(on_the_wire(shards_[unit.index].gradients), sent,
                               Reduction::average);
}

void Zero1::finish() {
  context_.comm.join(context_.device, context_.comm.record());
  if (!context_.options.converts_gradients()) return;
  for (const Shard& shard : shards_) {
    context_.ops.cast(shard.gradients, on_the_wire(shard.gradients));
  }
}

void Zero1::publish() {
  order_after_compute();
  for (const Unit& unit : context_.store.units()) {
    context_.comm.all_gather(unit.parameters, shards_[unit.index].parameters);
    arriving_[unit.index] = context_.comm.record();
  }
}

}  // namespace lockstep
