#include "sync/gradient_sync.h"

#include <algorithm>

namespace lockstep {

void GradientSync::load(Unit& unit, std::span<const float> values) {
  const Buffer memory =
      context_.device.allocate(Dtype::f32, {unit.elements},
                               Category::communication, "weights on their way");
  const Tensor whole = memory.tensor(Dtype::f32, {unit.elements});
  upload(context_.device, whole, values);
  order_after_compute();
  context_.comm.broadcast(whole, 0);
  context_.comm.join(context_.device, context_.comm.record());
  take(unit, whole);
  context_.device.synchronize();
}

void GradientSync::take(Unit& unit, const Tensor& values) {
  for (const Shard& shard : owned()) {
    if (shard.unit != &unit) continue;
    const Tensor mine = values.range(shard.begin, shard.count);
    context_.ops.split_weights(shard.parameters, shard.remainder, mine);
  }
}

void GradientSync::save(const Unit& unit, std::span<float> values) {
  const Buffer memory =
      context_.device.allocate(Dtype::f32, {unit.elements},
                               Category::communication, "weights on their way");
  const Tensor whole = memory.tensor(Dtype::f32, {unit.elements});
  for (const Shard& shard : owned()) {
    if (shard.unit != &unit) continue;
    context_.ops.join_weights(whole.range(shard.begin, shard.count),
                              shard.parameters, shard.remainder);
  }
  if (sharded()) {
    // Where one rank has a weight, all others have zero: the sum is the whole.
    order_after_compute();
    context_.comm.all_reduce(whole, Reduction::sum);
    context_.comm.join(context_.device, context_.comm.record());
  }
  download(context_.device, values, whole);
}

void GradientSync::acquire(Unit& unit, Pass) {
  Event& arriving = arriving_[unit.index];
  if (!arriving) return;
  context_.comm.join(context_.device, arriving);
  arriving = nullptr;
}

void GradientSync::sum_over_shards(const Tensor& sums) {
  if (!sharded()) return;
  order_after_compute();
  context_.comm.all_reduce(sums, Reduction::sum);
  context_.comm.join(context_.device, context_.comm.record());
}

void GradientSync::order_after_compute() {
  context_.comm.wait(context_.device.record());
}

}  // namespace lockstep
