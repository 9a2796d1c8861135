#pragma once

#include "sync/replica.h"
#include "sync/unit_shards.h"

namespace lockstep {

// Local SGD (Stich 2019, algorithm 1): ranks train on their own and average
// their weights every --local-steps steps. Unlike the other strategies it does
// not compute what one rank on the whole batch would.
class LocalSgd : public Replica {
 public:
  explicit LocalSgd(const SyncContext& context) : Replica(context) {
    if (!context_.trains) return;
    weights_ = context_.device.allocate(
        Dtype::f32, {largest_unit(context_.store)}, Category::communication,
        "weights on their way");
  }

  bool ranks_differ() const override { return true; }
  void publish() override {
    if (++steps_ % context_.options.local_steps != 0) return;
    // The weights travel in fp32, one unit after the other.
    for (const Shard& shard : shards_) {
      const Tensor weights = weights_.tensor(Dtype::f32, {shard.count});
      context_.ops.join_weights(weights, shard.parameters, shard.remainder);
      order_after_compute();
      context_.comm.all_reduce(weights, Reduction::average);
      context_.comm.join(context_.device, context_.comm.record());
      context_.ops.split_weights(shard.parameters, shard.remainder, weights);
    }
  }

 private:
  Buffer weights_;
  std::int64_t steps_ = 0;
};

}  // namespace lockstep
