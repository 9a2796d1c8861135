#include "unit/backends.h"
#include "unit/exact.h"
#include "unit/reference.h"

namespace lockstep::test {
namespace {

// --- RMSNorm
// ------------------------------------------------------------------
class RmsNorm : public BackendTest {
 protected:
  struct Result {
    Floats y, residual, dresidual, dweight;
  };
  // Forward of x + add, then backward of dy into `before`.
  Result run(const Floats& x, const Floats& add, const Floats& weight,
             const Floats& dy, const Floats& before,
             Dtype gradient = Dtype::f32) {
    const std::int64_t width = std::ssize(weight);
    const std::int64_t rows = std::ssize(x) / width;
    const Shape shape{rows, width};
    const Tensor y = zeros(dtype(), shape), residual = zeros(dtype(), shape);
    const Tensor inverse_rms = zeros(Dtype::f32, {rows});
    const Tensor w = activations(weight, {width});
    const Tensor dresidual = activations(before, shape);
    const Tensor dweight = zeros(gradient, {width});
    ops().rmsnorm(y, residual, inverse_rms, activations(x, shape),
                  add.empty() ? Tensor() : activations(add, shape), w);
    ops().rmsnorm_backward(dresidual, dweight, activations(dy, shape), residual,
                           inverse_rms, w, Accumulate::yes);
    return {get(y), get(residual), get(dresidual), get(dweight)};
  }
};
INSTANTIATE_BACKENDS(RmsNorm);

TEST_P(RmsNorm, MatchesPyTorchInDoublePrecision) {
  const Floats x = reference("ops/rmsnorm/x");
  const Result got = run(x, {}, reference("ops/rmsnorm/w"),
                         reference("ops/rmsnorm/dy"), Floats(x.size()));
  EXPECT_LE(relative_error(got.y, reference("ops/rmsnorm/y")), tolerance());
  EXPECT_LE(relative_error(got.dresidual, reference("ops/rmsnorm/dx")),
            tolerance());
  EXPECT_LE(relative_error(got.dweight, reference("ops/rmsnorm/dw")),
            tolerance());
}

TEST_P(RmsNorm, WritesItsWeightsGradientOverWhatIsThere) {
  const Shape shape{33, 24};
  const Tensor x = activations(random_activations(33 * 24, 1), shape);
  const Tensor w = activations(random_activations(24, 2), {24});
  const Tensor inverse = fp32(Floats(33, 0.5f), {33});
  const Tensor dx = zeros(dtype(), shape);
  for (const Dtype type : gradient_dtypes()) {
    const Tensor added = zeros(type, {24});
    const Tensor written = put(type, Floats(24, NAN), {24});
    ops().rmsnorm_backward(dx, added, x, x, inverse, w, Accumulate::yes);
    ops().rmsnorm_backward(dx, written, x, x, inverse, w, Accumulate::no);
    EXPECT_EQ(get(written), get(added)) << name_of(type);
  }
}

TEST_P(RmsNorm, AddsTheBranchBeforeItNorms) {
  for (const auto& [rows, width] :
       {std::pair{1, 1}, {1, 7}, {3, 127}, {77, 16}, {130, 260}, {2, 4608}}) {
    const Floats x = random_activations(rows * width, 1);
    const Floats add = random_activations(rows * width, 2);
    const Floats w = random_activations(width, 3);
    const Result got = run(x, add, w, x, x);
    Doubles sum(x.begin(), x.end());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += add[i];
    EXPECT_LE(relative_error(got.residual, sum), tolerance()) << width;
    EXPECT_LE(relative_error(got.y, exact::rmsnorm(sum, {w.begin(), w.end()})),
              tolerance())
        << width;
  }
}

TEST_P(RmsNorm, MayWriteTheResidualOverItsInput) {
  const Floats x = random_activations(5 * 24, 1);
  const Floats add = random_activations(5 * 24, 2);
  const Floats w = random_activations(24, 3);
  const Result wanted = run(x, add, w, x, x);
  const Tensor stream = activations(x, {5, 24}), y = zeros(dtype(), {5, 24});
  ops().rmsnorm(y, stream, zeros(Dtype::f32, {5}), stream,
                activations(add, {5, 24}), activations(w, {24}));
  EXPECT_EQ(get(stream), wanted.residual);
  EXPECT_EQ(get(y), wanted.y);
}

TEST_P(RmsNorm, AddsCentralDifferencesToTheBypassingGradient) {
  for (const auto& [rows, width] : {std::pair{1, 2}, {3, 7}, {40, 12}}) {
    const Floats x = random_activations(rows * width, 1);
    const Floats w = random_activations(width, 2);
    const Floats dy = random_activations(rows * width, 3);
    const Floats before = random_activations(rows * width, 4);
    const Doubles xd(x.begin(), x.end()), wd(w.begin(), w.end());
    const Doubles dyd(dy.begin(), dy.end());
    Doubles dx = exact::gradient(
        [&](const Doubles& at) { return exact::rmsnorm(at, wd); }, xd, dyd);
    for (std::size_t i = 0; i < dx.size(); ++i) dx[i] += before[i];
    const Doubles dw = exact::gradient(
        [&](const Doubles& at) { return exact::rmsnorm(xd, at); }, wd, dyd);

    for (const Dtype type : gradient_dtypes()) {
      const Result got = run(x, {}, w, dy, before, type);
      EXPECT_LE(relative_error(got.dresidual, dx), tolerance()) << width;
      EXPECT_LE(relative_error(got.dweight, dw), gradient_tolerance(type))
          << width << " " << name_of(type);
    }
  }
}

TEST_P(RmsNorm, RoundsTheGradientOfItsWeightOnceWithWhatWasThere) {
  for (const auto& [rows, width] :
       {std::pair{1, 1}, {77, 7}, {1023, 130}, {300, 264}}) {
    const Floats x = random_activations(rows * width, 1);
    const Floats dy = random_activations(rows * width, 2);
    const Shape shape{rows, width};
    for (const Dtype type : gradient_dtypes()) {
      const Tensor dweight = put(type, random_floats(width, 3, 10), {width});
      const Floats before = get(dweight);
      Doubles wanted(before.begin(), before.end());
      for (std::int64_t i = 0; i < std::ssize(x); ++i) {
        wanted[i % width] += 0.5 * double(dy[i]) * double(x[i]);
      }
      ops().rmsnorm_backward(
          zeros(dtype(), shape), dweight, activations(dy, shape),
          activations(x, shape), fp32(Floats(rows, 0.5f), {rows}),
          activations(Floats(width, 1), {width}), Accumulate::yes);
      EXPECT_LE(relative_error(get(dweight), wanted), gradient_tolerance(type))
          << width << " " << name_of(type);
    }
  }
}

TEST_P(RmsNorm, AccumulatesTheGradientOfItsWeightTheSameWayEveryTime) {
  const std::int64_t rows = 300, width = 72;
  const Tensor x = activations(random_floats(rows * width, 1), {rows, width});
  const Tensor w = activations(Floats(width, 1), {width});
  const Tensor inverse = fp32(Floats(rows, 0.9f), {rows});
  const Tensor once = zeros(Dtype::f32, {width});
  const Tensor again = zeros(Dtype::f32, {width});
  const Tensor dx = zeros(dtype(), {rows, width});
  ops().rmsnorm_backward(dx, once, x, x, inverse, w, Accumulate::yes);
  ops().rmsnorm_backward(dx, again, x, x, inverse, w, Accumulate::yes);
  EXPECT_EQ(get(once), get(again));
  ops().rmsnorm_backward(dx, again, x, x, inverse, w, Accumulate::yes);
  Floats twice = get(once);
  for (float& value : twice) value *= 2;
  EXPECT_LE(relative_error(get(again), twice), 1e-6);
}

TEST_P(RmsNorm, RefusesWrongShapes) {
  const Tensor x = zeros(dtype(), {4, 8}), w = zeros(dtype(), {8});
  const Tensor inverse = zeros(Dtype::f32, {4});
  EXPECT_THROW(ops().rmsnorm(x, x, inverse, x, {}, zeros(dtype(), {7})), Error);
  EXPECT_THROW(ops().rmsnorm(x, x.rows(0, 3), inverse, x, {}, w), Error);
  EXPECT_THROW(ops().rmsnorm(x, x, inverse.range(0, 3), x, {}, w), Error);
  EXPECT_THROW(ops().rmsnorm(x, x, inverse, x, x.rows(0, 2), w), Error);
  EXPECT_THROW(ops().rmsnorm_backward(x, zeros(Dtype::i32, {8}), x, x, inverse,
                                      w, Accumulate::yes),
               Error);
  if (dtype() == Dtype::bf16) return;
  EXPECT_THROW(ops().rmsnorm_backward(x, zeros(Dtype::bf16, {8}), x, x, inverse,
                                      w, Accumulate::yes),
               Error);
}

// --- RoPE
// ---------------------------------------------------------------------
class Rope : public BackendTest {
 protected:
  // Rotates x, one head of dimension `dim` a token, as tokens first, first+1, …
  Floats rotate(const Floats& x, std::int64_t dim, std::int64_t first,
                Pass pass = Pass::forward) {
    const std::int64_t tokens = std::ssize(x) / dim;
    const Floats table = rope_table(first + tokens, dim, 10000.0);
    const Tensor angles =
        fp32(std::span(table).subspan(first * dim), {tokens, dim / 2, 2});
    const Tensor rows = activations(x, {tokens, dim});
    ops().rope(row_heads(rows, 1, 1), angles, pass);
    return get(rows);
  }
  static Doubles exact_rotation(const Floats& x, std::int64_t dim,
                                std::int64_t first) {
    Doubles y(x.size());
    for (std::int64_t i = 0; i < std::ssize(x); i += 2) {
      const double angle = double(first + i / dim) *
                           std::pow(10000.0, -double(i % dim) / double(dim));
      y[i] = x[i] * std::cos(angle) - x[i + 1] * std::sin(angle);
      y[i + 1] = x[i] * std::sin(angle) + x[i + 1] * std::cos(angle);
    }
    return y;
  }
  // Elementwise operations never use TF32.
  double rounding() const { return dtype() == Dtype::bf16 ? 3e-3 : 1e-6; }
};
INSTANTIATE_BACKENDS(Rope);

TEST_P(Rope, MatchesPyTorchInDoublePrecision) {
  const auto shape = reference_shape("ops/rope/x");  // [B, H, T, D]
  const Tensor x = activations(reference("ops/rope/x"),
                               {shape[0], shape[1], shape[2], shape[3]});
  const Tensor table = fp32(rope_table(shape[2] + 5, shape[3], 10000.0),
                            {shape[2] + 5, shape[3] / 2, 2});
  const Heads heads{x.data,
                    x.dtype,
                    shape[0],
                    shape[2],
                    shape[1],
                    shape[3],
                    shape[1] * shape[2] * shape[3],
                    shape[3],
                    shape[2] * shape[3]};
  ops().rope(heads, table, Pass::forward);
  EXPECT_LE(relative_error(get(x), reference("ops/rope/y")), tolerance());
}

TEST_P(Rope, IsExactAtFarPositions) {
  for (const std::int64_t dim : {64, 128}) {
    const Floats x = random_activations(dim, 1);
    for (const std::int64_t position : {255, 256, 257, 4095, 16383, 65535}) {
      EXPECT_LE(relative_error(rotate(x, dim, position),
                               exact_rotation(x, dim, position)),
                rounding())
          << position;
    }
  }
}

TEST_P(Rope, BackwardUndoesForward) {
  const Floats x = random_activations(33 * 20, 1);
  const Floats there = rotate(x, 20, 1000);
  EXPECT_LE(relative_error(rotate(there, 20, 1000, Pass::backward), x),
            2 * rounding());
  EXPECT_GT(relative_error(rotate(there, 20, 1000), x), 0.1);
}

TEST_P(Rope, KeepsScoresThatDependOnTheDistanceAlone) {
  const Floats q = random_activations(64, 1), k = random_activations(64, 2);
  const auto score = [&](std::int64_t at_q, std::int64_t at_k) {
    const Floats a = rotate(q, 64, at_q), b = rotate(k, 64, at_k);
    double sum = 0;
    for (int i = 0; i < 64; ++i) sum += double(a[i]) * double(b[i]);
    return sum;
  };
  const double scale = 64;  // |q|·|k|
  for (const std::int64_t shift : {1, 256, 4096, 60000}) {
    EXPECT_NEAR(score(17 + shift, 5 + shift), score(17, 5),
                2 * scale * rounding());
  }
}

TEST_P(Rope, LeavesOtherPartsOfPackedRowsAlone) {
  const std::int64_t batch = 2, tokens = 5, heads = 3, d = 24;
  const Floats x = random_activations(batch * tokens * 3 * d, 1);
  const Tensor qkv = activations(x, {batch * tokens, 3 * d});
  const Tensor table = fp32(rope_table(tokens, 8, 10000.0), {tokens, 4, 2});
  ops().rope(packed_heads(qkv, 1, batch, heads), table, Pass::forward);
  const Floats got = get(qkv);
  for (std::int64_t i = 0; i < std::ssize(x); ++i) {
    const bool is_k = i / d % 3 == 1;
    if (!is_k) {
      ASSERT_EQ(got[i], x[i]) << i;
    }
  }
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t at = ((b * tokens + t) * 3 + 1) * d + h * 8;
        const Doubles wanted =
            exact_rotation({x.begin() + at, x.begin() + at + 8}, 8, t);
        EXPECT_LE(relative_error(std::span(&got[at], 8), wanted), rounding());
      }
    }
  }
}

