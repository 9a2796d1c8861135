#include "sync/replica.h"

namespace lockstep {

Replica::Replica(const SyncContext& context, OptimizerState state)
    : GradientSync(context),
      parameters_(context_.device, context_.store, context_.parameter_dtype,
                  &Unit::parameters, Category::parameters, "parameters") {
  if (context_.trains) {
    const SyncOptions& options = context_.options;
    gradients_ =
        FlatBuffer(context_.device, context_.store, options.gradient_dtype,
                   &Unit::gradients, Category::gradients, "gradients");
    if (options.converts_gradients()) {
      const Shape shape = gradients_.all().shape;
      wire_memory_ = context_.device.allocate(options.reduce_dtype, shape,
                                              Category::communication,
                                              "gradients to send");
      wire_ = wire_memory_.tensor(options.reduce_dtype, shape);
    }
  }
  if (state == OptimizerState::elsewhere) return;
  for (Unit& unit : context_.store.units()) {
    shards_.emplace_back(context_.device, unit, 0, unit.parameters,
                         unit.gradients);
  }
}

void Replica::take(Unit& unit, const Tensor& values) {
  context_.ops.split_weights(unit.parameters, {}, values);
  GradientSync::take(unit, values);
}

void Replica::begin_micro_step(int index, int count) {
  GradientSync::begin_micro_step(index, count);
  for (Unit& unit : context_.store.units()) {
    unit.accumulate = index > 0 ? Accumulate::yes : Accumulate::no;
  }
}

Tensor Replica::on_the_wire(const Tensor& gradients) const {
  return wire_ ? wire_.range(gradients_.offset_of(gradients),
                             gradients.elements())
               : gradients;
}

void Replica::start_all_reduce(const Tensor& gradients) {
  const Tensor sent = on_the_wire(gradients);
  if (wire_) context_.ops.cast(sent, gradients);
  order_after_compute();
  context_.comm.all_reduce(sent, Reduction::average);
  started_.push_back(gradients);
}

void Replica::finish_all_reduces() {
  context_.comm.join(context_.device, context_.comm.record());
  if (wire_) {
    for (const Tensor& gradients : started_) {
      context_.ops.cast(gradients, on_the_wire(gradients));
    }
  }
  started_.clear();
}

}  // namespace lockstep
