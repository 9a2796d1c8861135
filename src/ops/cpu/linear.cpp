#include <algorithm>

#include "ops/checks.h"
#include "ops/cpu/blas.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/numeric.h"
#include "ops/cpu/parallel.h"

namespace lockstep {
namespace {

// Rows that are worked on at a time: all of them where operands are used in
// place, few enough where they are widened that scratch stays small.
constexpr std::int64_t wide_elements = std::int64_t{1} << 24;
constexpr std::int64_t rows_in_place = std::int64_t{1} << 30;

std::int64_t rows_at_once(Dtype dtype, std::int64_t width) {
  return dtype == Dtype::f32 ? rows_in_place
                             : std::max<std::int64_t>(1, wide_elements / width);
}

void round_rows(const Tensor& to, std::int64_t columns, const float* from) {
  bfloat16* out = to.as<bfloat16>();
  parallel_for(to[0], columns, [&](std::int64_t row) {
    bfloat16* y = out + row * to[1];
    const float* x = from + row * columns;
#pragma omp simd
    for (std::int64_t i = 0; i < columns; ++i) store(y[i], x[i]);
  });
}

}  // namespace

CpuOps::WideMatrix CpuOps::widen(const Tensor& matrix, std::int64_t columns,
                                 Scratch purpose) {
  if (matrix.dtype == Dtype::f32) return {matrix.as<float>(), matrix[1]};
  float* wide = scratch(purpose, matrix[0] * columns);
  const bfloat16* narrow = matrix.as<bfloat16>();
  parallel_for(matrix[0], columns, [&](std::int64_t row) {
    const bfloat16* x = narrow + row * matrix[1];
    float* y = wide + row * columns;
#pragma omp simd
    for (std::int64_t i = 0; i < columns; ++i) y[i] = load(x[i]);
  });
  return {wide, columns};
}

void CpuOps::linear(const Tensor& y, const Tensor& x, const Tensor& weight) {
  check_matrix(weight, dtype_, "linear: weight");
  check_matrix(x, dtype_, "linear: x");
  const std::int64_t out = weight[0], in = weight[1];
  check(x, dtype_, {x[0], in}, "linear: x");
  check_wide(y, dtype_, x[0], out, "linear: y");

  const WideMatrix w = widen(weight, in, Scratch::wide_b);
  const std::int64_t step = rows_at_once(dtype_, std::max(in, out));
  for (std::int64_t row = 0; row < x[0]; row += step) {
    const std::int64_t count = std::min(step, x[0] - row);
    const WideMatrix a = widen(x.rows(row, count), in, Scratch::wide_a);
    const Tensor to = y.rows(row, count);
    const bool direct = dtype_ == Dtype::f32;
    float* c = direct ? to.as<float>() : scratch(Scratch::wide_c, count * out);
    matrix_product(c, direct ? y[1] : out, count, out, in, {a.data, a.stride},
                   {w.data, w.stride, Op::transposed}, 0.0f);
    if (!direct) round_rows(to, out, c);
  }
}

void CpuOps::linear_backward_input(const Tensor& dx, const Tensor& dy,
                                   const Tensor& weight) {
  check_matrix(weight, dtype_, "linear_backward_input: weight");
  check_matrix(dx, dtype_, "linear_backward_input: dx");
  const std::int64_t out = weight[0], in = weight[1];
  check(dx, dtype_, {dx[0], in}, "linear_backward_input: dx");
  check_wide(dy, dtype_, dx[0], out, "linear_backward_input: dy");

  const WideMatrix w = widen(weight, in, Scratch::wide_b);
  const std::int64_t step = rows_at_once(dtype_, std::max(in, out));
  for (std::int64_t row = 0; row < dx[0]; row += step) {
    const std::int64_t count = std::min(step, dx[0] - row);
    const WideMatrix a = widen(dy.rows(row, count), out, Scratch::wide_a);
    const Tensor to = dx.rows(row, count);
    const bool direct = dtype_ == Dtype::f32;
    float* c = direct ? to.as<float>() : scratch(Scratch::wide_c, count * in);
    matrix_product(c, in, count, in, out, {a.data, a.stride},
                   {w.data, w.stride}, 0.0f);
    if (!direct) round_rows(to, in, c);
  }
}

void CpuOps::linear_backward_weight(const Tensor& dweight, const Tensor& dy,
                                    const Tensor& x, Accumulate accumulate) {
  check_matrix(dweight, Dtype::f32, "linear_backward_weight: dweight");
  check_matrix(x, dtype_, "linear_backward_weight: x");
  const std::int64_t out = dweight[0], in = dweight[1];
  check(x, dtype_, {x[0], in}, "linear_backward_weight: x");
  check_wide(dy, dtype_, x[0], out, "linear_backward_weight: dy");

  const std::int64_t step = rows_at_once(dtype_, std::max(in, out));
  for (std::int64_t row = 0; row < x[0]; row += step) {
    const std::int64_t count = std::min(step, x[0] - row);
    const WideMatrix a = widen(dy.rows(row, count), out, Scratch::wide_a);
    const WideMatrix b = widen(x.rows(row, count), in, Scratch::wide_b);
    matrix_product(dweight.as<float>(), in, out, in, count,
                   {a.data, a.stride, Op::transposed}, {b.data, b.stride},
                   row > 0 || accumulate == Accumulate::yes ? 1.0f : 0.0f);
  }
}

}  // namespace lockstep
