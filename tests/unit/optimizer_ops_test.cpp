#include "unit/backends.h"

namespace lockstep::test {
namespace {

class Reductions : public BackendTest {
 protected:
  double norm_of(const Tensor& x) {
    const Tensor total = zeros(Dtype::f64, {1});
    ops().add_sum_of_squares(total, x);
    return std::sqrt(get_double(total));
  }
};
INSTANTIATE_BACKENDS(Reductions);

TEST_P(Reductions, AddAScaledSum) {
  for (const std::int64_t count : {1, 7, 1024, 100003}) {
    const Floats x = random_floats(count, 1);
    double sum = 0;
    for (const float value : x) sum += value;
    const Tensor total = zeros(Dtype::f64, {1});
    ops().add_sum(total, fp32(x, {count}), 0.5);
    ops().add_sum(total, fp32(x, {count}), 0.25);
    EXPECT_NEAR(get_double(total), 0.75 * sum, 1e-9 * double(count));
  }
}

TEST_P(Reductions, NormsAreThoseOfDoublePrecision) {
  EXPECT_NEAR(norm_of(fp32(Floats(40000, 1), {40000})), 200, 1e-9);
  EXPECT_NEAR(norm_of(fp32(Floats(100, 1e20f), {100})), 1e21, 1e15);

  // 1e8 values, where one fp32 sum would be several percent low.
  const std::int64_t count = 1'000'000, repeats = 100;
  const Floats small = random_floats(count, 1, 1e-3f);
  double squares = 0;
  for (const float value : small) squares += double(value) * double(value);
  const Tensor all = zeros(Dtype::f32, {repeats * count});
  for (std::int64_t i = 0; i < repeats; ++i) {
    upload(device(), all.range(i * count, count), small);
  }
  const double wanted = std::sqrt(double(repeats) * squares);
  EXPECT_NEAR(wanted, 10, 0.05);
  EXPECT_NEAR(norm_of(all), wanted, 1e-9 * wanted);
}

TEST_P(Reductions, TakeTheSquaresOfBf16InDoublePrecisionToo) {
  for (const std::int64_t count : {1, 7, 1024, 100003}) {
    const Tensor x = put(Dtype::bf16, random_floats(count, 1), {count});
    double squares = 0;
    for (const float value : get(x)) squares += double(value) * double(value);
    const double wanted = std::sqrt(squares);
    EXPECT_NEAR(norm_of(x), wanted, 1e-9 * wanted) << count;
    // From an address that no wide access starts at.
    if (count == 1) continue;
    const double first = get(x)[0];
    EXPECT_NEAR(norm_of(x.range(1, count - 1)),
                std::sqrt(squares - first * first), 1e-9 * wanted)
        << count;
  }
}

TEST_P(Reductions, OfNothingAddNothing) {
  const Tensor total = zeros(Dtype::f64, {1});
  const Tensor nothing(nullptr, Dtype::f32, {0});
  ops().add_sum(total, nothing, 1);
  ops().add_sum_of_squares(total, nothing);
  EXPECT_EQ(get_double(total), 0);
}

TEST_P(Reductions, GiveTheSameBitsEveryTime) {
  const std::int64_t count = 1'000'003;
  const Tensor x = fp32(random_floats(count, 1), {count});
  const double first = norm_of(x);
  for (int repeat = 0; repeat < 20; ++repeat) EXPECT_EQ(norm_of(x), first);
}

TEST_P(Reductions, ClipScalesLargeGradientsOnly) {
  const Tensor squares = zeros(Dtype::f64, {1});
  const Tensor factor = zeros(Dtype::f32, {1});
  const auto factor_of = [&](double norm, double clip) {
    const double value = norm * norm;
    device().copy_to_device(squares, &value);
    ops().clip_factor(factor, squares, clip);
    return get(factor)[0];
  };
  EXPECT_FLOAT_EQ(factor_of(200, 1), 1.0f / (200 + 1e-6f));
  EXPECT_FLOAT_EQ(factor_of(1e21, 1), 1e-21f);
  EXPECT_EQ(factor_of(0.5, 1), 1);
  EXPECT_EQ(factor_of(0, 1), 1);
  EXPECT_EQ(factor_of(200, 0), 1);
  for (const double norm : {double(NAN), double(INFINITY)}) {
    EXPECT_TRUE(std::isnan(factor_of(norm, 1)));
    EXPECT_TRUE(std::isnan(factor_of(norm, 0)));
  }
}

TEST_P(Reductions, RefuseWrongDtypes) {
  const Tensor x = zeros(Dtype::f32, {4}), total = zeros(Dtype::f64, {1});
  EXPECT_THROW(ops().add_sum(x, x, 1), Error);
  EXPECT_THROW(ops().add_sum_of_squares(total, total), Error);
  EXPECT_THROW(ops().clip_factor(total, total, 1), Error);
}

// AdamW on a small shard, beside the same in double.
class Adamw : public BackendTest {
 protected:
  void start(const Floats& values, Dtype gradient = Dtype::f32) {
    n = std::ssize(values);
    parameters = zeros(dtype(), {n});
    remainder = dtype() == Dtype::f32 ? Tensor() : zeros(Dtype::i16, {n});
    ops().split_weights(parameters, remainder, fp32(values, {n}));
    gradients = zeros(gradient, {n});
    first = zeros(Dtype::f32, {n});
    second = zeros(Dtype::f32, {n});
    exact_p.assign(values.begin(), values.end());
    exact_m.assign(n, 0);
    exact_v.assign(n, 0);
  }
  void step(int t, const Floats& given, float factor = 1) {
    upload(device(), gradients, given);
    const Floats g = get(gradients);
    const AdamwScalars s{lr,
                         beta1,
                         beta2,
                         epsilon,
                         float(1 - std::pow(double(beta1), t)),
                         float(1 - std::pow(double(beta2), t))};
    const Tensor scalars =
        fp32({&s.learning_rate, adamw_scalar_count}, {adamw_scalar_count});
    ops().adamw({parameters, remainder, gradients, first, second, decay},
                scalars, fp32(Floats{factor}, {1}));
    for (std::int64_t i = 0; i < n; ++i) {
      const double grad = double(factor) * g[i];
      exact_m[i] = beta1 * exact_m[i] + (1 - beta1) * grad;
      exact_v[i] = beta2 * exact_v[i] + (1 - beta2) * grad * grad;
      const double m_hat = exact_m[i] / (1 - std::pow(double(beta1), t));
      const double v_hat = exact_v[i] / (1 - std::pow(double(beta2), t));
      exact_p[i] = exact_p[i] * (1 - double(lr) * decay) -
                   lr * m_hat / (std::sqrt(v_hat) + epsilon);
    }
  }

