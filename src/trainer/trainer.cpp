#include "trainer/trainer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/replicas.h"
#include "checkpoint/weights.h"
#include "core/random.h"
#include "core/stop_signal.h"
#include "trainer/step_details.h"

namespace lockstep {
namespace {

std::unique_ptr<Batches> make_batches(const TokenSource& source,
                                      const Options& options,
                                      const BatchShape& shape) {
  return options.sampler == SamplerKind::sequential
             ? sequential_batches(source, shape)
             : random_batches(source, shape, options.seed);
}

// Opens a source on every rank and checks it, each rank its own part.
std::unique_ptr<TokenSource> open_checked(const std::string& name,
                                          const Options& options,
                                          World& world) {
  std::unique_ptr<TokenSource> source;
  world.together([&] {
    source = open_token_source(name);
    const auto part = [&](int rank) {
      return source->size() / world.size() * rank;
    };
    const bool last = world.rank() + 1 == world.size();
    check_tokens(*source, part(world.rank()),
                 last ? source->size() : part(world.rank() + 1),
                 options.model.vocab_size);
  });
  return source;
}

// RankFigures as numbers that travel, and back.
std::vector<double> packed(const RankFigures& figures) {
  std::vector<double> row(figures.phase_ms.begin(), figures.phase_ms.end());
  row.insert(row.end(),
             {figures.comm_busy_ms, figures.comm_exposed_ms,
              double(figures.comm_calls), double(figures.comm_bytes),
              double(figures.memory.total), double(figures.memory.peak)});
  row.insert(row.end(), figures.memory.bytes.begin(),
             figures.memory.bytes.end());
  return row;
}

RankFigures unpacked(std::span<const double> row) {
  RankFigures figures;
  std::copy_n(row.begin(), phase_count, figures.phase_ms.begin());
  row = row.subspan(phase_count);
  figures.comm_busy_ms = row[0];
  figures.comm_exposed_ms = row[1];
  figures.comm_calls = static_cast<std::int64_t>(row[2]);
  figures.comm_bytes = static_cast<std::int64_t>(row[3]);
  figures.memory.total = static_cast<std::int64_t>(row[4]);
  figures.memory.peak = static_cast<std::int64_t>(row[5]);
  for (int i = 0; i < category_count; ++i) {
    figures.memory.bytes[i] = static_cast<std::int64_t>(row[6 + i]);
  }
  return figures;
}

// Element by element; every rank gives equally many.
std::vector<double> sum_over_ranks(const std::vector<double>& mine,
                                   World& world) {
  std::vector<double> sum(mine.size());
  const std::vector<double> all = world.all_gather(mine);
  for (std::size_t i = 0; i < all.size(); ++i) sum[i % sum.size()] += all[i];
  return sum;
}

// "2 (host-a), 5 (host-b)"
std::string describe(const std::vector<int>& ranks, World& world) {
  const auto hosts = world.all_gather(world.place().host);
  std::vector<std::string> texts;
  for (const int rank : ranks) {
    texts.push_back(fmt::format("{} ({})", rank, hosts[rank]));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

// One of the vocabulary by the model's probabilities, at temperature 0.8.
std::int32_t sample(std::span<const float> logits, double uniform) {
  constexpr double temperature = 0.8;
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> cumulative;
  double total = 0;
  for (const float logit : logits) {
    total += std::exp((logit - top) / temperature);
    cumulative.push_back(total);
  }
  const auto chosen =
      std::upper_bound(cumulative.begin(), cumulative.end(), uniform * total);
  return static_cast<std::int32_t>(
      std::min(chosen - cumulative.begin(), std::ssize(cumulative) - 1));
}

}  // namespace

RunData open_data(const Options& options, std::int64_t first_sample,
                  World& world) {
  RunData data;
  BatchShape shape = batch_shape(options, world.rank(), world.size());
  shape.first_sample = first_sample;
  if (options.data == "random") {
    data.training = noise_batches(shape, options.seed);
  } else {
    data.source = open_checked(options.data, options, world);
    world.together(
        [&] { data.training = make_batches(*data.source, options, shape); });
  }
  if (!options.validation_data.empty()) {
    data.validation_source =
        open_checked(options.validation_data, options, world);
    world.together([&] {
      BatchShape all = shape;
      all.accumulation = options.validation_batches;
      all.first_sample = 0;
      data.validation = make_batches(*data.validation_source, options, all);
    });
  }
  return data;
}

Trainer::Trainer(const Options& options, World& world, Backend& backend,
                 Communicator& comm, const RunData& data, const Position& start)
    : options_(options),
      world_(world),
      device_(*backend.device),
      comm_(comm),
      data_(data),
      start_(start),
      reported_(start_.step),
      saved_(start_.step) {
  // Out of memory on one rank is out of memory for all.
  world.together([&] {
    engine_ =
        std::make_unique<StepEngine>(options, backend, comm, *data.training);
    const std::int64_t tokens =
        options.batch_size * options.model.context_length;
    evaluation_memory_ = device_.allocate(
        2 * tokens * bytes_of(Dtype::i32) + bytes_of(Dtype::f64),
        Category::workspace, "evaluation batch");
    evaluation_loss_ = evaluation_memory_.tensor(Dtype::f64, {1});
    evaluation_tokens_ = {
        evaluation_loss_.as<double>() + 1, Dtype::i32, {2, tokens}};
  });
}

void Trainer::set_initial_state(const Start& start) {
  if (start_.step > 0) {
    restore_checkpoint(start, store(), sync(), world_);
  } else if (options_.init.empty()) {
    initialise_weights(store(), sync(), options_.seed);
  } else {
    load_weights(options_.init, store(), sync(), world_);
  }
}

void Trainer::run(const Outputs& outputs, Console& console) {
  std::int64_t issued = start_.step;
  while (issued < options_.last_step() && stopped_by_ == 0) {
    const std::int64_t step = ++issued;
    engine_->issue(step);
    // The host stays one step ahead of the device.
    report_up_to(step - 1, outputs, console);

    if (options_.validation_every > 0 &&
        step % options_.validation_every == 0) {
      const double loss = validate();
      if (outputs.record != nullptr) outputs.record->add_validation(step, loss);
      console.validation(step, loss);
    }
    if (options_.verify_every > 0 && step % options_.verify_every == 0) {
      report_up_to(step, outputs, console);
      verify_replicas(console);
    }
    if (checkpoint_is_due(step)) {
      report_up_to(step, outputs, console);
      save_checkpoint(outputs);
    }
  }
  report_up_to(issued, outputs, console);
  if (!options_.checkpoint.empty() && saved_ < issued) save_checkpoint(outputs);
}

void Trainer::report_up_to(std::int64_t step, const Outputs& outputs,
                           Console& console) {
  while (reported_ < step) report(reported_ + 1, outputs, console);
}

void Trainer::report(std::int64_t step, const Outputs& outputs,
                     Console& console) {
  RunRecord* const record = outputs.record;
  const StepEngine::Result mine = engine_->wait(step);
  world_.begin_step(step);
  // What ranks must agree on travels with the figures: they save and stop
  // after the same step.
  std::vector<double> row = packed(mine.figures);
  const auto figure_count = row.size();
  const bool busy = outputs.saver != nullptr && outputs.saver->busy();
  row.insert(row.end(), {mine.loss, mine.gradient_norm, double(stop_signal()),
                         double(busy)});
  const std::vector<double> rows = world_.all_gather(row);

  StepFigures figures;
  figures.step = step;
  figures.learning_rate = engine_->learning_rate(step);
  figures.gradient_norm = mine.gradient_norm;
  figures.tokens = samples_per_step() * options_.model.context_length;
  saver_busy_ = false;
  for (int rank = 0; rank < world_.size(); ++rank) {
    const std::span<const double> theirs(&rows[rank * row.size()], row.size());
    figures.ranks.push_back(unpacked(theirs));
    const auto rest = theirs.subspan(figure_count);
    figures.loss += rest[0] / world_.size();
    // Norms differ where ranks train apart; one that is not finite shows.
    if (!std::isfinite(rest[1])) figures.gradient_norm = rest[1];
    stopped_by_ = std::max(stopped_by_, static_cast<int>(rest[2]));
    saver_busy_ = saver_busy_ || rest[3] != 0;
  }
  reported_ = step;
  if (options_.trace.contains(step)) {
    const auto traces = gather(mine.trace, world_);
    for (int rank = 0; record != nullptr && rank < world_.size(); ++rank) {
      record->add_trace(step, rank, traces[rank]);
    }
  }
  if (options_.memory_timeline.contains(step)) {
    const auto timelines = gather(mine.memory_timeline, world_);
    for (int rank = 0; record != nullptr && rank < world_.size(); ++rank) {
      record->add_memory_timeline(step, rank, timelines[rank]);
    }
  }
  if (record != nullptr) {
    record->add_step(figures);
    record->flush_if_due();
    for (const std::string& line : record->take_warnings()) console.warn(line);
  }
  if (outputs.saver != nullptr) {
    for (const auto& line : outputs.saver->take_warnings()) console.warn(line);
  }
  console.step(figures);
  const bool updates = options_.mode == Mode::train;
  if (!std::isfinite(figures.loss) ||
      (updates && !std::isfinite(figures.gradient_norm))) {
    handle_non_finite(figures, record, console);
  }
}

void Trainer::handle_non_finite(const StepFigures& figures, RunRecord* record,
                                Console& console) {
  if (record != nullptr) record->flush();
  std::string what = std::isfinite(figures.loss)
                         ? fmt::format("the gradient norm is {} at step {}",
                                       figures.gradient_norm, figures.step)
                         : fmt::format("the loss is {} at step {}",
                                       std::abs(figures.loss), figures.step);
  bool weights_are_finite = true;
  if (options_.mode == Mode::train) {
    const StepEngine::NonFinite mine = engine_->find_non_finite(figures.step);
    const auto weights = sum_over_ranks(mine.weights, world_);
    const auto gradients = sum_over_ranks(mine.gradients, world_);
    const auto is_set = [](double count) { return count > 0; };
    weights_are_finite = std::ranges::none_of(weights, is_set);
    // The backward pass comes upon the last one first.
    const auto& flags = weights_are_finite ? gradients : weights;
    const auto last = std::find_if(flags.rbegin(), flags.rend(), is_set);
    if (last != flags.rend()) {
      const auto index = flags.rend() - last - 1;
      const auto others = std::ranges::count_if(flags, is_set) - 1;
      what +=
          fmt::format("; {} of '{}'{} not finite",
                      weights_are_finite ? "the gradient" : "weights",
                      store().parameters()[index]->name,
                      others == 0 ? (weights_are_finite ? " is" : " are")
                                  : fmt::format(" and {} more are", others));
    }
  }
  if (options_.on_nonfinite == OnNonFinite::skip && weights_are_finite &&
      options_.mode == Mode::train) {
    return console.warn(what + "; its update is skipped");
  }
  world_.together([&] {
    fail(
        "{}; the record holds every step up to it; try a lower --lr, more "
        "--warmup-steps or a --clip",
        what);
  });
}

void Trainer::verify_replicas(Console& console) {
  const Drift drift = find_drift(store(), sync(), device_, comm_, world_);
  if (drift.ranks.empty()) return;
  const std::string what = fmt::format(
      "after step {} '{}' differs on rank {} from that of the other ranks: a "
      "silent error there",
      reported_, drift.unit, describe(drift.ranks, world_));
  if (options_.on_drift == OnDrift::stop || drift.ranks.front() == 0) {
    world_.together([&] { fail("{}", what); });
  }
  std::vector<UnitState> state;
  gather_state(store(), sync(), world_, state);
  scatter_state(store(), sync(), world_, all_state,
                [&](const Unit& unit, StatePart part, std::span<float> values) {
                  std::ranges::copy(state[unit.index][int(part)],
                                    values.begin());
                });
  console.warn(what + "; all have rank 0's again");
}

std::int64_t Trainer::samples_per_step() const {
  return options_.batch_size * options_.grad_accumulation * world_.size();
}

// One that is due while the last is still being written comes after it.
bool Trainer::checkpoint_is_due(std::int64_t step) const {
  const std::int64_t every = options_.checkpoint_every;
  if (options_.checkpoint.empty() || every == 0 || saver_busy_) return false;
  return step / every > saved_ / every;
}

// Of the last step, which all ranks know to be done.
void Trainer::save_checkpoint(const Outputs& outputs) {
  std::vector<UnitState> state;
  gather_state(store(), sync(), world_, state);
  saved_ = reported_;
  if (outputs.saver == nullptr) return;
  // The record is never behind the checkpoint.
  outputs.record->flush();
  const std::int64_t steps = reported_ - start_.step;
  outputs.saver->save({reported_, start_.samples + steps * samples_per_step()},
                      std::move(state));
}

double Trainer::validate() {
  const std::int64_t tokens = evaluation_tokens_[1];
  std::vector<std::int32_t> staged(2 * tokens);
  const std::span<std::int32_t> all(staged);
  device_.zero(evaluation_loss_);
  for (std::int64_t i = 0; i < options_.validation_batches; ++i) {
    data_.validation->fill(0, i, all.first(tokens), all.last(tokens));
    device_.copy_to_device(evaluation_tokens_, staged.data());
    engine_->model().forward(evaluation_tokens_.range(0, tokens));
    engine_->model().loss(
        evaluation_tokens_.range(tokens, tokens), evaluation_loss_,
        1.0 / double(options_.validation_batches), Transformer::Gradient::no);
    device_.synchronize();
  }
  double mine = 0;
  device_.copy_to_host(&mine, evaluation_loss_);
  device_.synchronize();
  double mean = 0;
  for (const double loss : world_.all_gather({&mine, 1})) {
    mean += loss / world_.size();
  }
  return mean;
}

std::vector<std::int32_t> Trainer::generate(
    std::span<const std::int32_t> prompt, std::int64_t count) {
  const std::int64_t context = options_.model.context_length;
  std::vector<std::int32_t> text(prompt.begin(), prompt.end());
  std::vector<float> logits(options_.model.vocab_size);
  for (std::int64_t i = 0; i < count; ++i) {
    // The last `context` tokens; what follows them is causally invisible.
    const std::int64_t length = std::min(context, std::ssize(text));
    std::vector<std::int32_t> window(context, 0);
    std::copy(text.end() - length, text.end(), window.begin());
    const Tensor inputs = evaluation_tokens_.range(0, context);
    device_.copy_to_device(inputs, window.data());
    engine_->model().forward(inputs);
    download(device_, logits,
             engine_->model().logits(length - 1).range(0, std::ssize(logits)));
    const auto bits = random_bits(options_.seed, Stream::generation, 0,
                                  static_cast<std::uint64_t>(i));
    text.push_back(sample(logits, unit_interval(bits[0], bits[1])));
  }
  return text;
}

}  // namespace lockstep
