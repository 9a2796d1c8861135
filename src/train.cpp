#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "checkpoint/resume.h"
#include "checkpoint/saver.h"
#include "checkpoint/weights.h"
#include "config/options.h"
#include "core/atomic_file.h"
#include "core/stop_signal.h"
#include "mpi/communicator.h"
#include "mpi/world.h"
#include "record/console.h"
#include "record/run_record.h"
#include "sync/gradient_sync.h"
#include "trainer/build_info.h"
#include "trainer/dry_run.h"
#include "trainer/launch.h"
#include "trainer/sample_text.h"
#include "trainer/trainer.h"

namespace lockstep {
namespace {

// A run that a signal stopped has lost nothing and may go on (EX_TEMPFAIL).
constexpr int stopped_exit_code = 75;

// All steps, and what is asked for after them; returns the exit code.
int run(const Options& options, World& world, Trainer& trainer,
        const RunData& data, Console& console, const Outputs& outputs) {
  const auto [record, saver] = outputs;
  trainer.run(outputs, console);
  console.finish();

  const bool finished = trainer.step() >= options.last_step();
  world.watch(0);  // the last checkpoint takes as long as it takes
  bool saved = true, recorded = true;
  if (saver != nullptr) {
    saved = saver->finish();
    for (const std::string& line : saver->take_warnings()) console.warn(line);
  }
  if (record != nullptr) {
    record->set_status(finished ? "finished" : "stopped", "");
    record->flush();
    recorded = record->is_whole();
    for (const std::string& line : record->take_warnings()) console.warn(line);
  }
  if (finished && !options.save_weights.empty()) {
    save_weights(options.save_weights, trainer.store(), trainer.sync(), world);
  }
  if (finished && options.generate > 0) {
    console.note("\nsample:\n" + sample_text(trainer, options, data) + "\n");
  }
  if (record != nullptr && recorded) {
    console.note(fmt::format("record: {}", record->path()));
  }
  world.together([&] {
    require(recorded, "the model is trained, but {} lacks its last steps",
            options.output);
    require(saved, "the model is trained, but {} lacks its last checkpoint",
            options.checkpoint);
  });
  if (finished) return 0;
  console.note(fmt::format(
      "stopped by {} after step {} of {}{}", strsignal(trainer.stopped_by()),
      trainer.step(), options.last_step(),
      options.checkpoint.empty() ? "" : "; --resume auto goes on from there"));
  return stopped_exit_code;
}

int print_world(const Options& options, World& world) {
  const Placement placement = place_rank(options, world);
  Console console(Progress::plain, world.root());
  console.note(rank_table(placement.rows, placement.rows.size()));
  for (const std::string& line : placement.warnings) console.warn(line);
  return 0;
}

int train(World& world, int argc, char** argv) {
  const std::vector<std::string_view> strategies = gradient_sync_names();
  CommandLine command;
  world.together([&] {
    command = parse_command_line(argc, argv, world.size(), strategies);
  });
  if (command.action == Action::help) {
    if (world.root()) fmt::print("{}", help_text(strategies));
    return 0;
  }
  if (command.action == Action::version) {
    if (world.root()) fmt::print("lockstep {}\n", build_version);
    return 0;
  }
  const Options& options = command.options;
  world.require_same(options.entries());
  if (options.dry_run != DryRun::off) {
    if (world.root()) fmt::print("{}", dry_run(options));
    return 0;
  }

  if (options.print_world) return print_world(options, world);

  std::unique_ptr<CheckpointFolder> folder;  // on rank 0
  world.together([&] {
    if (!world.root() || options.checkpoint.empty()) return;
    folder = std::make_unique<CheckpointFolder>(options.checkpoint);
  });
  const Start start = find_start(options, folder.get(), world);
  const RunData data = open_data(options, start.position.samples, world);
  Placement placement = place_rank(options, world);
  const auto comm =
      make_communicator(world, *placement.backend.device, options.share_gpu);
  world.watch(options.timeout);
  if (options.timeout > 0) {
    comm->watch(options.timeout,
                [&](const std::string& line) { world.abort(line); });
  }

  Console console(settled_progress(options.progress), world.root());
  console.ranks(placement.rows);
  for (const std::string& line : placement.warnings) console.warn(line);
  for (const std::string& line : start.notes) console.note(line);
  if (options.graph == GraphUse::on) {
    const std::string obstacle = obstacle_to_graphs(
        options, placement.backend.device->kind(), world.size());
    if (!obstacle.empty())
      console.warn("--graph on is of no use here: " + obstacle);
  }

  world.together([&] {
    if (!world.root()) return;
    check_writable(options.output, "the run record");
    if (!options.save_weights.empty()) {
      check_writable(options.save_weights, "weights");
    }
  });
  const RunFacts facts = run_facts(options, world, placement, argc, argv);
  std::unique_ptr<RunRecord> record;  // on rank 0
  const auto open_record = [&] {
    world.together([&] {
      if (!world.root()) return;
      record = std::make_unique<RunRecord>(options.output, facts, world.size(),
                                           start.position.step);
    });
  };
  // The record writes itself while the error is on its way out.
  const auto record_failure = [&](const std::exception& error) {
    if (record) record->set_status("failed", error.what());
  };

  std::unique_ptr<Trainer> trainer;
  try {
    trainer = std::make_unique<Trainer>(options, world, placement.backend,
                                        *comm, data, start.position);
  } catch (const std::exception& error) {
    open_record();  // too little memory is a result, too
    record_failure(error);
    throw;
  }
  trainer->set_initial_state(start);
  open_record();
  std::unique_ptr<CheckpointSaver> saver;  // on rank 0, with --checkpoint
  if (folder) {
    saver = std::make_unique<CheckpointSaver>(
        *folder, options.keep, CheckpointFacts{{}, facts.config, facts.texts},
        trainer->store());
  }

  const Device& device = *placement.backend.device;
  if (const std::string line = trainer->sync().remark(); !line.empty()) {
    console.note(line);
  }
  console.model(options.model, options, device.ledger().figures(),
                world.size());
  console.start_training(options.last_step(), options.model.flops_per_token(),
                         device.peak_flops(options.precision) * world.size(),
                         options.warmup_iterations);
  try {
    return run(options, world, *trainer, data, console,
               {record.get(), saver.get()});
  } catch (const std::exception& error) {
    record_failure(error);
    throw;
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::catch_stop_signals();
  lockstep::World world(argc, argv);
  return world.guard([&] { return lockstep::train(world, argc, argv); });
}