  float lr = 0.02f, beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f, decay = 0.1f;
  std::int64_t n = 0;
  // The parameters' fp32 values.
  Floats master() {
    const Tensor values = zeros(Dtype::f32, {n});
    ops().join_weights(values, parameters, remainder);
    return get(values);
  }
  Tensor parameters, remainder, gradients, first, second;
  Doubles exact_p, exact_m, exact_v;
};
INSTANTIATE_BACKENDS(Adamw);

TEST_P(Adamw, FollowsDoublePrecisionForTenSteps) {
  for (const Dtype gradient : gradient_dtypes()) {
    for (const std::int64_t count : {1, 13, 40001}) {
      start(random_activations(count, 1), gradient);
      for (int t = 1; t <= 10; ++t) {
        step(t, random_floats(count, unsigned(t) + 1), t % 2 ? 1.0f : 0.25f);
      }
      EXPECT_LE(relative_error(master(), exact_p), 1e-6) << count;
      EXPECT_LE(relative_error(get(first), exact_m), 1e-6) << count;
      EXPECT_LE(relative_error(get(second), exact_v), 1e-6) << count;
      if (dtype() == Dtype::bf16) {
        EXPECT_EQ(get(parameters), rounded(master())) << count;
      }
    }
  }
}

TEST_P(Adamw, DecaysParametersWithoutGradient) {
  const Floats values = random_activations(100, 1);
  start(values);
  step(1, Floats(100));
  const float keep = float(1 - double(lr) * double(decay));
  Floats wanted;
  for (const float value : values) wanted.push_back(value * keep);
  EXPECT_EQ(master(), wanted);
}

TEST_P(Adamw, TakesHugeGradientsThatWereClipped) {
  start(Floats(100, 1));
  step(1, Floats(100, 1e20f), 1e-21f);
  EXPECT_LE(relative_error(master(), exact_p), 1e-6);
  EXPECT_NEAR(get(first)[0], 0.01, 1e-6);
}

TEST_P(Adamw, ChangesNothingWhereTheFactorIsNotANumber) {
  start(random_activations(1001, 1));
  step(1, random_floats(1001, 2));
  const Floats p = master(), m = get(first), v = get(second);
  step(2, Floats(1001, INFINITY), NAN);
  EXPECT_EQ(master(), p);
  EXPECT_EQ(get(first), m);
  EXPECT_EQ(get(second), v);
}

TEST_P(Adamw, DoesNothingToAnEmptyShard) {
  const Tensor none(nullptr, Dtype::f32, {0});
  ops().adamw({Tensor(nullptr, dtype(), {0}), none, none, none, none, 0.1f},
              zeros(Dtype::f32, {adamw_scalar_count}), zeros(Dtype::f32, {1}));
}

TEST_P(Adamw, RefusesStateOfDifferentLengths) {
  start(Floats(8));
  const Tensor scalars = zeros(Dtype::f32, {adamw_scalar_count});
  const Tensor factor = zeros(Dtype::f32, {1});
  EXPECT_THROW(ops().adamw({parameters, remainder, gradients.range(0, 7), first,
                            second, 0},
                           scalars, factor),
               Error);
  EXPECT_THROW(ops().adamw({parameters, remainder, gradients, first, second, 0},
                           scalars.range(0, 6), factor),
               Error);
  EXPECT_THROW(ops().adamw({zeros(Dtype::i32, {8}), remainder, gradients, first,
                            second, 0},
                           scalars, factor),
               Error);
  if (dtype() == Dtype::bf16) return;
  EXPECT_THROW(ops().adamw({parameters, remainder, zeros(Dtype::bf16, {8}),
                            first, second, 0},
                           scalars, factor),
               Error);
}

class SplitWeights : public BackendTest {};
INSTANTIATE_BACKENDS(SplitWeights);

TEST_P(SplitWeights, GiveTheFp32ValueBack) {
  Floats x = random_floats(100003, 1);
  // Ties in both directions, signs, denormals, the largest, infinity.
  for (const std::uint32_t bits :
       {0x3f808000u, 0x3f818000u, 0xbf808000u, 0xbf817fffu, 0x3f808001u,
        0x00000001u, 0x80008000u, 0x7f7fffffu, 0x7f800000u, 0u, 0x80000000u}) {
    x.push_back(std::bit_cast<float>(bits));
  }
  const Shape shape{std::ssize(x)};
  const Tensor values = fp32(x, shape);
  const Tensor parameters = zeros(Dtype::bf16, shape);
  const Tensor remainder = zeros(Dtype::i16, shape);
  const Tensor back = zeros(Dtype::f32, shape);
  ops().split_weights(parameters, remainder, values);
  ops().join_weights(back, parameters, remainder);
  EXPECT_EQ(get(back), x);

  // The bf16 half is the nearest one, and the same without a remainder.
  const Floats nearest = get(parameters);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i]) || !std::isfinite(nearest[i])) continue;
    const double error = std::abs(double(nearest[i]) - x[i]);
    ASSERT_LE(error, std::abs(double(bfloat16(x[i])) - x[i])) << x[i];
  }
  const Tensor alone = zeros(Dtype::bf16, shape);
  ops().split_weights(alone, {}, values);
  EXPECT_EQ(get(alone), nearest);
}

