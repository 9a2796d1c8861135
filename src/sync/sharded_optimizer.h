#pragma once

#include <vector>

#include "sync/bucketed.h"

namespace lockstep {

// Optimizer state shared out by whole parameters: each goes to the rank with
// the fewest elements so far, in state-dict order, and that rank alone keeps
// its moments and master weights. Gradients are all-reduced in buckets; every
// updated parameter is then broadcast by its owner, in state-dict order.
class ShardedOptimizer : public Bucketed {
 public:
  explicit ShardedOptimizer(const SyncContext& context);

  void publish() override;
  bool sharded() const override { return true; }
  std::string remark() const override;

 private:
  std::vector<int> owner_;              // by Parameter::index
  std::vector<std::int64_t> elements_;  // by rank
};

}  // namespace lockstep
