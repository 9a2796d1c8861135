#pragma once

#include "sync/replica.h"

namespace lockstep {

// Local SGD (Stich 2019, algorithm 1): ranks train on their own and average
// their weights every --local-steps steps. Unlike the other strategies it does
// not compute what one rank on the whole batch would.
class LocalSgd : public Replica {
 public:
  using Replica::Replica;

  bool ranks_differ() const override { return true; }
  void publish() override {
    if (++steps_ % context_.options.local_steps != 0) return;
    // The weights in fp32 travel in the memory of gradients, now spent.
    for (const Shard& shard : shards_) {
      context_.ops.join_weights(shard.gradients, shard.parameters,
                                shard.remainder);
    }
    order_after_compute();
    context_.comm.all_reduce(gradients_.all(), Reduction::average);
    context_.comm.join(context_.device, context_.comm.record());
    for (const Shard& shard : shards_) {
      context_.ops.split_weights(shard.parameters, shard.remainder,
                                 shard.gradients);
    }
  }

 private:
  std::int64_t steps_ = 0;
};

}  // namespace lockstep
