#include "trainer/step_engine.h"
#include "trainer/run_data.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "checkpoint/weights.h"
#include "mpi/dry_communicator.h"
#include "ops/ops.h"

namespace lockstep {
namespace {

Options tiny(GraphUse graph, std::int64_t accumulation) {
  Options options;
  options.model.vocab_size = 37;
  options.model.context_length = 24;
  options.model.d_model = 64;
  options.model.d_ff = 96;
  options.model.num_layers = 2;
  options.model.num_heads = 2;
  options.batch_size = 3;
  options.grad_accumulation = accumulation;
  options.lr = 1e-2;
  options.min_lr = 1e-3;
  options.warmup_steps = 4;
  options.decay_steps = 12;
  options.precision = Precision::bf16;
  options.sync = "none";
  options.graph = graph;
  return options;
}

struct Outcome {
  std::vector<StepEngine::Result> steps;
  std::vector<float> weights;
};

// A run as the trainer's, one step ahead. In its middle a buffer comes, as
// validation may bring one.
Outcome run(const Options& options, Backend backend) {
  constexpr int steps = 12;
  DryCommunicator comm(0, 1);
  const auto batches = noise_batches(batch_shape(options, 0, 1), options.seed);
  StepEngine engine(options, backend, comm, *batches);
  initialise_weights(engine.store(), engine.sync(), options.seed);
  Outcome result;
  Buffer late;
  for (int step = 1; step <= steps; ++step) {
    engine.issue(step);
    if (step > 1) result.steps.push_back(engine.wait(step - 1));
    if (step == steps - 3) {
      late = backend.device->allocate(256, Category::workspace, "late");
    }
  }
  result.steps.push_back(engine.wait(steps));
  std::vector<float> values;
  for (const Unit& unit : engine.store().units()) {
    values.resize(unit.elements);
    engine.sync().save(unit, values);
    result.weights.insert(result.weights.end(), values.begin(), values.end());
  }
  return result;
}

TEST(StepEngineGraphs, OnCudaGiveTheSameStepsBitByBit) {
  if (cuda_devices().empty()) GTEST_SKIP() << "there is no GPU here";
  for (const auto& [accumulation, gradients] :
       {std::pair{1, Dtype::f32}, {3, Dtype::f32}, {3, Dtype::bf16}}) {
    const auto with = [&](GraphUse graph) {
      Options options = tiny(graph, accumulation);
      options.grad_dtype = options.reduce_dtype = gradients;
      return run(options, make_cuda_backend(0, Precision::bf16));
    };
    const Outcome one_by_one = with(GraphUse::off), graphs = with(GraphUse::on);
    ASSERT_EQ(graphs.steps.size(), one_by_one.steps.size());
    for (std::size_t i = 0; i < graphs.steps.size(); ++i) {
      EXPECT_EQ(graphs.steps[i].loss, one_by_one.steps[i].loss) << i;
      EXPECT_EQ(graphs.steps[i].gradient_norm,
                one_by_one.steps[i].gradient_norm)
          << i;
    }
    EXPECT_EQ(graphs.weights, one_by_one.weights);
  }
}

TEST(StepEngineGraphs, OnCudaArePhaseByPhaseInTheTimings) {
  if (cuda_devices().empty()) GTEST_SKIP() << "there is no GPU here";
  const Outcome graphs =
      run(tiny(GraphUse::on, 2), make_cuda_backend(0, Precision::bf16));
  for (const StepEngine::Result& step : graphs.steps) {
    const auto& ms = step.figures.phase_ms;
    for (const Phase phase :
         {Phase::forward, Phase::loss, Phase::backward, Phase::optimizer}) {
      EXPECT_GT(ms[int(phase)], 0) << phase_names[int(phase)];
    }
    const double whole = ms[int(Phase::step)];
    EXPECT_NEAR(std::accumulate(ms.begin(), ms.end(), -whole), whole,
                1e-3 * whole);
  }
}

TEST(StepEngineGraphs, SayWhereTheyAreOfNoUse) {
  const Options options = tiny(GraphUse::on, 1);
  EXPECT_EQ(obstacle_to_graphs(options, Device::Kind::cuda, 1), "");
  EXPECT_NE(obstacle_to_graphs(options, Device::Kind::cpu, 1), "");
  EXPECT_NE(obstacle_to_graphs(options, Device::Kind::cuda, 2), "");
  Options stopwatch = options;
  stopwatch.timing = Timing::sync;
  EXPECT_NE(obstacle_to_graphs(stopwatch, Device::Kind::cuda, 1), "");
}

}  // namespace
}  // namespace lockstep
