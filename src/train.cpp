#include <fmt/format.h>

#include <memory>

#include "checkpoint/weights.h"
#include "config/options.h"
#include "core/atomic_file.h"
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

// All steps, and what is asked for after them. `record` is null on all ranks
// but 0.
void run(const Options& options, World& world, Trainer& trainer,
         const RunData& data, Console& console, RunRecord* record) {
  trainer.run(record, console);
  console.finish();

  bool recorded = true;
  if (record != nullptr) {
    record->set_status("finished", "");
    record->flush();
    recorded = record->is_whole();
    for (const std::string& line : record->take_warnings()) console.warn(line);
  }
  if (!options.save_weights.empty()) {
    save_weights(options.save_weights, trainer.store(), trainer.sync(), world);
  }
  if (options.generate > 0) {
    console.note("\nsample:\n" + sample_text(trainer, options, data) + "\n");
  }
  if (record != nullptr && recorded) {
    console.note(fmt::format("record: {}", record->path()));
  }
  world.together([&] {
    require(recorded, "the model is trained, but {} lacks its last steps",
            options.output);
  });
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
  if (options.dry_run) {
    if (world.root()) fmt::print("{}", dry_run(options));
    return 0;
  }

  const RunData data = open_data(options, world);
  Placement placement = place_rank(options, world);
  const auto comm =
      make_communicator(world, *placement.backend.device, options.share_gpu);
  if (options.timeout > 0) {
    comm->watch(options.timeout,
                [&](const std::string& line) { world.abort(line); });
  }

  Console console(settled_progress(options.progress), world.root());
  console.ranks(placement.rows);
  for (const std::string& line : placement.warnings) console.warn(line);
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
  std::unique_ptr<RunRecord> record;  // on rank 0
  const auto open_record = [&] {
    world.together([&] {
      if (!world.root()) return;
      record = std::make_unique<RunRecord>(
          options.output, run_facts(options, world, placement, argc, argv),
          world.size());
    });
  };
  // The record writes itself while the error is on its way out.
  const auto record_failure = [&](const std::exception& error) {
    if (record) record->set_status("failed", error.what());
  };

  std::unique_ptr<Trainer> trainer;
  try {
    trainer = std::make_unique<Trainer>(options, world, placement.backend,
                                        *comm, data);
  } catch (const std::exception& error) {
    open_record();  // too little memory is a result, too
    record_failure(error);
    throw;
  }
  trainer->set_initial_weights();
  open_record();

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
    run(options, world, *trainer, data, console, record.get());
  } catch (const std::exception& error) {
    record_failure(error);
    throw;
  }
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::World world(argc, argv);
  return world.guard([&] { return lockstep::train(world, argc, argv); });
}
