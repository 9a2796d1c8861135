#include "trainer/step_engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace lockstep {
namespace {

SyncOptions sync_options(const Options& options) {
  return {options.bucket_mb, options.grad_dtype, options.reduce_dtype,
          options.fsdp_prefetch, options.local_steps};
}

}  // namespace

std::string obstacle_to_graphs(const Options& options, Device::Kind kind,
                               int world_size) {
  if (kind != Device::Kind::cuda) return "CPUs have no CUDA graphs";
  if (world_size > 1) return "several ranks issue collectives one by one";
  if (options.timing == Timing::sync) {
    return "--timing sync waits for the device inside a step";
  }
  return "";
}

StepEngine::StepEngine(const Options& options, Backend& backend,
                       Communicator& comm, const Batches& batches)
    : options_(options),
      device_(*backend.device),
      comm_(comm),
      batches_(batches),
      schedule_{options.lr, options.min_lr, options.warmup_steps,
                options.decay_steps},
      store_(options.model, comm.size()),
      sync_(make_gradient_sync(
          options.sync,
          {store_, device_, *backend.ops, comm_,
           compute_dtype(options.precision), trains(), sync_options(options)})),
      optimizer_({options.beta1, options.beta2, options.adam_eps,
                  options.weight_decay, options.decay_norms, options.clip},
                 device_, *backend.ops,
                 trains() ? sync_->owned() : std::span<Shard>()),
      model_(options.model, compute_dtype(options.precision), backend, store_,
             *sync_, options.batch_size, trains(),
             {options.recompute, options.attention}),
      feeder_(device_, batches,
              options.batch_size * options.model.context_length,
              options.grad_accumulation),
      clock_(device_, options.timing == Timing::sync),
      numbers_memory_(device_.allocate(Dtype::f64, {in_flight, 2},
                                       Category::workspace, "step results")),
      read_back_memory_(device_.allocate_host(2 * sizeof(double) * in_flight)),
      uses_graphs_(
          options.graph != GraphUse::off &&
          obstacle_to_graphs(options, device_.kind(), comm.size()).empty()) {
  const Tensor all = numbers_memory_.tensor(Dtype::f64, {in_flight, 2});
  for (std::int64_t slot = 0; slot < in_flight; ++slot) {
    numbers_[slot] = {all.range(2 * slot, 1), all.range(2 * slot + 1, 1),
                      static_cast<double*>(read_back_memory_.get()) + 2 * slot,
                      nullptr};
  }
}

double StepEngine::learning_rate(std::int64_t step) const {
  return options_.mode == Mode::train ? schedule_.at(step) : 0;
}

void StepEngine::issue(std::int64_t step) {
  Numbers& numbers = numbers_[step % in_flight];
  const bool traced = options_.trace.contains(step);
  const bool watched = options_.memory_timeline.contains(step);
  if (traced) device_.start_trace();
  if (watched) {
    numbers.memory_timeline.begin_us = device_.ledger().now_us();
    device_.ledger().start_timeline();
  }
  issue_phases(step);
  if (watched) {
    numbers.memory_timeline.events = device_.ledger().take_timeline();
    numbers.memory_timeline.end_us = device_.ledger().now_us();
  }
  if (traced) numbers.trace = device_.take_trace();
}

void StepEngine::issue_phases(std::int64_t step) {
  Numbers& numbers = numbers_[step % in_flight];
  clock_.begin_step(step);
  comm_.begin_step(step);
  clock_.enter(Phase::data);
  const auto batches = feeder_.next();
  optimizer_.prepare(step, learning_rate(step));
  // Ranges are seen as they are issued, so traced steps are no graphs.
  const bool as_graph =
      uses_graphs_ && has_issued_ && !options_.trace.contains(step);
  as_graph ? launch_work(step, batches) : issue_work(step, batches);
  if (!has_issued_) first_step_ = step;
  has_issued_ = true;
  feeder_.release();
  numbers.done = clock_.end_step();
}

void StepEngine::issue_gradients(std::span<const BatchFeeder::Batch> batches,
                                 const Tensor& loss) {
  clock_.enter(Phase::zero_grad);
  device_.zero(loss);
  sync_->begin_step();

  const auto micro_steps = std::ssize(batches);
  for (std::ptrdiff_t micro_step = 0; micro_step < micro_steps; ++micro_step) {
    const BatchFeeder::Batch& batch = batches[micro_step];
    sync_->begin_micro_step(static_cast<int>(micro_step),
                            static_cast<int>(micro_steps));
    clock_.enter(Phase::forward);
    model_.forward(batch.inputs);
    clock_.enter(Phase::loss);
    model_.loss(
        batch.targets, loss, 1.0 / double(micro_steps),
        trains() ? Transformer::Gradient::yes : Transformer::Gradient::no);
    if (trains()) {
      clock_.enter(Phase::backward);
      model_.backward(batch.inputs);
    }
  }

  if (trains()) {
    clock_.enter(Phase::grad_sync);
    sync_->finish();
  }
}

