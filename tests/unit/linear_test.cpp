#include <limits>

#include "unit/backends.h"
#include "unit/exact.h"

namespace lockstep::test {
namespace {

struct Sizes {
  std::int64_t rows, out, in;
};
constexpr Sizes sizes_to_try[] = {{1, 1, 1},    {1, 7, 5},     {2, 8, 16},
                                  {7, 16, 24},  {77, 13, 127}, {65, 127, 40},
                                  {33, 257, 96}};

class Linear : public BackendTest {
 protected:
  void use(const Sizes& sizes) {
    s = sizes;
    x = random_activations(s.rows * s.in, 1);
    w = random_activations(s.out * s.in, 2);
    dy = random_activations(s.rows * s.out, 3);
  }
  // dy with rows of `stride` elements, NaN beyond `out`.
  Floats wide(const Floats& narrow, std::int64_t stride) const {
    Floats values(s.rows * stride, std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t n = 0; n < s.rows; ++n) {
      std::copy_n(&narrow[n * s.out], s.out, &values[n * stride]);
    }
    return values;
  }
  Doubles exact_y() const {
    return exact::linear({x.begin(), x.end()}, {w.begin(), w.end()}, s.rows,
                         s.out, s.in);
  }
  Doubles exact_dx() const {
    return exact::linear({dy.begin(), dy.end()},
                         exact::transposed({w.begin(), w.end()}, s.out, s.in),
                         s.rows, s.in, s.out);
  }
  Doubles exact_dw() const {
    return exact::linear(
        exact::transposed({dy.begin(), dy.end()}, s.rows, s.out),
        exact::transposed({x.begin(), x.end()}, s.rows, s.in), s.out, s.in,
        s.rows);
  }

