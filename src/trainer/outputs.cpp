#include "trainer/outputs.h"

#include <fmt/format.h>

#include <utility>

#include "core/atomic_file.h"

namespace lockstep {

Outputs::Outputs(const Options& options, RunFacts facts,
                 std::int64_t first_step, CheckpointFolder* folder,
                 World& world)
    : options_(options),
      facts_(std::move(facts)),
      first_step_(first_step),
      folder_(folder),
      world_(world) {
  world.together([&] {
    if (!world.root()) return;
    check_writable(options.output, "the run record");
    if (!options.save_weights.empty()) {
      check_writable(options.save_weights, "weights");
    }
  });
}

void Outputs::open_record() {
  is_open_ = true;
  world_.together([&] {
    if (!world_.root()) return;
    record_ = std::make_unique<RunRecord>(options_.output, facts_,
                                          world_.size(), first_step_);
  });
}

void Outputs::open(const ParameterStore& layout) {
  open_record();
  if (folder_ == nullptr) return;
  saver_ = std::make_unique<CheckpointSaver>(
      *folder_, options_.keep, CheckpointFacts{{}, facts_.config, facts_.texts},
      layout);
}

void Outputs::record_error(const std::exception& error) {
  if (!is_open_) open_record();
  // The record writes itself while the error is on its way out.
  if (record_) record_->set_status("failed", error.what());
}

void Outputs::add_traces(std::int64_t step,
                         std::span<const std::vector<TraceRow>> of_ranks) {
  for (int rank = 0; record_ && rank < std::ssize(of_ranks); ++rank) {
    record_->add_trace(step, rank, of_ranks[rank]);
  }
}

void Outputs::add_memory_timelines(std::int64_t step,
                                   std::span<const MemoryTimeline> of_ranks) {
  for (int rank = 0; record_ && rank < std::ssize(of_ranks); ++rank) {
    record_->add_memory_timeline(step, rank, of_ranks[rank]);
  }
}

void Outputs::add_step(const StepFigures& figures) {
  if (!record_) return;
  record_->add_step(figures);
  record_->flush_if_due();
}

void Outputs::add_validation(std::int64_t step, double loss) {
  if (record_) record_->add_validation(step, loss);
}

void Outputs::flush_record() {
  if (record_) record_->flush();
}

void Outputs::save(const Position& position, std::vector<UnitState> state) {
  if (!saver_) return;
  flush_record();
  saver_->save(position, std::move(state));
}

void Outputs::show_warnings(Console& console) {
  const auto show = [&](auto& output) {
    if (!output) return;
    for (const std::string& line : output->take_warnings()) console.warn(line);
  };
  show(record_);
  show(saver_);
}

void Outputs::finish(bool all_steps, Console& console) {
  if (saver_) saved_ = saver_->finish();
  if (record_) {
    record_->set_status(all_steps ? "finished" : "stopped", "");
    record_->flush();
    recorded_ = record_->is_whole();
  }
  show_warnings(console);
}

void Outputs::require_whole(Console& console) {
  if (record_ && recorded_) {
    console.note(fmt::format("record: {}", record_->path()));
  }
  world_.together([&] {
    require(recorded_, "the model is trained, but {} lacks its last steps",
            options_.output);
    require(saved_, "the model is trained, but {} lacks its last checkpoint",
            options_.checkpoint);
  });
}

}  // namespace lockstep
