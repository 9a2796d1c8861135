#include "optim/shard.h"

namespace lockstep {

Shard::Shard(Device& device, Unit& owner, std::int64_t first, Tensor values,
             Tensor grads)
    : unit(&owner),
      begin(first),
      count(values.elements()),
      parameters(values),
      gradients(grads) {
  require(begin + count <= unit->elements,
          "a shard of '{}' has {} parameters from element {}", unit->name,
          count, begin);
  if (!gradients || count == 0) return;
  require(gradients.elements() == count,
          "a shard of '{}' has {} parameters and {} gradients", unit->name,
          count, gradients.elements());
  if (parameters.dtype != Dtype::f32) {
    remainder_memory_ =
        device.allocate(Dtype::i16, {count}, Category::optimizer,
                        unit->name + " weights' remainder");
    remainder = remainder_memory_.tensor(Dtype::i16, {count});
  }
  moments_memory_ = device.allocate(
      Dtype::f32, {2 * count}, Category::optimizer, unit->name + " moments");
  const Tensor moments = moments_memory_.tensor(Dtype::f32, {2 * count});
  first_moment = moments.range(0, count);
  second_moment = moments.range(count, count);
}

}  // namespace lockstep
