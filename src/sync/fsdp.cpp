#include "sync/fsdp.h"

namespace lockstep {

Fsdp::Fsdp(const SyncContext& context)
    : GradientSync(context),
      weights_(context_, context_.parameter_dtype, Category::parameters,
               "weight shards") {
  if (context_.trains) {
    gradients_ = ShardBuffer(context_, context_.options.gradient_dtype,
                             Category::gradients, "gradient shards");
  }
  for (Unit& unit : context_.store.units()) {
    shards_.emplace_back(context_.device, unit,
                         shard_bounds(unit, context_.comm).begin,
                         weights_.of(unit), gradients_.of(unit));
  }
  parameter_ring_.emplace(context_, shards_);
  if (context_.trains) gradient_ring_.emplace(context_, shards_);
}

void Fsdp::begin_step() {
  if (gradient_ring_) context_.device.zero(gradients_.all());
}

void Fsdp::acquire(Unit& unit, Pass pass) {
  // The lookup's backward pass needs no parameters.
  if (pass == Pass::forward || unit.index > 0) {
    parameter_ring_->acquire(unit, pass);
  }
  if (pass == Pass::backward) gradient_ring_->acquire(unit);
}

void Fsdp::release(Unit& unit, Pass pass) {
  parameter_ring_->release(unit);
  if (pass == Pass::backward) gradient_ring_->release(unit);
}

void Fsdp::finish() {
  if (gradient_ring_) gradient_ring_->finish();
}

}  // namespace lockstep
