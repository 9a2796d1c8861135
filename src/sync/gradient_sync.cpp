#include "sync/gradient_sync.h"

#include <algorithm>

namespace lockstep {

namespace {

const Tensor& moment_of(const Shard& shard, StatePart part) {
  return part == StatePart::first_moment ? shard.first_moment
                                         : shard.second_moment;
}

}  // namespace

void GradientSync::load(Unit& unit, StatePart part,
                        std::span<const float> values) {
  const Buffer memory =
      context_.device.allocate(Dtype::f32, {unit.elements},
                               Category::communication, "weights on their way");
  const Tensor whole = memory.tensor(Dtype::f32, {unit.elements});
  upload(context_.device, whole, values);
  order_after_compute();
  context_.comm.broadcast(whole, 0);
  context_.comm.join(context_.device, context_.comm.record());
  if (part == StatePart::weights) {
    take(unit, whole);
  } else {
    for (const Shard& shard : owned()) {
      if (shard.unit != &unit || shard.count == 0) continue;
      context_.ops.cast(moment_of(shard, part),
                        whole.range(shard.begin, shard.count));
    }
  }
  context_.device.synchronize();
}

void GradientSync::read(const Shard& shard, StatePart part,
                        std::span<float> values) {
  if (shard.count == 0) return;
  if (part != StatePart::weights) {
    return download(context_.device, values, moment_of(shard, part));
  }
  if (shard.parameters.dtype == Dtype::f32) {
    return download(context_.device, values, shard.parameters);
  }
  // In bf16 the two halves are joined here, which takes no device memory.
  std::vector<bfloat16> rounded(values.size());
  std::vector<std::int16_t> rest(values.size());
  context_.device.copy_to_host(rounded.data(), shard.parameters);
  context_.device.copy_to_host(rest.data(), shard.remainder);
  context_.device.synchronize();
  std::transform(rounded.begin(), rounded.end(), rest.begin(), values.begin(),
                 [](bfloat16 high, std::int16_t low) -> float {
                   return SplitWeight(high, low);
                 });
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
