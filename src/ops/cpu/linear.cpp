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

Op blas_op(Transpose transpose) {
  return transpose == Transpose::yes ? Op::transposed : Op::plain;
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

void CpuOps::multiply_rows(const Tensor& to, std::int64_t columns,
                           const Tensor& from, std::int64_t inner,
                           const Tensor& weight, Transpose op) {
  const WideMatrix w = widen(weight, weight[1], Scratch::wide_b);
  const bool direct = dtype_ == Dtype::f32;
  const std::int64_t step = rows_at_once(dtype_, std::max(columns, inner));
  for (std::int64_t row = 0; row < from[0]; row += step) {
    const std::int64_t count = std::min(step, from[0] - row);
    const WideMatrix a = widen(from.rows(row, count), inner, Scratch::wide_a);
    const Tensor out = to.rows(row, count);
    float* c =
        direct ? out.as<float>() : scratch(Scratch::wide_c, count * columns);
    matrix_product(c, direct ? out[1] : columns, count, columns, inner,
                   {a.data, a.stride}, {w.data, w.stride, blas_op(op)}, 0.0f);
    if (!direct) round_rows(out, columns, c);
  }
}

void CpuOps::linear(const Tensor& y, const Tensor& x, const Tensor& weight) {
  check_matrix(weight, dtype_, "linear: weight");
  check_matrix(x, dtype_, "linear: x");
  const std::int64_t out = weight[0], in = weight[1];
  check(x, dtype_, {x[0], in}, "linear: x");
  check_wide(y, dtype_, x[0], out, "linear: y");
  multiply_rows(y, out, x, in, weight, Transpose::yes);
}

void CpuOps::linear_backward_input(const Tensor& dx, const Tensor& dy,
                                   const Tensor& weight) {
  check_matrix(weight, dtype_, "linear_backward_input: weight");
  check_matrix(dx, dtype_, "linear_backward_input: dx");
  const std::int64_t out = weight[0], in = weight[1];
  check(dx, dtype_, {dx[0], in}, "linear_backward_input: dx");
  check_wide(dy, dtype_, dx[0], out, "linear_backward_input: dy");
  multiply_rows(dx, in, dy, out, weight, Transpose::no);
}

void CpuOps::linear_backward_weight(const Tensor& dweight, const Tensor& dy,
                                    const Tensor& x, Accumulate accumulate) {
  check_matrix(dweight, gradient_dtype(dweight, dtype_),
               "linear_backward_weight: dweight");
  check_matrix(x, dtype_, "linear_backward_weight: x");
  const std::int64_t out = dweight[0], in = dweight[1];
  check(x, dtype_, {x[0], in}, "linear_backward_weight: x");
  check_wide(dy, dtype_, x[0], out, "linear_backward_weight: dy");

  const std::int64_t step = rows_at_once(dtype_, std::max(in, out));
  sum_in_fp32(dweight, accumulate, [&](float* sums) {
    for (std::int64_t row = 0; row < x[0]; row += step) {
      const std::int64_t count = std::min(step, x[0] - row);
      const WideMatrix a = widen(dy.rows(row, count), out, Scratch::wide_a);
      const WideMatrix b = widen(x.rows(row, count), in, Scratch::wide_b);
      matrix_product(sums, in, out, in, count,
                     {a.data, a.stride, Op::transposed}, {b.data, b.stride},
                     row > 0 || accumulate == Accumulate::yes ? 1.0f : 0.0f);
    }
  });
}

void CpuOps::matmul(const Heads& c, const Heads& a, Transpose op_a,
                    const Heads& b, Transpose op_b) {
  check_matmul(c, a, op_a, b, op_b, dtype_);
  // Rows of one head as rows of a matrix that are token_stride apart.
  const auto matrix = [](const Heads& x, std::int64_t sequence,
                         std::int64_t head) {
    const std::int64_t first = sequence * x.batch_stride + head * x.head_stride;
    return Tensor(static_cast<std::byte*>(x.data) + first * bytes_of(x.dtype),
                  x.dtype, {x.tokens, x.token_stride});
  };
  const std::int64_t inner = op_a == Transpose::yes ? a.tokens : a.head_dim;
  const bool direct = dtype_ == Dtype::f32;
  for (std::int64_t sequence = 0; sequence < c.batch; ++sequence) {
    for (std::int64_t head = 0; head < c.heads; ++head) {
      const WideMatrix left =
          widen(matrix(a, sequence, head), a.head_dim, Scratch::wide_a);
      const WideMatrix right =
          widen(matrix(b, sequence, head), b.head_dim, Scratch::wide_b);
      const Tensor to = matrix(c, sequence, head);
      float* product = direct ? to.as<float>()
                              : scratch(Scratch::wide_c, c.tokens * c.head_dim);
      matrix_product(product, direct ? to[1] : c.head_dim, c.tokens, c.head_dim,
                     inner, {left.data, left.stride, blas_op(op_a)},
                     {right.data, right.stride, blas_op(op_b)}, 0.0f);
      if (!direct) round_rows(to, c.head_dim, product);
    }
  }
}

}  // namespace lockstep
