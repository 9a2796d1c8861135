#pragma once

#include "sync/replica.h"

namespace lockstep {

// One averaging all-reduce of the whole gradient buffer after the backward
// pass: one latency instead of one per parameter, all of it still exposed.
class Flat : public Replica {
 public:
  using Replica::Replica;
  void finish() override {
    start_all_reduce(gradients_.all());
    finish_all_reduces();
  }
};

}  // namespace lockstep
