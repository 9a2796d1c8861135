#include <gtest/gtest.h>

#include <vector>

#include "checkpoint/replicas.h"
#include "checkpoint/saver.h"
#include "checkpoint/state.h"
#include "checkpoint/tensors.h"
#include "checkpoint/weights.h"
#include "mpi/mpi_communicator.h"
#include "mpi_world.h"
#include "record/run_record.h"
#include "trainer/run_data.h"
#include "trainer/step_engine.h"
#include "unit/files.h"

namespace lockstep {
namespace {

// A rank of a run on a tiny model that no world size divides evenly.
class Training {
 public:
  Training(const std::string& strategy, Precision precision,
           std::uint64_t seed = 1)
      : options_(make_options(strategy, precision)),
        comm_(make_mpi_communicator(world())),
        backend_(make_cpu_backend(1, precision)),
        batches_(noise_batches(
            batch_shape(options_, comm_->rank(), comm_->size()), 1)),
        engine_(options_, backend_, *comm_, *batches_) {
    initialise_weights(store(), sync(), seed);
  }
  StepEngine::Result step(std::int64_t number) {
    engine_.issue(number);
    return engine_.wait(number);
  }
  std::vector<UnitState> state() {
    std::vector<UnitState> gathered;
    gather_state(store(), sync(), world(), gathered);
    return gathered;
  }
  void load(const std::vector<UnitState>& from) {
    scatter_state(store(), sync(), world(), all_state,
                  [&](const Unit& unit, StatePart part, std::span<float> to) {
                    std::ranges::copy(from[unit.index][int(part)], to.begin());
                  });
  }
  Drift drift() {
    return find_drift(store(), sync(), *backend_.device, *comm_, world());
  }
  ParameterStore& store() { return engine_.store(); }
  GradientSync& sync() { return engine_.sync(); }

 private:
  static Options make_options(const std::string& strategy,
                              Precision precision) {
    Options options;
    options.model.vocab_size = 31;
    options.model.context_length = 5;
    options.model.d_model = 12;
    options.model.d_ff = 20;
    options.model.num_layers = 2;
    options.model.num_heads = 2;
    options.batch_size = 2;
    options.decay_steps = 10;
    options.sync = strategy;
    options.precision = precision;
    return options;
  }
  Options options_;
  std::unique_ptr<Communicator> comm_;
  Backend backend_;
  std::unique_ptr<Batches> batches_;
  StepEngine engine_;
};

class State : public testing::TestWithParam<std::string> {};

TEST_P(State, GoesToRankZeroAndBackToTheLastBit) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    Training first(GetParam(), precision);
    first.step(1);
    first.step(2);
    const auto state = first.state();
    Training second(GetParam(), precision, /*seed=*/2);
    second.load(state);
    EXPECT_EQ(second.state(), state);
    if (world().root()) {
      EXPECT_EQ(state.size(), first.store().units().size());
      for (const auto& part : state.front()) {
        EXPECT_TRUE(std::ranges::any_of(part, [](float x) { return x != 0; }));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, State,
                         testing::Values("naive", "sharded-optimizer", "zero1",
                                         "zero2", "fsdp"));

TEST(LocalSgdState, IsTheMeanOfTheRanks) {
  Training training("local-sgd", Precision::fp32);
  training.step(1);
  const auto state = training.state();
  const Shard& shard = training.sync().owned()[1];
  std::vector<float> mine(shard.count);
  training.sync().read(shard, StatePart::first_moment, mine);
  const double first = mine[0];
  double mean = 0;
  for (const double each : world().all_gather({&first, 1})) {
    mean += each / world().size();
  }
  if (world().root()) {
    EXPECT_NEAR(state[1][1][0], mean, 1e-6 * std::abs(mean));
  }
}

// Training, the run record and a checkpoint that is being written use HDF5 and
// the state at the same time; for the thread sanitizer, too.
TEST(CheckpointSaver, WritesBesideTrainingWhatWasThereWhenItWasCalled) {
  Training training("fsdp", Precision::fp32);
  const test::TemporaryFolder scratch;
  std::unique_ptr<CheckpointFolder> folder;
  std::unique_ptr<CheckpointSaver> saver;
  std::unique_ptr<RunRecord> record;
  if (world().root()) {
    RunFacts facts;
    facts.integers = {{"world_size", world().size()}};
    record =
        std::make_unique<RunRecord>(scratch / "run.h5", facts, world().size());
    folder = std::make_unique<CheckpointFolder>(scratch / "ck");
    saver = std::make_unique<CheckpointSaver>(*folder, 2, CheckpointFacts{},
                                              training.store());
  }
  std::vector<UnitState> last;
  for (int step = 1; step <= 6; ++step) {
    training.step(step);
    last = training.state();
    if (saver) saver->save({step, 10 * step}, last);
    if (record) record->flush();
  }
  if (!saver) return;
  EXPECT_TRUE(saver->finish());
  EXPECT_TRUE(saver->take_warnings().empty());
  const auto entries = folder->entries();
  ASSERT_EQ(entries.size(), 2u);
  verify_checkpoint(entries[0].path);
  EXPECT_EQ(read_facts(entries[0].path).position.step, 6);
  const auto weights =
      hdf5::File(entries[0].path, hdf5::Access::read).group("weights");
  for (const Unit& unit : training.store().units()) {
    std::vector<float> values(unit.elements);
    read_tensors(weights, unit, values);
    EXPECT_EQ(values, last[unit.index][0]);
  }
}

TEST(Replicas, ThatAgreeDoNotDrift) {
  for (const char* strategy : {"naive", "flat", "bucketed", "zero1", "fsdp"}) {
    Training training(strategy, Precision::fp32);
    for (int step = 1; step <= 3; ++step) training.step(step);
    EXPECT_TRUE(training.drift().ranks.empty()) << strategy;
  }
}

TEST(Replicas, ARankWithOneOtherBitIsFoundAndRepaired) {
  if (world().size() < 2) GTEST_SKIP() << "takes several ranks";
  const int wrong = world().size() - 1;
  for (const char* strategy : {"naive", "zero1"}) {
    Training training(strategy, Precision::fp32);
    training.step(1);
    training.sync().acquire(training.store().block(1), Pass::forward);
    if (world().rank() == wrong) {
      auto* bits = reinterpret_cast<std::uint32_t*>(
          training.store().block(1).parameters.as<float>());
      bits[5] ^= 1;
    }
    const Drift drift = training.drift();
    EXPECT_EQ(drift.ranks, std::vector<int>{wrong}) << strategy;
    EXPECT_EQ(drift.unit, "layers.1");
    const auto before = training.state();
    repair_replicas(training.store(), training.sync(), world());
    EXPECT_TRUE(training.drift().ranks.empty()) << strategy;
    EXPECT_EQ(training.state(), before) << strategy;
  }
}

TEST(Replicas, MomentsAreComparedWhereAllHoldThem) {
  if (world().size() < 2) GTEST_SKIP() << "takes several ranks";
  Training training("naive", Precision::bf16);
  training.step(1);
  if (world().rank() == 1) {
    training.sync().owned()[0].second_moment.as<float>()[0] += 1;
  }
  const Drift drift = training.drift();
  EXPECT_EQ(drift.unit, "token_embeddings");
  EXPECT_EQ(drift.ranks, std::vector<int>{1});
  repair_replicas(training.store(), training.sync(), world());
  EXPECT_TRUE(training.drift().ranks.empty());
}

}  // namespace
}  // namespace lockstep
