#include "unit/backends.h"
#include "unit/exact.h"
#include "unit/reference.h"

namespace lockstep::test {
namespace {

class CrossEntropy : public BackendTest {
 protected:
  struct Result {
    Floats losses, gradient;  // gradient [rows, stride]
  };
  // Both passes on logits [rows, vocabulary] in rows of `stride`, whose
  // padding holds something that must not count.
  Result run(const Floats& logits, const std::vector<std::int32_t>& targets,
             std::int64_t vocabulary, std::int64_t stride, float scale) {
    const std::int64_t rows = std::ssize(targets);
    Floats padded(rows * stride, 1e4f);
    for (std::int64_t n = 0; n < rows; ++n) {
      std::copy_n(&logits[n * vocabulary], vocabulary, &padded[n * stride]);
    }
    const Tensor at = activations(padded, {rows, stride});
    const Tensor losses = zeros(Dtype::f32, {rows});
    ops().cross_entropy(losses, at, ids(targets), vocabulary);
    const Floats forward = get(losses);
    EXPECT_EQ(get(at), rounded(padded)) << "the forward pass wrote logits";
    ops().cross_entropy_backward(losses, at, ids(targets), vocabulary, scale);
    EXPECT_EQ(get(losses), forward);
    return {forward, get(at)};
  }
  void expect_reference(const std::string& group) {
    const auto shape = reference_shape(group + "logits");
    const std::int64_t rows = shape[0], vocabulary = shape[1];
    const Floats logits = rounded(reference(group + "logits"));
    const auto targets = reference<std::int32_t>(group + "targets");
    const Result got =
        run(logits, targets, vocabulary, vocabulary, 1.0f / float(rows));
    double mean = 0;
    for (const float loss : got.losses) mean += loss / double(rows);
    Doubles gradient = reference<double>(group + "dlogits");
    double wanted = reference<double>(group + "loss")[0];
    if (dtype() == Dtype::bf16) {
      // Extreme logits differ by whole units once they are rounded.
      const Doubles at(logits.begin(), logits.end());
      wanted = 0;
      for (const double loss : exact::cross_entropy(at, targets)) {
        wanted += loss / double(rows);
      }
      gradient = softmax_gradient(at, targets);
    }
    EXPECT_NEAR(mean, wanted, wanted * loss_tolerance());
    EXPECT_LE(relative_error(got.gradient, gradient), tolerance());
  }
  // (softmax − one-hot) / rows
  static Doubles softmax_gradient(const Doubles& logits,
                                  const std::vector<std::int32_t>& targets) {
    const std::size_t vocabulary = logits.size() / targets.size();
    Doubles gradient;
    for (std::size_t n = 0; n < targets.size(); ++n) {
      for (std::size_t i = 0; i < vocabulary; ++i) {
        const std::vector<std::int32_t> target = {static_cast<int>(i)};
        const auto row = logits.begin() + std::ptrdiff_t(n * vocabulary);
        const double loss = exact::cross_entropy(
            {row, row + std::ptrdiff_t(vocabulary)}, target)[0];
        const bool hit = std::int32_t(i) == targets[n];
        gradient.push_back((std::exp(-loss) - hit) / double(targets.size()));
      }
    }
    return gradient;
  }
};
INSTANTIATE_BACKENDS(CrossEntropy);

TEST_P(CrossEntropy, MatchesPyTorchInDoublePrecision) {
  expect_reference("ops/cross_entropy_normal/");
}

TEST_P(CrossEntropy, SurvivesExtremeLogits) {
  expect_reference("ops/cross_entropy_extreme/");
}

TEST_P(CrossEntropy, IgnoresPaddingAndClearsItsGradient) {
  for (const auto& [rows, vocabulary, stride] :
       {std::tuple{1, 1, 8}, {3, 7, 8}, {5, 127, 128}, {2, 1000, 1111}}) {
    const Floats logits = random_activations(rows * vocabulary, 1, 3);
    const auto targets = random_ids(rows, vocabulary, 2);
    const Doubles at(logits.begin(), logits.end());
    const Result got =
        run(logits, targets, vocabulary, stride, 1.0f / float(rows));
    EXPECT_LE(relative_error(got.losses, exact::cross_entropy(at, targets)),
              loss_tolerance());
    const Doubles wanted = softmax_gradient(at, targets);
    for (std::int64_t n = 0; n < rows; ++n) {
      const std::span row(&got.gradient[n * stride], stride);
      EXPECT_LE(relative_error(row.first(vocabulary),
                               std::span(&wanted[n * vocabulary], vocabulary)),
                tolerance());
      for (const float padding : row.subspan(vocabulary)) {
        ASSERT_EQ(padding, 0);
      }
    }
  }
}

TEST_P(CrossEntropy, KeepsSmallLossesOfLargeLogits) {
  // log-sum-exp itself is only known to 5e-4 here.
  const Result got = run({8192, 8192, 8192}, {1}, 3, 3, 1);
  EXPECT_NEAR(got.losses[0], std::log(3), 1e-6);
}

TEST_P(CrossEntropy, GradientEqualsCentralDifferences) {
  const Floats logits = random_activations(3 * 7, 1, 2);
  const std::vector<std::int32_t> targets = {6, 0, 3};
  const Doubles wanted = exact::gradient(
      [&](const Doubles& at) { return exact::cross_entropy(at, targets); },
      {logits.begin(), logits.end()}, Doubles(3, 0.25));
  const Result got = run(logits, targets, 7, 7, 0.25f);
  EXPECT_LE(relative_error(got.gradient, wanted), tolerance());
}

TEST_P(CrossEntropy, RefusesWrongShapes) {
  const Tensor logits = zeros(dtype(), {3, 8}), losses = zeros(Dtype::f32, {3});
  EXPECT_THROW(ops().cross_entropy(losses, logits, ids({1, 2}), 8), Error);
  EXPECT_THROW(ops().cross_entropy(losses, logits, ids({1, 2, 3}), 9), Error);
  EXPECT_THROW(ops().cross_entropy_backward(losses.range(0, 2), logits,
                                            ids({1, 2, 3}), 8, 1),
               Error);
  EXPECT_THROW(
      ops().cross_entropy(losses, zeros(Dtype::i32, {3, 8}), ids({1, 2, 3}), 8),
      Error);
  if (!on_cpu()) return;  // a GPU would have to read the targets back
  EXPECT_THROW(ops().cross_entropy(losses, logits, ids({1, 2, 7}), 7), Error);
}

}  // namespace
}  // namespace lockstep::test
