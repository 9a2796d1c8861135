#pragma once

#include <cstdint>

namespace lockstep {

// Gives BLAS its number of threads, and kernels that fit this processor.
void set_up_blas(int threads);

// fp32 matrix products by CBLAS on row-major matrices with row strides:
// c[rows, columns] = op(a)·op(b) + beta·c, summing over `inner`.
enum class Op { plain, transposed };
struct Matrix {
  const float* data;
  std::int64_t stride;
  Op op = Op::plain;
};
void matrix_product(float* c, std::int64_t c_stride, std::int64_t rows,
                    std::int64_t columns, std::int64_t inner, const Matrix& a,
                    const Matrix& b, float beta);

}  // namespace lockstep
