#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "model/parameter_hooks.h"
#include "mpi/communicator.h"
#include "ops/ops.h"
#include "optim/shard.h"

namespace lockstep {

// What can be chosen about strategies.
struct SyncOptions {
  double bucket_mb = 25;              // bucketed: MiB of gradients a bucket
  Dtype gradient_dtype = Dtype::f32;  // of gradients held: f32 or bf16
  Dtype reduce_dtype = Dtype::f32;    // of gradients on the wire: f32 or bf16
  int fsdp_prefetch = 1;              // units gathered ahead of use
  std::int64_t local_steps = 8;       // local-sgd: steps between averages

  // Whether what is sent is a copy, in another dtype.
  bool converts_gradients() const { return reduce_dtype != gradient_dtype; }
};

// What a strategy works with. All outlive it.
struct SyncContext {
  ParameterStore& store;
  Device& device;
  Ops& ops;
  Communicator& comm;
  Dtype parameter_dtype;  // the compute dtype
  bool trains = true;     // false: forward only, there are no gradients
  SyncOptions options = {};
};

// A data-parallel strategy: who holds which part of parameters, gradients and
// optimizer state, and what is sent when. It owns the memory that the store's
// units point at.
//
// One step, seen from here:
//   begin_step
//   for each micro-step: begin_micro_step, then from the model
//     acquire/release per unit (forward), acquire/gradient_ready/release
//     per unit (backward)
//   finish      every gradient this rank owns is the mean over ranks
//   ... the optimizer updates owned() ...
//   publish     everyone sees the new parameters
// Nothing here makes the host wait; order comes from the two lanes' events.
class GradientSync : public ParameterHooks {
 public:
  explicit GradientSync(const SyncContext& context)
      : context_(context), arriving_(context.store.units().size()) {}
  GradientSync(const GradientSync&) = delete;
  GradientSync& operator=(const GradientSync&) = delete;
  ~GradientSync() override = default;

  // Rank 0's fp32 weights, or moments, of a unit, [unit.elements] with padding
  // zero, become everyone's; the other ranks' values don't matter. Every rank
  // calls.
  void load(Unit& unit, StatePart part, std::span<const float> values);
  // The unit's fp32 weights to host memory, on every rank. Every rank calls.
  void save(const Unit& unit, std::span<float> values);

  // Between steps: this rank's weights in fp32, or moments, of a shard of
  // owned() to host memory, [shard.count].
  void read(const Shard& shard, StatePart part, std::span<float> values);

  virtual void begin_step() {}  // no gradients yet
  // Micro-step `index` of `count` starts; only after the last one's backward
  // pass are gradients complete.
  virtual void begin_micro_step(int index, int count) {
    last_micro_step_ = index + 1 == count;
  }
  // Waits on the compute lane for a unit whose parameters publish() has sent.
  void acquire(Unit& unit, Pass pass) override;
  virtual void finish() = 0;
  virtual std::span<Shard> owned() = 0;
  virtual void publish() {}

  // Whether owned() is a part of what there is, different on each rank.
  virtual bool sharded() const { return false; }
  // Whether ranks train apart for a while, each with weights of its own.
  virtual bool ranks_differ() const { return false; }
  // Turns each rank's sum over its owned() into the sum over all parameters:
  // f64 [n], on the compute lane.
  void sum_over_shards(const Tensor& sums);

  // A line about how the work is shared out, for the start of a run.
  virtual std::string remark() const { return ""; }

 protected:
  // Takes a unit's new fp32 weights, f32 [unit.elements] on the device.
  virtual void take(Unit& unit, const Tensor& values);
  // Brings the communication lane up to what compute has issued.
  void order_after_compute();

  SyncContext context_;
  bool last_micro_step_ = true;
  // By unit: when parameters on their way since publish() will be there.
  std::vector<Event> arriving_;
};

// Every strategy by name, in the order of the documentation.
std::vector<std::string_view> gradient_sync_names();
// Error for an unknown name, and for `none` with more than one rank.
std::unique_ptr<GradientSync> make_gradient_sync(std::string_view name,
                                                 const SyncContext& context);

}  // namespace lockstep