TEST_P(SplitWeights, KeepNaN) {
  const Tensor parameters = zeros(Dtype::bf16, {1});
  const Tensor remainder = zeros(Dtype::i16, {1});
  const Tensor back = zeros(Dtype::f32, {1});
  ops().split_weights(parameters, remainder,
                      fp32(Floats{std::bit_cast<float>(0x7fffffffu)}, {1}));
  ops().join_weights(back, parameters, remainder);
  EXPECT_TRUE(std::isnan(get(parameters)[0]));
  EXPECT_TRUE(std::isnan(get(back)[0]));
}

TEST_P(SplitWeights, CopyF32) {
  const Floats x = random_floats(13, 1);
  const Tensor parameters = zeros(Dtype::f32, {13});
  const Tensor back = zeros(Dtype::f32, {13});
  ops().split_weights(parameters, {}, fp32(x, {13}));
  ops().join_weights(back, parameters, {});
  EXPECT_EQ(get(parameters), x);
  EXPECT_EQ(get(back), x);
}

TEST_P(SplitWeights, RefuseARemainderOfAnotherLength) {
  EXPECT_THROW(
      ops().split_weights(zeros(Dtype::bf16, {4}), zeros(Dtype::i16, {3}),
                          zeros(Dtype::f32, {4})),
      Error);
  EXPECT_THROW(
      ops().join_weights(zeros(Dtype::f32, {4}), zeros(Dtype::f32, {4}),
                         zeros(Dtype::i16, {4})),
      Error);
}

