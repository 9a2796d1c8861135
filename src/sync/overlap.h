#pragma once

#include "sync/replica.h"

namespace lockstep {

// An averaging all-reduce per parameter, started the moment its gradient is
// complete, while the backward pass goes on with the layers before it.
class Overlap : public Replica {
 public:
  using Replica::Replica;
  void gradient_ready(Parameter& parameter) override {
    if (last_micro_step_) start_all_reduce(parameter.gradient());
  }
  void finish() override { finish_all_reduces(); }
};

}  // namespace lockstep
