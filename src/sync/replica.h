#pragma once

#include <vector>

#include "sync/flat_buffer.h"
#include "sync/gradient_sync.h"

namespace lockstep {

// Whole parameters and gradients on every rank, in one flat buffer each: what
// data-parallel strategies that replicate the model hold. Alone it
// synchronises nothing, which is `--sync none`.
class Replica : public GradientSync {
 public:
  explicit Replica(const SyncContext& context)
      : Replica(context, OptimizerState::whole) {}

  void begin_micro_step(int index, int count) override;
  void finish() override {}
  std::span<Shard> owned() override { return shards_; }

 protected:
  // whole: every rank updates everything. elsewhere: the subclass says what
  // this rank updates, by filling shards_.
  enum class OptimizerState { whole, elsewhere };
  Replica(const SyncContext& context, OptimizerState state);

  void take(Unit& unit, const Tensor& values) override;

  // Averaging all-reduce of a part of the gradients, which the compute lane
  // has issued; goes on while compute does. Where the wire's dtype is another,
  // a copy travels.
  void start_all_reduce(const Tensor& gradients);
  // The compute lane has every gradient that was started.
  void finish_all_reduces();

  // Where a part of the gradients is when it travels: itself, or its place in
  // the copy in the wire's dtype.
  Tensor on_the_wire(const Tensor& gradients) const;

  FlatBuffer parameters_;
  FlatBuffer gradients_;
  std::vector<Shard> shards_;

 private:
  Buffer wire_memory_;
  Tensor wire_;                  // the copy, laid out as gradients_, or empty
  std::vector<Tensor> started_;  // since the last finish
};

}  // namespace lockstep