class Cast : public BackendTest {};
INSTANTIATE_BACKENDS(Cast);

TEST_P(Cast, RoundsToTheNearestEven) {
  Floats x = {1.0f, 1.00390625f, 1.01171875f, -1.00390625f, 3.4e38f, 0.0f};
  const Floats more = random_floats(100001, 1);
  x.insert(x.end(), more.begin(), more.end());
  Floats wanted;
  for (const float value : x) wanted.push_back(bfloat16(value));
  EXPECT_EQ(wanted[1], 1.0f);       // a tie goes to the even side below
  EXPECT_EQ(wanted[2], 1.015625f);  // and above

  const Shape shape{std::ssize(x)};
  const Tensor narrow = zeros(Dtype::bf16, shape);
  ops().cast(narrow, fp32(x, shape));
  EXPECT_EQ(get(narrow), wanted);
  const Tensor wide = zeros(Dtype::f32, shape);
  ops().cast(wide, narrow);
  EXPECT_EQ(get(wide), wanted);
}

TEST_P(Cast, CopiesWithinADtype) {
  const Floats x = random_activations(20001, 1);
  for (const Dtype type : {Dtype::f32, dtype()}) {
    const Tensor copy = zeros(type, {20001});
    ops().cast(copy, put(type, x, {20001}));
    EXPECT_EQ(get(copy), get(put(type, x, {20001})));
  }
}

TEST_P(Cast, AddsToASum) {
  const Floats x = random_floats(20001, 1), y = random_floats(20001, 2);
  for (const Dtype of_sum : {Dtype::f32, Dtype::bf16}) {
    for (const Dtype of_term : {Dtype::f32, Dtype::bf16}) {
      const Tensor sum = put(of_sum, y, {20001});
      const Tensor term = put(of_term, x, {20001});
      Floats wanted = get(sum);
      const Floats added = get(term);
      for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += added[i];
      ops().add(sum, term);
      EXPECT_EQ(get(sum), get(put(of_sum, wanted, {20001})))
          << name_of(of_sum) << " += " << name_of(of_term);
    }
  }
}

TEST_P(Cast, RefusesOtherDtypes) {
  EXPECT_THROW(ops().cast(zeros(Dtype::f32, {4}), zeros(Dtype::i32, {4})),
               Error);
  EXPECT_THROW(ops().cast(zeros(Dtype::bf16, {3}), zeros(Dtype::f32, {4})),
               Error);
  EXPECT_THROW(ops().add(zeros(Dtype::f32, {4}), zeros(Dtype::i32, {4})),
               Error);
  EXPECT_THROW(ops().add(zeros(Dtype::i32, {4}), zeros(Dtype::f32, {4})),
               Error);
  EXPECT_THROW(ops().add(zeros(Dtype::f32, {3}), zeros(Dtype::f32, {4})),
               Error);
}

}  // namespace
}  // namespace lockstep::test
