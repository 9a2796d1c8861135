#pragma once

#include "sync/replica.h"

namespace lockstep {

// The textbook's first DDP: after the whole backward pass, one averaging
// all-reduce for each parameter. All of the communication is exposed.
class Naive : public Replica {
 public:
  using Replica::Replica;
  void finish() override;
};

}  // namespace lockstep
