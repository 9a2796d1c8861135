#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "config/options.h"
#include "data/batches.h"
#include "model/transformer.h"
#include "mpi/communicator.h"
#include "optim/adamw.h"
#include "optim/schedule.h"
#include "record/run_record.h"
#include "sync/gradient_sync.h"
#include "trainer/batch_feeder.h"
#include "trainer/phase_clock.h"

namespace lockstep {

// Why steps of this run cannot be CUDA graphs, for a message; empty if they
// can.
std::string obstacle_to_graphs(const Options& options, Device::Kind kind,
                               int world_size);

// What one rank needs for a training step, and the step itself: model,
// strategy and optimizer on one device. Steps are issued without waiting for
// them; up to `in_flight` may be under way. The options, backend, communicator
// and batches outlive it.
//
// With --graph, the first step is issued operation by operation, which
// allocates what is allocated late. After that each of the in_flight slots
// captures its next step and then launches it for every in_flight-th one. What
// differs between those steps (tokens, learning rate) they read from memory.
class StepEngine {
 public:
  static constexpr int in_flight = PhaseClock::slots;
  static_assert(in_flight == Adamw::in_flight && in_flight % 2 == 0,
                "a slot's steps find tokens and scalars in the same places");

  // Allocates everything that steps need. Weights are zero until loaded.
  StepEngine(const Options& options, Backend& backend, Communicator& comm,
             const Batches& batches);

  // Steps in order, from any on: data, forward, loss, backward, grad_sync,
  // optimizer, as far as --mode goes.
  void issue(std::int64_t step);

  // What a step that was issued gave, once it is done: this call waits.
  struct Result {
    double loss = 0;           // this rank's mean over its micro-steps
    double gradient_norm = 0;  // global, before clipping; NaN without update
    RankFigures figures;
    std::vector<TraceRow> trace;     // where --trace asked for it
    MemoryTimeline memory_timeline;  // where --memory-timeline did
  };
  Result wait(std::int64_t step);

  // Computes the gradients of a step that was waited for again, after those
  // issued, and says by Parameter::index which have values of this rank's
  // shards that are not finite. Every rank calls. Weights are as of the last
  // step issued.
  struct NonFinite {
    std::vector<double> weights, gradients;  // 1 where so, 0 elsewhere
  };
  NonFinite find_non_finite(std::int64_t step);

  double learning_rate(std::int64_t step) const;
  ParameterStore& store() { return store_; }
  GradientSync& sync() { return *sync_; }
  Transformer& model() { return model_; }

 private:
  // Where a step leaves its numbers.
  struct Numbers {
    Tensor loss;          // f64[1]
    Tensor norm_squared;  // f64[1]
    double* read_back;    // the same two in host memory, once done
    Event done;
    std::vector<Span> trace = {};
    MemoryTimeline memory_timeline = {};
  };
  // A slot's step as a graph, with the marks of its phases. It holds as long
  // as memory stays where it was.
  struct Capture {
    std::unique_ptr<CapturedWork> work;
    PhaseClock::Marks marks;
    std::int64_t ledger_changes = 0;
  };
  void issue_phases(std::int64_t step);
  std::vector<TraceRow> trace_rows(std::int64_t step) const;
  // Forward and backward passes of all micro-steps: the mean loss, f64[1], and
  // gradients that are the mean over ranks.
  void issue_gradients(std::span<const BatchFeeder::Batch>, const Tensor& loss);
  // All of a step between its tokens' arrival and the reading of its numbers.
  void issue_work(std::int64_t step, std::span<const BatchFeeder::Batch>);
  void launch_work(std::int64_t step, std::span<const BatchFeeder::Batch>);
  bool trains() const { return options_.mode != Mode::forward; }

  const Options& options_;
  Device& device_;
  Communicator& comm_;
  const Batches& batches_;
  CosineSchedule schedule_;
  ParameterStore store_;
  std::unique_ptr<GradientSync> sync_;
  Adamw optimizer_;
  Transformer model_;
  BatchFeeder feeder_;
  PhaseClock clock_;
  Buffer numbers_memory_;
  HostBuffer read_back_memory_;
  std::array<Numbers, in_flight> numbers_;
  bool uses_graphs_;
  bool has_issued_ = false;
  std::int64_t first_step_ = 0;  // that was issued, where batches begin
  std::array<Capture, in_flight> captures_;
};

}  // namespace lockstep
