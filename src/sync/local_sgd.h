#pragma once

#include "sync/replica.h"

namespace lockstep {

// Local SGD (Stich 2019, algorithm 1): ranks train on their own and average
// their weights every --local-steps steps. Unlike the other strategies it does
// not compute what one rank on the whole batch would.
class LocalSgd : public Replica {
 public:
  using Replica::Replica;

  void publish() override {
    if (++steps_ % context_.options.local_steps != 0) return;
    order_after_compute();
    for (const Shard& shard : shards_) {
      context_.comm.all_reduce(shard.master, Reduction::average);
    }
    context_.comm.join(context_.device, context_.comm.record());
    if (context_.parameter_dtype == Dtype::f32) return;  // the same memory
    for (const Shard& shard : shards_) {
      context_.ops.cast(shard.parameters, shard.master);
    }
  }

 private:
  std::int64_t steps_ = 0;
};

}  // namespace lockstep
