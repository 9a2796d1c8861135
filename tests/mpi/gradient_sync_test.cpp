#include "sync/gradient_sync.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "checkpoint/weights.h"
#include "mpi/dry_communicator.h"
#include "mpi/mpi_communicator.h"
#include "mpi_world.h"
#include "trainer/dry_run.h"
#include "trainer/run_data.h"
#include "trainer/step_engine.h"

namespace lockstep {
namespace {

constexpr std::int64_t sequences = 2;  // per rank and micro-step

// A model whose layers, parameters and batch no world size divides evenly.
Options tiny(std::string strategy) {
  Options options;
  options.model.vocab_size = 31;
  options.model.context_length = 5;
  options.model.d_model = 12;
  options.model.d_ff = 20;
  options.model.num_layers = 3;
  options.model.num_heads = 2;
  options.batch_size = sequences;
  options.lr = 1e-2;
  // Near the gradients' size: no update is all rounding, and one that is too
  // large by a factor shows.
  options.adam_eps = 1e-3;
  options.min_lr = 1e-3;
  options.decay_steps = 10;
  options.sync = std::move(strategy);
  options.world_size = world().size();
  return options;
}

// With weights and gradients in bf16, and gradients sent as `wire`.
Options with_bf16_gradients(Options options, Dtype wire = Dtype::bf16) {
  options.precision = Precision::bf16;
  options.grad_dtype = Dtype::bf16;
  options.reduce_dtype = wire;
  return options;
}

// A rank of a run under some strategy, on one CPU thread.
class Rank {
 public:
  Rank(Options options, Communicator& comm, std::uint64_t seed = 1)
      : options_(std::move(options)),
        backend_(make_cpu_backend(1, options_.precision)),
        batches_(noise_batches(batch_shape(options_, comm.rank(), comm.size()),
                               options_.seed)),
        engine_(options_, backend_, comm, *batches_) {
    initialise_weights(engine_.store(), engine_.sync(), seed);
  }
  StepEngine::Result step(std::int64_t number) {
    engine_.issue(number);
    return engine_.wait(number);
  }
  // Steps 1 to `steps` as the trainer runs them: the next is issued before the
  // last is waited for.
  void run(std::int64_t steps) {
    for (std::int64_t number = 1; number <= steps; ++number) {
      engine_.issue(number);
      if (number > 1) engine_.wait(number - 1);
    }
    engine_.wait(steps);
  }
  // All weights in state-dict order, without padding.
  std::vector<float> weights() {
    std::vector<float> all, values;
    for (const Unit& unit : engine_.store().units()) {
      values.resize(unit.elements);
      engine_.sync().save(unit, values);
      for (const Parameter& parameter : unit.members) {
        const auto begin = values.begin() + parameter.offset;
        all.insert(all.end(), begin, begin + parameter.elements());
      }
    }
    return all;
  }
  StepEngine& engine() { return engine_; }
  MemoryFigures memory() { return backend_.device->ledger().figures(); }

