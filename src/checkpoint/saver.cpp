#include "checkpoint/saver.h"

#include <chrono>
#include <filesystem>
#include <utility>

namespace lockstep {

CheckpointSaver::CheckpointSaver(CheckpointFolder& folder, std::int64_t keep,
                                 CheckpointFacts facts,
                                 const ParameterStore& layout)
    : folder_(folder), keep_(keep), facts_(std::move(facts)), layout_(layout) {}

bool CheckpointSaver::busy() const {
  return writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) !=
                                 std::future_status::ready;
}

void CheckpointSaver::save(const Position& position,
                           std::vector<UnitState> state) {
  collect();
  writing_ = std::async(std::launch::async,
                        [this, position, copy = std::move(state)]() mutable {
                          write(position, std::move(copy));
                        });
}

void CheckpointSaver::write(const Position& position,
                            std::vector<UnitState> state) const {
  CheckpointFacts facts = facts_;
  facts.position = position;
  const CheckpointFolder::Entry entry = folder_.entry(position.step);
  // It may have been removed since.
  std::error_code shows_below;
  std::filesystem::create_directories(folder_.path(), shows_below);
  write_checkpoint(entry.path, facts, layout_, std::move(state));
  folder_.settle(entry, keep_);
}

void CheckpointSaver::collect() {
  if (!writing_.valid()) return;
  written_ = false;
  try {
    writing_.get();
    written_ = true;
    causes_said_.clear();
  } catch (const std::exception& error) {
    // The step in a file's name is no part of the cause.
    const std::string cause = error.what();
    if (causes_said_.insert(cause.substr(cause.rfind(": ") + 1)).second) {
      warnings_.push_back(fmt::format(
          "{}; training goes on, and the next checkpoint is tried", cause));
    }
  }
}

bool CheckpointSaver::finish() {
  collect();
  return written_;
}

std::vector<std::string> CheckpointSaver::take_warnings() {
  if (!busy()) collect();
  return std::exchange(warnings_, {});
}

}  // namespace lockstep
