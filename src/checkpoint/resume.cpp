#include "checkpoint/resume.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "checkpoint/tensors.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Entry = CheckpointFolder::Entry;

// What a resumed run must have in common with the one before it: the model.
constexpr std::string_view fixed[] = {"vocab-size", "d-model",   "d-ff",
                                      "num-layers", "num-heads", "rope-theta"};
// What it had better have in common: what else shapes the loss curve.
constexpr std::string_view shaping[] = {
    "data",         "context-length", "sampler",      "seed",
    "lr",           "min-lr",         "warmup-steps", "decay-steps",
    "weight-decay", "decay-norms",    "beta1",        "beta2",
    "adam-eps",     "clip",           "precision",    "grad-dtype",
    "reduce-dtype"};

std::string value_in(const CheckpointFacts::Texts& options,
                     std::string_view name) {
  for (const auto& [each, value] : options) {
    if (each == name) return value;
  }
  return "";
}

// Calls visit(name, then, now) for each of these options that differs.
template <class Visit>
void for_differences(std::span<const std::string_view> names,
                     const CheckpointFacts& facts, const Options& options,
                     Visit visit) {
  const auto now = options.entries();
  for (const std::string_view name : names) {
    const std::string before = value_in(facts.options, name);
    const std::string after = value_in(now, name);
    if (before != after) visit(name, before, after);
  }
}

// The newest that is whole. What else there was is said in `notes`.
std::optional<Entry> newest_whole(const std::vector<Entry>& entries,
                                  std::vector<std::string>& notes) {
  for (const Entry& entry : entries) {
    try {
      verify_checkpoint(entry.path);
      return entry;
    } catch (const Error& error) {
      notes.push_back(
          fmt::format("{}; the one before it is used", error.what()));
    }
  }
  return {};
}

std::optional<Entry> choose(const Options& options,
                            const CheckpointFolder* folder,
                            std::vector<std::string>& notes) {
  const bool automatic = options.resume == "auto";
  if (!automatic && fs::is_regular_file(options.resume)) {
    verify_checkpoint(options.resume);
    return Entry{0, options.resume};
  }
  const std::string from = automatic ? folder->path() : options.resume;
  const auto entries = CheckpointFolder::entries_of(from);
  if (entries.empty()) {
    require(automatic, "cannot resume from {}: there is no checkpoint", from);
    notes.push_back(fmt::format("no checkpoint in {}: a new run", from));
    return {};
  }
  auto found = newest_whole(entries, notes);
  require(found.has_value(),
          "cannot resume from {}: none of its {} checkpoints is whole", from,
          entries.size());
  return found;
}

// Checkpoints that this run is going to write again are no longer its own.
void set_aside_newer(const CheckpointFolder& folder, std::int64_t step,
                     std::vector<std::string>& notes) {
  for (const Entry& entry : folder.entries()) {
    if (entry.step <= step) break;
    notes.push_back(fmt::format("{} is newer than that and now called {}",
                                entry.path,
                                CheckpointFolder::set_aside(entry)));
  }
}

void describe(const std::string& path, const CheckpointFacts& facts,
              const Options& options, std::vector<std::string>& notes) {
  for_differences(fixed, facts, options,
                  [&](auto name, const auto& then, const auto& now) {
                    fail("checkpoint {} is of another model: --{} {}, here {}",
                         path, name, then, now);
                  });
  notes.push_back(
      fmt::format("resumed from {} after step {}", path, facts.position.step));
  for_differences(shaping, facts, options,
                  [&](auto name, const auto& then, const auto& now) {
                    notes.push_back(fmt::format(
                        "--{} is {} from here on; it was {}", name, now, then));
                  });
}

Start on_root(const Options& options, const CheckpointFolder* folder) {
  Start start;
  if (options.resume.empty()) {
    require(folder == nullptr || folder->entries().empty(),
            "{} holds checkpoints of an earlier run: --resume auto goes on "
            "with it, another --checkpoint folder begins a new one",
            folder == nullptr ? "" : folder->path());
    return start;
  }
  const auto found = choose(options, folder, start.notes);
  if (!found) return start;
  const CheckpointFacts facts = read_facts(found->path);
  describe(found->path, facts, options, start.notes);
  start.checkpoint = found->path;
  start.position = facts.position;
  if (folder != nullptr) {
    set_aside_newer(*folder, facts.position.step, start.notes);
  }
  return start;
}

}  // namespace

Start find_start(const Options& options, const CheckpointFolder* folder,
                 World& world) {
  Start start;
  world.together([&] {
    if (world.root()) start = on_root(options, folder);
  });
  world.broadcast(&start.position, sizeof start.position);
  return start;
}

void restore_checkpoint(const Start& start, ParameterStore& store,
                        GradientSync& sync, World& world) {
  std::unique_ptr<hdf5::File> file;  // on rank 0
  const auto group_of = [&](StatePart part) {
    return file->group(std::string(state_part_names[int(part)]));
  };
  world.together([&] {
    if (!world.root()) return;
    file = std::make_unique<hdf5::File>(start.checkpoint, hdf5::Access::read);
    for (const StatePart part : all_state) {
      check_tensors(group_of(part), start.checkpoint, store);
    }
  });
  scatter_state(store, sync, world, all_state,
                [&](const Unit& unit, StatePart part, std::span<float> values) {
                  read_tensors(group_of(part), unit, values);
                });
}

}  // namespace lockstep
