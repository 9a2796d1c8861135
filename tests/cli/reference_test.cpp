#include <fmt/format.h>

#include "core/hdf5.h"
#include "train_runner.h"

namespace lockstep {
namespace {

struct Case {
  const char* name;
  int ranks;
};

void PrintTo(const Case& at, std::ostream* out) {
  *out << at.name << " on " << at.ranks;
}

class Reference : public TrainTest, public testing::WithParamInterface<Case> {};

// The stored float64 runs, through the command line.
TEST_P(Reference, TrainingReachesTheStoredLossesNormsAndWeights) {
  const auto [name, ranks] = GetParam();
  const hdf5::File file(LOCKSTEP_REFERENCE, hdf5::Access::read);
  const std::string base = fmt::format("training/{}", name);
  const hdf5::Group group = file.group(base);
  const auto number = [&](const char* key) {
    return group.attribute<double>(key);
  };
  const std::string options = fmt::format(
      "--init {0}:/{1}/initial --data {0}:/{1}/tokens --sampler sequential "
      "--vocab-size {2} --context-length {3} --d-model {4} --d-ff {5} "
      "--num-layers {6} --num-heads {7} --rope-theta {8} --steps {9} "
      "--batch-size {10} --lr {11} --min-lr {12} --warmup-steps {13} "
      "--decay-steps {14} --weight-decay {15} --beta1 {16} --beta2 {17} "
      "--adam-eps {18} --clip {19} --device cpu --precision fp32 "
      "--output run.h5 --save-weights final.h5",
      LOCKSTEP_REFERENCE, base, number("vocab_size"), number("context_length"),
      number("d_model"), number("d_ff"), number("num_layers"),
      number("num_heads"), number("rope_theta"), number("steps"),
      number("global_batch") / ranks, number("lr_max"), number("lr_min"),
      number("warmup_steps"), number("cosine_steps"), number("weight_decay"),
      number("beta1"), number("beta2"), number("adam_eps"), number("clip"));
  const Finished run = train(ranks, options);
  ASSERT_EQ(run.exit_code, 0) << run.err;

  const std::string record = path("run.h5");
  EXPECT_LE(worst_ratio(column(record, "steps/loss"),
                        group.dataset("loss").read<double>()),
            1e-5);
  EXPECT_LE(worst_ratio(column(record, "steps/gradient_norm"),
                        group.dataset("grad_norm").read<double>()),
            2e-5);
  EXPECT_LE(worst_ratio(column(record, "steps/learning_rate"),
                        group.dataset("lr").read<double>()),
            1e-12);
  for (const hdf5::Child& child : group.group("final").children()) {
    EXPECT_LE(
        relative_error(tensor(path("final.h5"), child.name),
                       group.dataset("final/" + child.name).read<float>()),
        1e-3)
        << child.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    OnCpus, Reference,
    testing::Values(Case{"test", 1}, Case{"test", 2}, Case{"test", 4},
                    Case{"odd", 1}, Case{"odd", 2}, Case{"odd", 4},
                    Case{"head80", 1}, Case{"head80", 2}, Case{"head80", 4}),
    [](const auto& at) {
      return fmt::format("{}_{}_ranks", at.param.name, at.param.ranks);
    });

}  // namespace
}  // namespace lockstep
