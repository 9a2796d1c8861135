#include "sync/zero2.h"

namespace lockstep {

Zero2::Zero2(const SyncContext& context)
    : GradientSync(context),
      parameters_(context_.device, context_.store, context_.parameter_dtype,
                  &Unit::parameters, Category::parameters, "parameters") {
  if (context_.trains) {
    gradients_ = ShardBuffer(context_, context_.options.gradient_dtype,
                             Category::gradients, "gradient shards");
  }
  for (Unit& unit : context_.store.units()) {
    const auto [begin, count] = shard_bounds(unit, context_.comm);
    shards_.emplace_back(context_.device, unit, begin,
                         unit.parameters.range(begin, count),
                         gradients_.of(unit));
  }
  if (context_.trains) ring_.emplace(context_, shards_);
}

void Zero2::take(Unit& unit, const Tensor& values) {
  context_.ops.split_weights(unit.parameters, {}, values);
  GradientSync::take(unit, values);
}

void Zero2::begin_step() {
  if (ring_) context_.device.zero(gradients_.all());
}

void Zero2::acquire(Unit& unit, Pass pass) {
  GradientSync::acquire(unit, pass);
  if (pass == Pass::backward) ring_->acquire(unit);
}

void Zero2::release(Unit& unit, Pass pass) {
  if (pass == Pass::backward) ring_->release(unit);
}

void Zero2::finish() {
  if (ring_) ring_->finish();
}

void Zero2::publish() {
  order_after_compute();
  for (const Unit& unit : context_.store.units()) {
    context_.comm.all_gather(unit.parameters, shards_[unit.index].parameters);
    arriving_[unit.index] = context_.comm.record();
  }
}

}  // namespace lockstep
