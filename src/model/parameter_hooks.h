#pragma once

#include "model/parameter_store.h"
#include "ops/ops.h"

namespace lockstep {

// What the model tells whoever holds its parameters. The defaults suit holders
// that always have everything.
class ParameterHooks {
 public:
  virtual ~ParameterHooks() = default;

  // The unit's parameters (and in Pass::backward its gradients) are about to
  // be used: after this, work issued on the compute lane finds them whole. A
  // pass takes the units in order, one at a time; the head's forward and
  // backward are one Pass::backward. The first unit's backward pass, a
  // lookup's, does not read its parameters. With --recompute block:K, a forward
  // pass over some units comes between the backward passes of the unit after
  // them and of the last of them.
  virtual void acquire(Unit&, Pass) {}
  // This pass has issued its last use of them.
  virtual void release(Unit&, Pass) {}
  // The parameter's gradient for this micro-step is complete on the compute
  // lane. Called once per parameter and micro-step, in the same order on every
  // rank: state-dict order reversed, but for the order inside a group.
  virtual void gradient_ready(Parameter&) {}
};

}  // namespace lockstep