TEST_P(Rope, RefusesOddHeadsAndShortTables) {
  const Tensor odd = zeros(dtype(), {4, 7}), even = zeros(dtype(), {4, 8});
  EXPECT_THROW(ops().rope(row_heads(odd, 1, 1), zeros(Dtype::f32, {4, 3, 2}),
                          Pass::forward),
               Error);
  EXPECT_THROW(ops().rope(row_heads(even, 1, 1), zeros(Dtype::f32, {3, 4, 2}),
                          Pass::forward),
               Error);
  EXPECT_THROW(ops().rope(row_heads(even, 1, 1), zeros(Dtype::f32, {4, 3, 2}),
                          Pass::forward),
               Error);
}

// --- SwiGLU
// -------------------------------------------------------------------
class Swiglu : public BackendTest {
 protected:
  static Floats joined(const Floats& gate, const Floats& up,
                       std::int64_t width) {
    Floats rows;
    for (std::int64_t at = 0; at < std::ssize(gate); at += width) {
      rows.insert(rows.end(), &gate[at], &gate[at] + width);
      rows.insert(rows.end(), &up[at], &up[at] + width);
    }
    return rows;
  }
};
INSTANTIATE_BACKENDS(Swiglu);

TEST_P(Swiglu, MatchesPyTorchInDoublePrecision) {
  const auto shape = reference_shape("ops/swiglu/y");
  const std::int64_t rows = shape[0], width = shape[1];
  const Tensor gate_up = activations(
      joined(reference("ops/swiglu/gate"), reference("ops/swiglu/up"), width),
      {rows, 2 * width});
  const Tensor y = zeros(dtype(), {rows, width});
  ops().swiglu(y, gate_up);
  EXPECT_LE(relative_error(get(y), reference("ops/swiglu/y")), tolerance());

  const Tensor dgate_up = zeros(dtype(), {rows, 2 * width});
  const Tensor dy = activations(reference("ops/swiglu/dy"), {rows, width});
  ops().swiglu_backward(dgate_up, dy, gate_up);
  EXPECT_EQ(get(dy), get(y));
  EXPECT_LE(
      relative_error(get(dgate_up), joined(reference("ops/swiglu/dgate"),
                                           reference("ops/swiglu/dup"), width)),
      tolerance());
}

