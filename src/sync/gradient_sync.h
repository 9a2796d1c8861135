#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "mpi/communicator.h"
#include "core/device.h"
#include "model/parameter_hooks.h"
#include "ops/ops.h"
#include "optim/shard.h"

namespace lockstep {

// What a strategy works with. All outlive it.
struct SyncContext {
  ParameterStore& store;
  Device& device;
  Ops& ops;
  Communicator& comm;
  Dtype parameter_dtype;  // the compute dtype
  bool trains = true;     // false: forward only, nothing to synchronise
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
  explicit GradientSync(const SyncContext& context) : context_(context) {}
  GradientSync(const GradientSync&) = delete;
  GradientSync& operator=(const GradientSync&) = delete;

  // The unit's fp32 weights from and to host memory, [unit.elements] with
  // padding zero. Every rank calls both; values given to load() may differ
  // between ranks until broadcast_parameters().
  virtual void load(Unit& unit, std::span<const float> values) = 0;
  virtual void save(const Unit& unit, std::span<float> values) = 0;
  // Makes rank 0's weights everyone's.
  virtual void broadcast_parameters() = 0;
  virtual void begin_step() = 0;  // gradients are zero after this
  // Micro-step `index` of `count` starts; only the last one's gradients are
  // complete sums.
  virtual void begin_micro_step(int index, int count) {
    last_micro_step_ = index + 1 == count;
  }
  virtual void finish() = 0;
  virtual std::span<Shard> owned() = 0;
  // Turns each rank's sum over its owned() into the sum over all parameters:
  // f64 [n], on the compute lane. Nothing to do where owned() is everything.
  virtual void sum_over_shards(const Tensor&) {}
  virtual void publish() {}

 protected:
  SyncContext context_;
  bool last_micro_step_ = true;
};

// Every strategy by name, in the order of the documentation.
std::vector<std::string_view> gradient_sync_names();
// Error for an unknown name, and for `none` with more than one rank.
std::unique_ptr<GradientSync> make_gradient_sync(std::string_view name,
                                                 const SyncContext& context);

}  // namespace lockstep
