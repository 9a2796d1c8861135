#include "trainer/trainer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/replicas.h"
#include "checkpoint/weights.h"
#include "core/stop_signal.h"
#include "trainer/step_details.h"

namespace lockstep {
namespace {

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

}  // namespace

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
    evaluation_ =
        std::make_unique<Evaluation>(options, device_, engine_->model());
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

void Trainer::run(Outputs& outputs, Console& console) {
  std::int64_t issued = start_.step;
  while (issued < options_.last_step() && stopped_by_ == 0) {
    const std::int64_t step = ++issued;
    engine_->issue(step);
    // The host stays one step ahead of the device.
    report_up_to(step - 1, outputs, console);

    if (options_.validation_every > 0 &&
        step % options_.validation_every == 0) {
      const double loss = evaluation_->loss(*data_.validation, world_);
      outputs.add_validation(step, loss);
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

void Trainer::report_up_to(std::int64_t step, Outputs& outputs,
                           Console& console) {
  while (reported_ < step) report(reported_ + 1, outputs, console);
}

void Trainer::report(std::int64_t step, Outputs& outputs, Console& console) {
  const StepEngine::Result mine = engine_->wait(step);
  world_.begin_step(step);
  StepFigures figures;
  figures.step = step;
  figures.learning_rate = engine_->learning_rate(step);
  figures.gradient_norm = mine.gradient_norm;
  figures.tokens = samples_per_step() * options_.model.context_length;
  // What ranks must agree on travels with the figures: they save and stop
  // after the same step.
  const RankReport report{mine.figures, mine.loss, mine.gradient_norm,
                          stop_signal(), outputs.saves()};
  saver_busy_ = false;
  for (const RankReport& theirs : gather(report, world_)) {
    figures.ranks.push_back(theirs.figures);
    figures.loss += theirs.loss / world_.size();
    // Norms differ where ranks train apart; one that is not finite shows.
    if (!std::isfinite(theirs.gradient_norm)) {
      figures.gradient_norm = theirs.gradient_norm;
    }
    stopped_by_ = std::max(stopped_by_, theirs.stop_signal);
    saver_busy_ = saver_busy_ || theirs.saves;
  }
  reported_ = step;

  if (options_.trace.contains(step)) {
    outputs.add_traces(step, gather(mine.trace, world_));
  }
  if (options_.memory_timeline.contains(step)) {
    outputs.add_memory_timelines(step, gather(mine.memory_timeline, world_));
  }
  outputs.add_step(figures);
  outputs.show_warnings(console);
  console.step(figures);
  const bool updates = options_.mode == Mode::train;
  if (!std::isfinite(figures.loss) ||
      (updates && !std::isfinite(figures.gradient_norm))) {
    outputs.flush_record();
    handle_non_finite(figures, console);
  }
}

void Trainer::handle_non_finite(const StepFigures& figures, Console& console) {
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
  repair_replicas(store(), sync(), world_);
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
void Trainer::save_checkpoint(Outputs& outputs) {
  std::vector<UnitState> state;
  gather_state(store(), sync(), world_, state);
  saved_ = reported_;
  const std::int64_t steps = reported_ - start_.step;
  outputs.save({reported_, start_.samples + steps * samples_per_step()},
               std::move(state));
}

}  // namespace lockstep