TEST_P(Swiglu, BackwardEqualsCentralDifferencesAndMayWriteInPlace) {
  for (const auto& [rows, width] : {std::pair{1, 1}, {3, 7}, {5, 24}}) {
    const Floats x = random_activations(rows * 2 * width, 1, 3);
    const Floats dy = random_activations(rows * width, 2);
    const Doubles wanted = exact::gradient(
        [w = width](const Doubles& at) { return exact::swiglu(at, w); },
        {x.begin(), x.end()}, {dy.begin(), dy.end()});
    const Tensor gate_up = activations(x, {rows, 2 * width});
    ops().swiglu_backward(gate_up, activations(dy, {rows, width}), gate_up);
    EXPECT_LE(relative_error(get(gate_up), wanted), tolerance()) << width;
  }
}

TEST_P(Swiglu, SaturatesForLargeGates) {
  const Floats gates = {-1e4f, -200, -88.5f, 88.5f, 200, 1e4f};
  const Floats ones(6, 1);
  const Tensor gate_up = activations(joined(gates, ones, 6), {1, 12});
  const Tensor y = zeros(dtype(), {1, 6});
  ops().swiglu(y, gate_up);
  ops().swiglu_backward(gate_up, activations(ones, {1, 6}), gate_up);
  const Floats got = get(y), d = get(gate_up);
  const Floats expected = rounded(gates);
  for (int i = 0; i < 6; ++i) {
    EXPECT_NEAR(got[i], i < 3 ? 0 : expected[i], 1e-30);
    EXPECT_NEAR(d[i], i < 3 ? 0 : 1, 1e-6);
    EXPECT_NEAR(d[6 + i], i < 3 ? 0 : expected[i], 1e-30);
  }
}