  Sizes s{};
  Floats x, w, dy;
};
INSTANTIATE_BACKENDS(Linear);

TEST_P(Linear, MultipliesRowsByTheTransposedWeight) {
  for (const Sizes& sizes : sizes_to_try) {
    use(sizes);
    const Tensor y = zeros(dtype(), {s.rows, s.out});
    ops().linear(y, activations(x, {s.rows, s.in}),
                 activations(w, {s.out, s.in}));
    EXPECT_LE(relative_error(get(y), exact_y()), tolerance())
        << s.rows << " " << s.out << " " << s.in;
  }
}

TEST_P(Linear, GivesTheGradientOfItsInput) {
  for (const Sizes& sizes : sizes_to_try) {
    use(sizes);
    const Tensor dx = zeros(dtype(), {s.rows, s.in});
    ops().linear_backward_input(dx, activations(dy, {s.rows, s.out}),
                                activations(w, {s.out, s.in}));
    EXPECT_LE(relative_error(get(dx), exact_dx()), tolerance())
        << s.rows << " " << s.out << " " << s.in;
  }
}

TEST_P(Linear, AddsTheGradientOfItsWeightToWhatIsThere) {
  for (const Dtype type : gradient_dtypes()) {
    for (const Sizes& sizes : sizes_to_try) {
      use(sizes);
      const Tensor dw =
          put(type, random_floats(s.out * s.in, 4, 10), {s.out, s.in});
      const Floats before = get(dw);
      ops().linear_backward_weight(dw, activations(dy, {s.rows, s.out}),
                                   activations(x, {s.rows, s.in}),
                                   Accumulate::yes);
      Doubles wanted = exact_dw();
      for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += before[i];
      EXPECT_LE(relative_error(get(dw), wanted), gradient_tolerance(type))
          << s.rows << " " << s.out << " " << s.in << " " << name_of(type);
    }
  }
}

TEST_P(Linear, WritesTheGradientOfItsWeightOverWhatIsThere) {
  for (const Dtype type : gradient_dtypes()) {
    for (const Sizes& sizes : sizes_to_try) {
      use(sizes);
      const Tensor dw = put(type, Floats(s.out * s.in, NAN), {s.out, s.in});
      ops().linear_backward_weight(dw, activations(dy, {s.rows, s.out}),
                                   activations(x, {s.rows, s.in}),
                                   Accumulate::no);
      EXPECT_LE(relative_error(get(dw), exact_dw()), gradient_tolerance(type))
          << s.rows << " " << s.out << " " << s.in << " " << name_of(type);
    }
  }
}

// A library may cut the sum over many rows in parts; these must not be rounded
// to bf16 before they are added. Nearly all elements are then the exact ones,
// rounded once: those near the middle of two bf16 numbers may be either.
TEST_P(Linear, RoundsTheGradientOfItsWeightOnceHoweverManyRowsThereAre) {
  if (dtype() != Dtype::bf16) GTEST_SKIP() << "there is nothing to round";
  use({8192, 64, 32});
  const Tensor dw = zeros(Dtype::bf16, {s.out, s.in});
  ops().linear_backward_weight(dw, activations(dy, {s.rows, s.out}),
                               activations(x, {s.rows, s.in}), Accumulate::no);
  const Floats got = get(dw);
  const Doubles wanted = exact_dw();
  int different = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    different += got[i] != float(bfloat16(float(wanted[i])));
  }
  EXPECT_LE(different, std::ssize(wanted) / 100);
}

TEST_P(Linear, LeavesColumnsPastItsWidthAlone) {
  use({7, 127, 24});
  const std::int64_t stride = 136;
  const Tensor y = activations(Floats(s.rows * stride, -5), {s.rows, stride});
  ops().linear(y, activations(x, {s.rows, s.in}),
               activations(w, {s.out, s.in}));
  const Floats got = get(y);
  const Doubles wanted = exact_y();
  for (std::int64_t n = 0; n < s.rows; ++n) {
    const std::span row(&got[n * stride], stride);
    EXPECT_LE(
        relative_error(row.first(s.out), std::span(&wanted[n * s.out], s.out)),
        tolerance());
    for (const float padding : row.subspan(s.out)) EXPECT_EQ(padding, -5);
  }
}

TEST_P(Linear, ReadsGradientsFromWiderRows) {
  use({7, 127, 24});
  const std::int64_t stride = 136;
  // Rows' padding is zero, as cross-entropy leaves it.
  Floats padded = wide(dy, stride);
  for (float& value : padded) value = std::isnan(value) ? 0 : value;
  const Tensor wide_dy = activations(padded, {s.rows, stride});
  const Tensor dx = zeros(dtype(), {s.rows, s.in});
  const Tensor dw = zeros(Dtype::f32, {s.out, s.in});
  ops().linear_backward_input(dx, wide_dy, activations(w, {s.out, s.in}));
  ops().linear_backward_weight(dw, wide_dy, activations(x, {s.rows, s.in}),
                               Accumulate::yes);
  EXPECT_LE(relative_error(get(dx), exact_dx()), tolerance());
  EXPECT_LE(relative_error(get(dw), exact_dw()), tolerance());
}

TEST_P(Linear, GivesTheSameBitsEveryTime) {
  use({77, 96, 256});
  for (const Dtype type : gradient_dtypes()) {
    const Tensor dw1 = zeros(type, {s.out, s.in});
    const Tensor dw2 = zeros(type, {s.out, s.in});
    const Tensor dyt = activations(dy, {s.rows, s.out});
    const Tensor xt = activations(x, {s.rows, s.in});
    ops().linear_backward_weight(dw1, dyt, xt, Accumulate::yes);
    ops().linear_backward_weight(dw2, dyt, xt, Accumulate::yes);
    EXPECT_EQ(get(dw1), get(dw2)) << name_of(type);
  }
}

TEST_P(Linear, AllocatesNothingOnceItHasSeenItsShapes) {
  use({65, 127, 40});
  const Tensor y = zeros(dtype(), {s.rows, s.out});
  const Tensor xt = activations(x, {s.rows, s.in});
  const Tensor wt = activations(w, {s.out, s.in});
  const Tensor dw = zeros(Dtype::f32, {s.out, s.in});
  const auto step = [&] {
    ops().linear(y, xt, wt);
    ops().linear_backward_weight(dw, y, xt, Accumulate::yes);
    ops().linear_backward_input(xt, y, wt);
  };
  step();
  const std::int64_t changes = device().ledger().changes();
  step();
  EXPECT_EQ(device().ledger().changes(), changes);
}

TEST_P(Linear, RefusesWrongShapesAndDtypesBeforeItWrites) {
  use({7, 16, 24});
  const Tensor xt = activations(x, {s.rows, s.in});
  const Tensor wt = activations(w, {s.out, s.in});
  const Tensor y = activations(Floats(7 * 16, 3), {7, 16});
  const Tensor dw = fp32(Floats(16 * 24, 3), {16, 24});
  const Tensor narrow = zeros(dtype(), {7, 15});
  const Tensor ints = zeros(Dtype::i32, {7, 24});
  EXPECT_THROW(ops().linear(narrow, xt, wt), Error);
  EXPECT_THROW(ops().linear(y, xt.reshaped({8, 21}), wt), Error);
  EXPECT_THROW(ops().linear(y, ints, wt), Error);
  EXPECT_THROW(ops().linear(y, Tensor(), wt), Error);
  EXPECT_THROW(ops().linear_backward_input(xt, narrow, wt), Error);
  EXPECT_THROW(ops().linear_backward_weight(dw, narrow, xt, Accumulate::yes),
               Error);
  EXPECT_THROW(ops().linear_backward_weight(dw.reshaped({24, 16}), y, xt,
                                            Accumulate::yes),
               Error);
  EXPECT_EQ(get(y), Floats(7 * 16, 3));
  EXPECT_EQ(get(dw), Floats(16 * 24, 3));
  if (dtype() == Dtype::bf16) return;
  EXPECT_THROW(ops().linear_backward_weight(zeros(Dtype::bf16, {16, 24}), y, xt,
                                            Accumulate::no),
               Error);
}

}  // namespace
}  // namespace lockstep::test
