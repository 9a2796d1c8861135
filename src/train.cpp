#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "checkpoint/resume.h"
#include "checkpoint/weights.h"
#include "config/options.h"
#include "core/stop_signal.h"
#include "mpi/communicator.h"
#include "mpi/world.h"
#include "record/console.h"
#include "sync/gradient_sync.h"
#include "trainer/build_info.h"
#include "trainer/dry_run.h"
#include "trainer/launch.h"
#include "trainer/outputs.h"
#include "trainer/run_data.h"
#include "trainer/sample_text.h"
#include "trainer/trainer.h"

namespace lockstep {
namespace {

// A run that a signal stopped has lost nothing and may go on (EX_TEMPFAIL).
constexpr int stopped_exit_code = 75;

std::unique_ptr<CheckpointFolder> open_checkpoints(const Options& options,
                                                   World& world) {
  std::unique_ptr<CheckpointFolder> folder;  // on rank 0
  world.together([&] {
    if (!world.root() || options.checkpoint.empty()) return;
    folder = std::make_unique<CheckpointFolder>(options.checkpoint);
  });
  return folder;
}

// What does not end within --timeout ends the run.
void watch(const Options& options, World& world, Communicator& comm) {
  world.watch(options.timeout);
  if (options.timeout > 0) {
    comm.watch(options.timeout,
               [&](const std::string& line) { world.abort(line); });
  }
}

void show_placement(const Options& options, const Placement& placement,
                    World& world, Console& console) {
  console.ranks(placement.rows);
  for (const std::string& line : placement.warnings) console.warn(line);
  if (options.graph != GraphUse::on) return;
  const std::string obstacle = obstacle_to_graphs(
      options, placement.backend.device->kind(), world.size());
  if (obstacle.empty()) return;
  console.warn("--graph on is of no use here: " + obstacle);
}

void show_training(const Options& options, const Device& device,
                   Trainer& trainer, World& world, Console& console) {
  if (const std::string line = trainer.sync().remark(); !line.empty()) {
    console.note(line);
  }
  console.model(options.model, options, device.ledger().figures(),
                world.size());
  console.start_training(options.last_step(), options.model.flops_per_token(),
                         device.peak_flops(options.precision) * world.size(),
                         options.warmup_iterations);
}

// All steps, and what is asked for after them; returns the exit code.
int run_steps(const Options& options, const RunData& data, Trainer& trainer,
              Outputs& outputs, World& world, Console& console) {
  trainer.run(outputs, console);
  console.finish();

  const bool finished = trainer.step() >= options.last_step();
  world.watch(0);  // the last checkpoint takes as long as it takes
  outputs.finish(finished, console);
  if (finished && !options.save_weights.empty()) {
    save_weights(options.save_weights, trainer.store(), trainer.sync(), world);
  }
  if (finished && options.generate > 0) {
    console.note("\nsample:\n" +
                 sample_text(trainer.evaluation(), options, data) + "\n");
  }
  outputs.require_whole(console);
  if (finished) return 0;
  console.note(fmt::format(
      "stopped by {} after step {} of {}{}", strsignal(trainer.stopped_by()),
      trainer.step(), options.last_step(),
      options.checkpoint.empty() ? "" : "; --resume auto goes on from there"));
  return stopped_exit_code;
}

// A run: where it starts, its data and devices, and then its steps.
int train(const Options& options, World& world, int argc, char** argv) {
  const auto folder = open_checkpoints(options, world);
  const Start start = find_start(options, folder.get(), world);
  const RunData data = open_data(options, start.position.samples, world);
  Placement placement = place_rank(options, world);
  Device& device = *placement.backend.device;
  const auto comm = make_communicator(world, device, options.share_gpu);
  watch(options, world, *comm);

  Console console(settled_progress(options.progress), world.root());
  show_placement(options, placement, world, console);
  for (const std::string& line : start.notes) console.note(line);

  std::unique_ptr<Trainer> trainer;  // outlives what is written of it
  Outputs outputs(options, run_facts(options, world, placement, argc, argv),
                  start.position.step, folder.get(), world);
  outputs.with_errors_recorded([&] {  // too little memory is a result, too
    trainer = std::make_unique<Trainer>(options, world, placement.backend,
                                        *comm, data, start.position);
  });
  trainer->set_initial_state(start);
  outputs.open(trainer->store());

  show_training(options, device, *trainer, world, console);
  return outputs.with_errors_recorded([&] {
    return run_steps(options, data, *trainer, outputs, world, console);
  });
}

int print_world(const Options& options, World& world) {
  const Placement placement = place_rank(options, world);
  Console console(Progress::plain, world.root());
  console.note(rank_table(placement.rows, placement.rows.size()));
  for (const std::string& line : placement.warnings) console.warn(line);
  return 0;
}

// What the command line asks for.
int run(World& world, int argc, char** argv) {
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
  return train(options, world, argc, argv);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::catch_stop_signals();
  lockstep::World world(argc, argv);
  return world.guard([&] { return lockstep::run(world, argc, argv); });
}