TEST_P(Swiglu, RefusesWrongShapes) {
  EXPECT_THROW(ops().swiglu(zeros(dtype(), {3, 8}), zeros(dtype(), {3, 8})),
               Error);
  EXPECT_THROW(
      ops().swiglu_backward(zeros(dtype(), {3, 16}), zeros(dtype(), {2, 8}),
                            zeros(dtype(), {3, 16})),
      Error);
}

// --- embedding
// ------------------------------------------------------------------
class Embedding : public BackendTest {};
INSTANTIATE_BACKENDS(Embedding);

TEST_P(Embedding, PicksRows) {
  for (const std::int64_t width : {1, 7, 16, 127}) {
    const Floats weight = random_activations(11 * width, 1);
    const std::vector<std::int32_t> picked = {10, 0, 3, 3, 7};
    const Tensor out = zeros(dtype(), {5, width});
    ops().embedding(out, activations(weight, {11, width}), ids(picked));
    Floats wanted;
    for (const std::int64_t id : picked) {
      wanted.insert(wanted.end(), &weight[id * width],
                    &weight[id * width] + width);
    }
    EXPECT_EQ(get(out), wanted);
  }
}

TEST_P(Embedding, AddsUpTheGradientsOfRepeatedIds) {
  for (const std::int64_t width : {1, 7, 16, 130}) {
    const std::int64_t count = 1000, vocabulary = 127;
    const auto picked = random_ids(count, 20, 1);  // ids from 20 on are unused
    const Floats dout = random_activations(count * width, 2);
    for (const Dtype type : gradient_dtypes()) {
      const Tensor dweight =
          put(type, random_floats(vocabulary * width, 3), {vocabulary, width});
      const Floats before = get(dweight);
      ops().embedding_backward(dweight, activations(dout, {count, width}),
                               ids(picked), Accumulate::yes);
      Doubles wanted(before.begin(), before.end());
      for (std::int64_t i = 0; i < count * width; ++i) {
        wanted[picked[i / width] * width + i % width] += dout[i];
      }
      const Floats got = get(dweight);
      EXPECT_LE(relative_error(got, wanted),
                type == Dtype::f32 ? 1e-6 : gradient_tolerance(type));
      EXPECT_TRUE(std::equal(got.begin() + 20 * width, got.end(),
                             before.begin() + 20 * width));
    }
  }
}

