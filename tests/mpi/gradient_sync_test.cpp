#include "sync/gradient_sync.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "checkpoint/weights.h"
#include "model/transformer.h"
#include "mpi/mpi_communicator.h"
#include "mpi_world.h"
#include "sync/replica.h"

namespace lockstep {
namespace {

constexpr std::int64_t batch = 2;  // sequences per rank
ModelConfig tiny() {
  ModelConfig config;
  config.vocab_size = 31;
  config.context_length = 5;
  config.d_model = 12;
  config.d_ff = 20;
  config.num_layers = 2;
  config.num_heads = 2;
  return config;
}

// A model under some strategy, and what one pass over tokens leaves in it.
class Replicated {
 public:
  Replicated(Communicator& comm, std::int64_t sequences,
             std::string_view strategy)
      : store_(tiny(), comm.size()),
        context_{store_, *backend_.device, *backend_.ops, comm, Dtype::f32},
        sync_(strategy.empty() ? std::make_unique<Replica>(context_)
                               : make_gradient_sync(strategy, context_)),
        model_(tiny(), Dtype::f32, backend_, store_, *sync_, sequences, true),
        memory_(backend_.device->allocate(Dtype::f64, {1}, Category::workspace,
                                          "loss")) {}

  void initialise(std::uint64_t seed) {
    initialise_weights(store_, *sync_, seed);
  }
  GradientSync& sync() { return *sync_; }

  // Tokens [first, first + n) of a fixed sequence, in micro_steps passes.
  double pass(std::int64_t first, std::int64_t n, int micro_steps = 1) {
    const Tensor loss = memory_.tensor(Dtype::f64, {1});
    backend_.device->zero(loss);
    sync_->begin_step();
    for (int m = 0; m < micro_steps; ++m) {
      sync_->begin_micro_step(m, micro_steps);
      std::vector<std::int32_t> inputs, targets;
      for (std::int64_t i = first + m * n; i < first + (m + 1) * n; ++i) {
        inputs.push_back(token(i));
        targets.push_back(token(i + 1));
      }
      const Tensor in{inputs.data(), Dtype::i32, {n}};
      model_.forward(in);
      model_.loss({targets.data(), Dtype::i32, {n}}, loss, 1.0 / micro_steps,
                  Transformer::Gradient::yes);
      model_.backward(in);
    }
    sync_->finish();
    return *loss.as<double>();
  }

  std::vector<float> gradients() { return collect(&Shard::gradients); }
  std::vector<float> weights() { return collect(&Shard::master); }

 private:
  static std::int32_t token(std::int64_t i) {
    return static_cast<std::int32_t>((i * i + 3 * i) % 31);
  }
  // Without the padding, which depends on the number of ranks.
  std::vector<float> collect(Tensor Shard::*member) {
    std::vector<float> all;
    for (const Shard& shard : sync_->owned()) {
      const float* values = (shard.*member).as<float>();
      for (const Parameter& parameter : shard.unit->members) {
        all.insert(all.end(), values + parameter.offset,
                   values + parameter.offset + parameter.elements());
      }
    }
    return all;
  }

  Backend backend_ = make_cpu_backend(1, Precision::fp32);
  ParameterStore store_;
  SyncContext context_;
  std::unique_ptr<GradientSync> sync_;
  Transformer model_;
  Buffer memory_;
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

class GradientSyncTest : public testing::Test {
 protected:
  std::unique_ptr<Communicator> comm_ = make_mpi_communicator(world());
  std::int64_t t_ = tiny().context_length;
};

TEST_F(GradientSyncTest, NaiveEqualsOneRankOnTheWholeBatch) {
  const int w = world().size();
  Replicated naive(*comm_, batch, "naive");
  naive.initialise(1);
  const double mine = naive.pass(world().rank() * batch * t_, batch * t_);
  double mean = 0;
  for (const double loss : world().all_gather({&mine, 1})) mean += loss / w;

  Replicated whole(*comm_, batch * w, "");
  whole.initialise(1);
  const double expected = whole.pass(0, w * batch * t_);
  EXPECT_NEAR(mean, expected, 1e-6 * expected);
  EXPECT_LT(relative_error(naive.gradients(), whole.gradients()), 1e-6);
}

TEST_F(GradientSyncTest, NaiveSumsMicroStepsBeforeItAverages) {
  const int w = world().size();
  Replicated naive(*comm_, batch, "naive");
  naive.initialise(1);
  naive.pass(world().rank() * 3 * batch * t_, batch * t_, 3);

  Replicated whole(*comm_, 3 * batch * w, "");
  whole.initialise(1);
  whole.pass(0, 3 * w * batch * t_);
  EXPECT_LT(relative_error(naive.gradients(), whole.gradients()), 1e-6);
}

TEST_F(GradientSyncTest, NaiveMakesRankZerosWeightsEveryones) {
  Replicated naive(*comm_, batch, "naive");
  naive.initialise(100 + world().rank());
  Replicated root(*comm_, batch, "");
  root.initialise(100);
  EXPECT_EQ(naive.weights(), root.weights());
}

TEST_F(GradientSyncTest, NaiveSendsOneAllReducePerParameter) {
  Replicated naive(*comm_, batch, "naive");
  naive.initialise(1);
  comm_->begin_step(1);
  naive.pass(0, batch * t_);
  const CommFigures figures = comm_->figures_of(1);
  EXPECT_EQ(figures.total().calls, 9 * tiny().num_layers + 3);
  EXPECT_EQ(figures.total().bytes, 2 * 4 * tiny().parameters());
}

TEST_F(GradientSyncTest, NoneIsRefusedOnSeveralRanks) {
  Backend backend = make_cpu_backend(1, Precision::fp32);
  ParameterStore store(tiny(), world().size());
  const SyncContext context{store, *backend.device, *backend.ops, *comm_,
                            Dtype::f32};
  if (world().size() == 1) {
    EXPECT_NE(make_gradient_sync("none", context), nullptr);
  } else {
    EXPECT_THROW(make_gradient_sync("none", context), Error);
  }
  EXPECT_THROW(make_gradient_sync("navie", context), Error);
}

}  // namespace
}  // namespace lockstep