void StepEngine::issue_work(std::int64_t step,
                            std::span<const BatchFeeder::Batch> batches) {
  Numbers& numbers = numbers_[step % in_flight];
  issue_gradients(batches, numbers.loss);
  device_.zero(numbers.norm_squared);
  if (options_.mode == Mode::train) {
    clock_.enter(Phase::optimizer);
    optimizer_.add_norm_squared(numbers.norm_squared);
    sync_->sum_over_shards(numbers.norm_squared);
    optimizer_.step(step, numbers.norm_squared);
    sync_->publish();
  }
  device_.copy_to_host(numbers.read_back, numbers.loss);
  device_.copy_to_host(numbers.read_back + 1, numbers.norm_squared);
}

void StepEngine::launch_work(std::int64_t step,
                             std::span<const BatchFeeder::Batch> batches) {
  Capture& capture = captures_[step % in_flight];
  const std::int64_t changes = device_.ledger().changes();
  if (!capture.work || capture.ledger_changes != changes) {
    const auto before = std::ssize(clock_.marks());
    capture.work = device_.capture([&] { issue_work(step, batches); });
    capture.marks = {clock_.marks().begin() + before, clock_.marks().end()};
    capture.ledger_changes = changes;
  } else {
    clock_.append(capture.marks);
  }
  capture.work->launch();
}

StepEngine::NonFinite StepEngine::find_non_finite(std::int64_t step) {
  const auto count = static_cast<std::size_t>(store_.parameters().size());
  NonFinite found{std::vector<double>(count), std::vector<double>(count)};
  std::vector<float> values;
  const auto look = [&](std::vector<double>& flags, auto read) {
    for (const Shard& shard : sync_->owned()) {
      values.resize(shard.count);
      read(shard);
      for (const Parameter& parameter : shard.unit->members) {
        const auto begin = std::max(parameter.offset, shard.begin);
        const auto end = std::min(parameter.offset + parameter.elements(),
                                  shard.begin + shard.count);
        for (auto i = begin; i < end; ++i) {
          if (std::isfinite(values[i - shard.begin])) continue;
          flags[parameter.index] = 1;
          break;
        }
      }
    }
  };
  look(found.weights, [&](const Shard& shard) {
    sync_->read(shard, StatePart::weights, values);
  });

  const std::int64_t tokens =
      options_.batch_size * options_.model.context_length;
  const Buffer memory = device_.allocate(
      Dtype::i32, {options_.grad_accumulation, 2, tokens}, Category::workspace,
      "token batches of a step that is repeated");
  std::vector<std::int32_t> staged(memory.bytes() / bytes_of(Dtype::i32));
  std::vector<BatchFeeder::Batch> batches;
  for (std::int64_t i = 0; i < options_.grad_accumulation; ++i) {
    const Tensor both =
        memory.tensor(Dtype::i32, {options_.grad_accumulation, 2 * tokens})
            .range(2 * i * tokens, 2 * tokens);
    const std::span<std::int32_t> on_host(staged.data() + 2 * i * tokens,
                                          2 * tokens);
    batches_.fill(step - first_step_, i, on_host.first(tokens),
                  on_host.last(tokens));
    device_.copy_to_device(both, on_host.data());
    batches.push_back({both.range(0, tokens), both.range(tokens, tokens)});
  }
  // In the slot of the step itself, whose figures have been read.
  clock_.begin_step(step);
  comm_.begin_step(step);
  issue_gradients(batches, numbers_[step % in_flight].loss);
  look(found.gradients, [&](const Shard& shard) {
    if (shard.count > 0) download(device_, values, shard.gradients);
  });
  return found;
}

std::vector<TraceRow> StepEngine::trace_rows(std::int64_t step) const {
  if (!options_.trace.contains(step)) return {};
  const EventState& begin = *clock_.beginning(step);
  std::vector<TraceRow> rows;
  const auto add = [&](const char* lane, const std::vector<Span>& spans) {
    for (const Span& span : spans) {
      span.end->wait();
      rows.push_back({lane, span.name, span.depth, span.bytes,
                      1e3 * span.begin->milliseconds_since(begin),
                      1e3 * span.end->milliseconds_since(*span.begin)});
    }
  };
  add("compute", numbers_[step % in_flight].trace);
  add("communication", comm_.collectives_of(step));
  add("exposed", comm_.waits_of(step));
  return rows;
}

StepEngine::Result StepEngine::wait(std::int64_t step) {
  Numbers& numbers = numbers_[step % in_flight];
  numbers.done->wait();
  Result result;
  result.loss = numbers.read_back[0];
  result.gradient_norm = options_.mode == Mode::train
                             ? std::sqrt(numbers.read_back[1])
                             : std::numeric_limits<double>::quiet_NaN();
  RankFigures& figures = result.figures;
  const CommFigures comm = comm_.figures_of(step);
  figures.phase_ms = clock_.milliseconds(step);
  figures.comm_busy_ms = comm.busy_ms;
  figures.comm_exposed_ms = comm.exposed_ms;
  figures.comm_calls = comm.total().calls;
  figures.comm_bytes = comm.total().bytes;
  figures.memory = device_.ledger().figures();
  result.trace = trace_rows(step);
  result.memory_timeline = std::exchange(numbers.memory_timeline, {});
  return result;
}

}  // namespace lockstep