TEST_P(Embedding, WritesItsGradientOverWhatIsThere) {
  const std::int64_t count = 100, width = 24, vocabulary = 11;
  const Tensor picked = ids(random_ids(count, 8, 1));
  const Tensor dout =
      activations(random_activations(count * width, 2), {count, width});
  for (const Dtype type : gradient_dtypes()) {
    const Tensor added = zeros(type, {vocabulary, width});
    const Tensor written =
        put(type, Floats(vocabulary * width, NAN), added.shape);
    ops().embedding_backward(added, dout, picked, Accumulate::yes);
    ops().embedding_backward(written, dout, picked, Accumulate::no);
    EXPECT_EQ(get(written), get(added)) << name_of(type);
  }
}

TEST_P(Embedding, GivesTheSameBitsEveryTime) {
  const std::int64_t count = 4096, width = 48;
  const Tensor picked = ids(random_ids(count, 3, 1));
  const Tensor dout =
      activations(random_floats(count * width, 2), {count, width});
  Floats first;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const Tensor dweight = zeros(Dtype::f32, {5, width});
    ops().embedding_backward(dweight, dout, picked, Accumulate::yes);
    if (repeat == 0) first = get(dweight);
    EXPECT_EQ(get(dweight), first);
  }
}

TEST_P(Embedding, RefusesWrongShapes) {
  const Tensor weight = zeros(dtype(), {11, 8});
  const Tensor out = zeros(dtype(), {5, 8});
  EXPECT_THROW(ops().embedding(out, weight, ids({1, 2, 3})), Error);
  EXPECT_THROW(
      ops().embedding(zeros(dtype(), {5, 7}), weight, ids({1, 2, 3, 4, 5})),
      Error);
  for (const Dtype type : {Dtype::i32, Dtype::bf16}) {
    if (type == dtype()) continue;
    EXPECT_THROW(
        ops().embedding_backward(zeros(type, {11, 8}), out,
                                 ids({1, 2, 3, 4, 5}), Accumulate::yes),
        Error);
  }
  if (!on_cpu()) return;  // a GPU would have to read the ids back
  EXPECT_THROW(ops().embedding(out, weight, ids({1, 2, 3, 4, 11})), Error);
  EXPECT_THROW(ops().embedding(out, weight, ids({1, 2, 3, 4, -1})), Error);
}

}  // namespace
}  // namespace lockstep::test