 private:
  Options options_;
  Backend backend_;
  std::unique_ptr<Batches> batches_;
  StepEngine engine_;
};

double relative_error(const std::vector<float>& a,
                      const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double(a[i]) - b[i], 2);
    norm += std::pow(double(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

double mean_over_ranks(double mine) {
  double mean = 0;
  for (const double each : world().all_gather({&mine, 1})) {
    mean += each / world().size();
  }
  return mean;
}

bool same_on_all_ranks(const std::vector<float>& values) {
  const std::string mine(reinterpret_cast<const char*>(values.data()),
                         values.size() * sizeof(float));
  const auto all = world().all_gather(mine);
  return std::set<std::string>(all.begin(), all.end()).size() == 1;
}

const std::vector<std::string> equivalent = {
    "naive", "flat",  "overlap", "bucketed", "sharded-optimizer",
    "zero1", "zero2", "fsdp"};

class Strategy : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Communicator> comm_ = make_mpi_communicator(world());

  // Steps of the strategy on all ranks beside the same steps of one rank that
  // has the whole batch.
  void expect_equals_one_rank(Options options, int steps = 4) {
    Rank mine(options, *comm_);
    options.batch_size *= world().size() * options.grad_accumulation;
    options.grad_accumulation = 1;
    options.sync = "none";
    DryCommunicator alone(0, 1);
    Rank whole(options, alone);
    for (int step = 1; step <= steps; ++step) {
      const auto got = mine.step(step);
      const auto expected = whole.step(step);
      EXPECT_NEAR(mean_over_ranks(got.loss) / expected.loss, 1, 1e-6)
          << "step " << step;
      EXPECT_NEAR(got.gradient_norm / expected.gradient_norm, 1, 1e-6)
          << "step " << step;
      const auto weights = mine.weights();
      EXPECT_LT(relative_error(weights, whole.weights()), 1e-6)
          << "step " << step;
      EXPECT_TRUE(same_on_all_ranks(weights)) << "step " << step;
    }
  }
};

TEST_P(Strategy, EqualsOneRankOnTheWholeBatch) {
  Options options = tiny(GetParam());
  options.clip = 0;
  expect_equals_one_rank(options);
}

TEST_P(Strategy, EqualsOneRankWithMicroSteps) {
  Options options = tiny(GetParam());
  options.clip = 0;
  options.grad_accumulation = 3;
  expect_equals_one_rank(options);
}

TEST_P(Strategy, ClipsByTheGlobalNorm) {
  Options options = tiny(GetParam());
  options.clip = 0.05;
  expect_equals_one_rank(options);
  options.grad_accumulation = 3;
  expect_equals_one_rank(options);
}

TEST_P(Strategy, EqualsOneRankWithRecomputation) {
  Options options = tiny(GetParam());
  options.recompute = {RecomputeLevel::block, 2};
  expect_equals_one_rank(options);
}

TEST_P(Strategy, UpdatesAsUnshardedAdamwOverTenSteps) {
  Options options = tiny(GetParam());
  options.decay_norms = false;
  expect_equals_one_rank(options, 10);
}

TEST_P(Strategy, StartsFromRankZerosWeights) {
  Rank mine(tiny(GetParam()), *comm_, 100 + world().rank());
  DryCommunicator alone(0, 1);
  Rank first(tiny("none"), alone, 100);
  EXPECT_EQ(mine.weights(), first.weights());
}

TEST_P(Strategy, KeepsGradientsOfWhatItOwnsInTheDtypeAskedFor) {
  Options options = tiny(GetParam());
  options.precision = Precision::bf16;
  Rank with_fp32(options, *comm_);
  for (const Shard& shard : with_fp32.engine().sync().owned()) {
    EXPECT_EQ(shard.gradients.dtype, Dtype::f32);
  }
  options = with_bf16_gradients(options);
  Rank mine(options, *comm_);
  mine.step(1);
  std::int64_t elements = 0;
  for (const Shard& shard : mine.engine().sync().owned()) {
    EXPECT_EQ(shard.gradients.dtype, Dtype::bf16);
    EXPECT_EQ(shard.remainder.dtype, Dtype::i16);
    EXPECT_EQ(shard.gradients.elements(), shard.count);
    elements += shard.count;
  }
  double owned = 0;
  const auto mine_count = static_cast<double>(elements);
  for (const double each : world().all_gather({&mine_count, 1})) owned += each;
  const double parameters = double(options.model.parameters());
  if (mine.engine().sync().sharded()) {
    EXPECT_GE(owned, parameters);
    EXPECT_LT(owned, 1.2 * parameters);  // padding
  } else {
    EXPECT_GE(owned, world().size() * parameters);
  }
}

TEST_P(Strategy, Bf16TracksOneRankInBf16) {
  Options options = tiny(GetParam());
  options.precision = Precision::bf16;
  Rank mine(options, *comm_);
  options.batch_size *= world().size();
  options.sync = "none";
  DryCommunicator alone(0, 1);
  Rank whole(options, alone);
  for (int step = 1; step <= 5; ++step) {
    const double loss = mean_over_ranks(mine.step(step).loss);
    EXPECT_NEAR(loss / whole.step(step).loss, 1, 1e-2);
  }
}

// Gradients of parts of a batch are rounded before they are averaged, those of
// the whole batch after; both once, as what is on the wire.
TEST_P(Strategy, WithBf16GradientsTracksOneRank) {
  for (const Dtype wire : {Dtype::bf16, Dtype::f32}) {
    for (const std::int64_t accumulation : {1, 3}) {
      Options options = with_bf16_gradients(tiny(GetParam()), wire);
      options.grad_accumulation = accumulation;
      Rank mine(options, *comm_);
      options.batch_size *= world().size() * accumulation;
      options.grad_accumulation = 1;
      options.sync = "none";
      DryCommunicator alone(0, 1);
      Rank whole(options, alone);
      for (int step = 1; step <= 5; ++step) {
        const auto got = mine.step(step);
        const auto expected = whole.step(step);
        EXPECT_NEAR(mean_over_ranks(got.loss) / expected.loss, 1, 1e-2);
        EXPECT_NEAR(got.gradient_norm / expected.gradient_norm, 1, 1e-2);
        const auto weights = mine.weights();
        EXPECT_LT(relative_error(weights, whole.weights()), 1e-2);
        EXPECT_TRUE(same_on_all_ranks(weights)) << "step " << step;
      }
    }
  }
}

TEST_P(Strategy, SendsAndKeepsHalfTheBytesOfGradientsInBf16) {
  Options options = tiny(GetParam());
  options.precision = Precision::bf16;
  const RankPlan full = plan_rank(options, world().rank());
  const RankPlan half = plan_rank(with_bf16_gradients(options), world().rank());
  const auto held = [](const RankPlan& plan, Category category) {
    return plan.memory.bytes[static_cast<int>(category)];
  };
  EXPECT_EQ(2 * held(half, Category::gradients),
            held(full, Category::gradients));
  EXPECT_EQ(2 * held(half, Category::communication),
            held(full, Category::communication));
  // Sent elements are as many; parameters are in bf16 in both, and the norm of
  // sharded gradients is all-reduced in fp64.
  const auto bytes = [](const RankPlan& plan) {
    const CommFigures& comm = plan.comm;
    return comm.traffic[static_cast<int>(Collective::all_reduce)].bytes +
           comm.traffic[static_cast<int>(Collective::reduce_scatter)].bytes;
  };
  Rank mine(options, *comm_);
  const std::int64_t norm = mine.engine().sync().sharded() ? 16 : 0;
  EXPECT_EQ(2 * (bytes(half) - norm), bytes(full) - norm);
}

TEST_P(Strategy, SendsGradientsInBf16WhereAsked) {
  Options options = tiny(GetParam());
  Rank full(options, *comm_);
  options.reduce_dtype = Dtype::bf16;
  Rank half(options, *comm_);
  for (int step = 1; step <= 3; ++step) {
    const auto of_full = full.step(step);
    const auto of_half = half.step(step);
    EXPECT_NEAR(of_half.gradient_norm / of_full.gradient_norm, 1, 1e-2);
    EXPECT_LT(of_half.figures.comm_bytes, of_full.figures.comm_bytes);
  }
  EXPECT_NE(half.weights(), full.weights());
  EXPECT_LT(relative_error(half.weights(), full.weights()), 1e-2);
}

TEST_P(Strategy, HoldsAndSendsWhatTheDryRunSays) {
  Options in_bf16 = tiny(GetParam());
  in_bf16.precision = Precision::bf16;
  for (Options options :
       {tiny(GetParam()), in_bf16, with_bf16_gradients(in_bf16),
        with_bf16_gradients(in_bf16, Dtype::f32)}) {
    for (const std::int64_t accumulation : {1, 3}) {
      options.grad_accumulation = accumulation;
      const RankPlan plan = plan_rank(options, world().rank());
      Rank mine(options, *comm_);
      mine.step(1);
      const auto real = mine.step(2);
      for (int i = 0; i < category_count; ++i) {
        if (i == static_cast<int>(Category::workspace)) continue;
        EXPECT_EQ(mine.memory().bytes[i], plan.memory.bytes[i])
            << category_names[i];
      }
      EXPECT_EQ(real.figures.comm_calls, plan.comm.total().calls);
      EXPECT_EQ(real.figures.comm_bytes, plan.comm.total().bytes);
    }
  }
}

TEST_P(Strategy, AllocatesNothingAfterTheFirstStep) {
  for (const Options& options :
       {tiny(GetParam()), with_bf16_gradients(tiny(GetParam()))}) {
    Rank mine(options, *comm_);
    mine.step(1);
    const MemoryFigures first = mine.memory();
    for (int step = 2; step <= 4; ++step) mine.step(step);
    EXPECT_EQ(mine.memory().total, first.total);
    EXPECT_EQ(mine.memory().peak, first.peak);
  }
}

// Communication that comes late, at any moment, changes nothing: every wait
// that is needed is there.
TEST_P(Strategy, GivesTheSameBitsUnderRandomDelays) {
  constexpr int repeats = 200;
  constexpr int steps = 3;
  Options options = tiny(GetParam());
  options.bucket_mb = 0.0016;
  options.grad_accumulation = 2;
  const auto train = [&](Communicator& comm) {
    Rank rank(options, comm);
    rank.run(steps);
    return rank.weights();
  };
  const std::vector<float> undisturbed = train(*comm_);
  std::mt19937 random(static_cast<unsigned>(world().rank()));
  const auto delayed = make_mpi_communicator(
      world(),
      {.chunk = 1 << 20, .before_each = [&] {
         std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
       }});
  for (int i = 0; i < repeats; ++i) {
    ASSERT_EQ(train(*delayed), undisturbed) << "repeat " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(On, Strategy, testing::ValuesIn(equivalent),
                         [](const auto& at) {
                           std::string name = at.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class GradientSyncTest : public testing::Test {
 protected:
  std::unique_ptr<Communicator> comm_ = make_mpi_communicator(world());
  CommFigures traffic_of(const Options& options) {
    DryCommunicator comm(0, options.world_size);
    return plan_rank(options, 0).comm;
  }
  static Traffic of(const CommFigures& figures, Collective collective) {
    return figures.traffic[static_cast<int>(collective)];
  }
};

TEST_F(GradientSyncTest, NaiveSendsOneAllReducePerParameter) {
  const Options options = tiny("naive");
  const Traffic sent = of(traffic_of(options), Collective::all_reduce);
  EXPECT_EQ(sent.calls, 9 * 3 + 3);
  EXPECT_EQ(sent.elements, 2 * options.model.parameters());
}

TEST_F(GradientSyncTest, FlatSendsOneAllReduce) {
  EXPECT_EQ(of(traffic_of(tiny("flat")), Collective::all_reduce).calls, 1);
}

TEST_F(GradientSyncTest, BucketSizesAllGiveTheSameGradients) {
  Options options = tiny("flat");
  Rank flat(options, *comm_);
  flat.step(1);
  options.sync = "bucketed";
  std::int64_t most_calls = 0;
  for (const double bucket_mb : {0.0001, 0.0016, 0.01, 25.0, 100000.0}) {
    options.bucket_mb = bucket_mb;
    Rank bucketed(options, *comm_);
    const auto calls = bucketed.step(1).figures.comm_calls;
    if (most_calls > 0) {
      EXPECT_LE(calls, most_calls);
    } else {
      EXPECT_EQ(calls, 9 * 3 + 3);  // every parameter is a bucket
    }
    most_calls = calls;
    EXPECT_LT(relative_error(bucketed.weights(), flat.weights()), 1e-6);
  }
  EXPECT_EQ(most_calls, 1);
}

TEST_F(GradientSyncTest, CommunicatesGradientsOnTheLastMicroStepAlone) {
  for (const std::string strategy :
       {"naive", "flat", "overlap", "bucketed", "sharded-optimizer", "zero1"}) {
    Options options = tiny(strategy);
    const auto once = traffic_of(options).total();
    options.grad_accumulation = 3;
    EXPECT_EQ(traffic_of(options).total().calls, once.calls) << strategy;
  }
  for (const std::string strategy : {"zero2", "fsdp"}) {
    Options options = tiny(strategy);
    const auto once = of(traffic_of(options), Collective::reduce_scatter);
    options.grad_accumulation = 3;
    EXPECT_EQ(of(traffic_of(options), Collective::reduce_scatter).calls,
              3 * once.calls)
        << strategy;
  }
}

TEST_F(GradientSyncTest, ShardingSavesWhatItPromises) {
  Options options = tiny("bucketed");
  options.model.num_layers = 16;
  for (const int ranks : {2, 4}) {
    options.world_size = ranks;
    const auto held = [&](const char* strategy) {
      options.sync = strategy;
      const MemoryFigures memory = plan_rank(options, 0).memory;
      return std::array<double, 3>{double(memory.bytes[0]),
                                   double(memory.bytes[1]),
                                   double(memory.bytes[2])};
    };
    constexpr int parameters = 0, gradients = 1, optimizer = 2;
    const auto ddp = held("bucketed");
    const auto zero1 = held("zero1");
    EXPECT_EQ(zero1[parameters], ddp[parameters]);
    EXPECT_EQ(zero1[gradients], ddp[gradients]);
    EXPECT_NEAR(zero1[optimizer] / ddp[optimizer], 1.0 / ranks, 0.02);
    const auto zero2 = held("zero2");
    EXPECT_EQ(zero2[parameters], ddp[parameters]);
    EXPECT_NEAR(zero2[optimizer] / ddp[optimizer], 1.0 / ranks, 0.02);
    const auto fsdp = held("fsdp");
    // Two buffers of the largest unit each, of about 18.
    const double ring = 2.0 / 16;
    EXPECT_LT(zero2[gradients], (1.0 / ranks + ring) * ddp[gradients]);
    EXPECT_LT(fsdp[parameters] + fsdp[gradients] + fsdp[optimizer],
              (1.0 / ranks + ring) *
                  (ddp[parameters] + ddp[gradients] + ddp[optimizer]));
    // Moments of whole parameters, shared out greedily.
    EXPECT_NEAR(held("sharded-optimizer")[optimizer] / ddp[optimizer],
                1.0 / ranks, 0.1);
  }
}

TEST_F(GradientSyncTest, FsdpFreesGatheredParametersAfterUse) {
  Rank mine(tiny("fsdp"), *comm_);
  mine.step(1);
  for (const Unit& unit : mine.engine().store().units()) {
    EXPECT_FALSE(unit.parameters) << unit.name;
    EXPECT_FALSE(unit.gradients) << unit.name;
  }
}

TEST_F(GradientSyncTest, FsdpComputesTheSameWithAnyPrefetch) {
  Options options = tiny("fsdp");
  std::vector<float> first;
  for (const std::int64_t blocks : {1, 2, 3}) {
    for (const int prefetch : {0, 1, 2, 9}) {
      options.fsdp_prefetch = prefetch;
      Rank mine(options, *comm_);
      mine.step(1);
      mine.step(2);
      if (first.empty()) first = mine.weights();
      EXPECT_EQ(mine.weights(), first) << prefetch << " " << blocks;
    }
    options.recompute = {RecomputeLevel::block, blocks};
  }
}

TEST_F(GradientSyncTest, ForwardModeHoldsNeitherGradientsNorMoments) {
  for (const std::string& strategy : equivalent) {
    Options options = tiny(strategy);
    options.mode = Mode::forward;
    Rank mine(options, *comm_);
    mine.step(1);
    EXPECT_EQ(mine.memory().bytes[static_cast<int>(Category::gradients)], 0);
    EXPECT_LE(mine.memory().bytes[static_cast<int>(Category::optimizer)], 64);
  }
}

TEST_F(GradientSyncTest, LocalSgdAveragesEveryFewSteps) {
  Options options = tiny("local-sgd");
  options.local_steps = 3;
  Rank mine(options, *comm_);
  for (int step = 1; step <= 6; ++step) {
    mine.step(step);
    const bool same = same_on_all_ranks(mine.weights());
    EXPECT_EQ(same, world().size() == 1 || step % 3 == 0) << "step " << step;
  }
}

TEST_F(GradientSyncTest, LocalSgdOfOneStepIsTheAverageOfTheRanks) {
  for (Options options :
       {tiny("local-sgd"), with_bf16_gradients(tiny("local-sgd"))}) {
    options.local_steps = 1;
    Rank averaged(options, *comm_);
    averaged.step(1);
    options.local_steps = 2;
    Rank alone(options, *comm_);
    alone.step(1);
    std::vector<float> expected = alone.weights();
    for (float& value : expected) {
      value = static_cast<float>(mean_over_ranks(value));
    }
    EXPECT_LT(relative_error(averaged.weights(), expected), 1e-6);
  }
}

TEST_F(GradientSyncTest, NoneIsRefusedOnSeveralRanks) {
  if (world().size() == 1) {
    EXPECT_NO_THROW(Rank(tiny("none"), *comm_));
  } else {
    EXPECT_THROW(Rank(tiny("none"), *comm_), Error);
  }
  EXPECT_THROW(Rank(tiny("navie"), *comm_), Error);
}

}  // namespace
}  // namespace lockstep
