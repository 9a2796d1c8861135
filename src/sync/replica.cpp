#include "sync/replica.h"

namespace lockstep {

Replica::Replica(const SyncContext& context) : GradientSync(context) {
  std::int64_t elements = 0;
  for (const Unit& unit : context_.store.units()) elements += unit.elements;

  parameters_memory_ =
      context_.device.allocate(context_.parameter_dtype, {elements},
                               Category::parameters, "parameters");
  parameters_ =
      parameters_memory_.tensor(context_.parameter_dtype, {elements});
  if (context_.trains) {
    gradients_memory_ = context_.device.allocate(
        Dtype::f32, {elements}, Category::gradients, "gradients");
    gradients_ = gradients_memory_.tensor(Dtype::f32, {elements});
  }

  std::int64_t begin = 0;
  for (Unit& unit : context_.store.units()) {
    unit.parameters = parameters_.range(begin, unit.elements);
    if (context_.trains) {
      unit.gradients = gradients_.range(begin, unit.elements);
      shards_.emplace_back(context_.device, unit, 0, unit.parameters,
                           unit.gradients);
    }
    begin += unit.elements;
  }
}

void Replica::load(Unit& unit, std::span<const float> values) {
  upload(context_.device, unit.parameters, values);
  if (context_.trains) upload(context_.device, shards_[unit.index].master, values);
}

void Replica::save(const Unit& unit, std::span<float> values) {
  download(context_.device, values,
           context_.trains ? shards_[unit.index].master : unit.parameters);
}

void Replica::broadcast_parameters() {
  Communicator& comm = context_.comm;
  comm.wait(context_.device.record());
  for (const Shard& shard : shards_) comm.broadcast(shard.master, 0);
  comm.broadcast(parameters_, 0);
  comm.join(context_.device, comm.record());
}

void Replica::begin_step() {
  if (context_.trains) context_.device.zero(gradients_);
}

}  // namespace lockstep
