#include <algorithm>
#include <cmath>

#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/numeric.h"
#include "ops/cpu/parallel.h"

namespace lockstep {
namespace {

constexpr float epsilon = 1e-5f;

// One row; `add` may be null. Returns its inverse rms.
template <class T>
float norm_row(T* y, T* residual, const T* x, const T* add, const T* weight,
               std::int64_t width) {
  float squares = 0;
  // The check takes loops behind pragmas for equal.
  // NOLINTNEXTLINE(bugprone-branch-clone)
  if (add != nullptr) {
#pragma omp simd reduction(+ : squares)
    for (std::int64_t i = 0; i < width; ++i) {
      store(residual[i], load(x[i]) + load(add[i]));
      squares += load(residual[i]) * load(residual[i]);
    }
  } else {
#pragma omp simd reduction(+ : squares)
    for (std::int64_t i = 0; i < width; ++i) {
      residual[i] = x[i];
      squares += load(residual[i]) * load(residual[i]);
    }
  }
  const float inverse =
      1.0f / std::sqrt(squares / static_cast<float>(width) + epsilon);
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    store(y[i], load(residual[i]) * inverse * load(weight[i]));
  }
  return inverse;
}

// With n = residual·inverse and g = dy·weight:
//   dresidual += inverse·(g − n·mean(g·n));  dweight += dy·n
template <class T>
void norm_row_backward(T* dresidual, float* dweight, const T* dy,
                       const T* residual, float inverse, const T* weight,
                       std::int64_t width) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (std::int64_t i = 0; i < width; ++i) {
    dot += load(dy[i]) * load(weight[i]) * load(residual[i]);
  }
  const float mean = dot * inverse / static_cast<float>(width);
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    const float normed = load(residual[i]) * inverse;
    const float gradient = load(dy[i]) * load(weight[i]) - normed * mean;
    store(dresidual[i], load(dresidual[i]) + inverse * gradient);
    dweight[i] += load(dy[i]) * normed;
  }
}

}  // namespace

void CpuOps::rmsnorm(const Tensor& y, const Tensor& residual,
                     const Tensor& inverse_rms, const Tensor& x,
                     const Tensor& add, const Tensor& weight) {
  check_matrix(x, dtype_, "rmsnorm: x");
  const std::int64_t rows = x[0], width = x[1];
  check(y, dtype_, x.shape, "rmsnorm: y");
  check(residual, dtype_, x.shape, "rmsnorm: residual");
  check(inverse_rms, Dtype::f32, {rows}, "rmsnorm: inverse_rms");
  check(weight, dtype_, {width}, "rmsnorm: weight");
  if (add) check(add, dtype_, x.shape, "rmsnorm: add");

  with_storage([&]<class T>(T) {
    float* inverse = inverse_rms.as<float>();
    parallel_for(rows, width, [&, w = weight.as<T>()](std::int64_t row) {
      const std::int64_t at = row * width;
      inverse[row] = norm_row(
          static_cast<T*>(y.data) + at, static_cast<T*>(residual.data) + at,
          static_cast<const T*>(x.data) + at,
          add ? static_cast<const T*>(add.data) + at : nullptr, w, width);
    });
  });
}

void CpuOps::rmsnorm_backward(const Tensor& dresidual, const Tensor& dweight,
                              const Tensor& dy, const Tensor& residual,
                              const Tensor& inverse_rms, const Tensor& weight,
                              Accumulate accumulate) {
  check_matrix(dy, dtype_, "rmsnorm_backward: dy");
  const std::int64_t rows = dy[0], width = dy[1];
  check(dresidual, dtype_, dy.shape, "rmsnorm_backward: dresidual");
  check(dweight, gradient_dtype(dweight, dtype_), {width},
        "rmsnorm_backward: dweight");
  check(residual, dtype_, dy.shape, "rmsnorm_backward: residual");
  check(inverse_rms, Dtype::f32, {rows}, "rmsnorm_backward: inverse_rms");
  check(weight, dtype_, {width}, "rmsnorm_backward: weight");

  // Rows are cut into blocks by their number alone; each block sums its part
  // of dweight, and the parts are added in order.
  const std::int64_t blocks = std::clamp<std::int64_t>(rows / 16, 1, 64);
  float* parts = scratch(Scratch::partial_sums, blocks * width);
  with_storage([&]<class T>(T) {
    const float* inverse = inverse_rms.as<float>();
    const T* w = weight.as<T>();
    parallel_for(blocks, rows / blocks * width, [&](std::int64_t block) {
      float* part = parts + block * width;
      std::fill_n(part, width, 0.0f);
      const std::int64_t end = rows * (block + 1) / blocks;
      for (std::int64_t row = rows * block / blocks; row < end; ++row) {
        const std::int64_t at = row * width;
        norm_row_backward(static_cast<T*>(dresidual.data) + at, part,
                          static_cast<const T*>(dy.data) + at,
                          static_cast<const T*>(residual.data) + at,
                          inverse[row], w, width);
      }
    });
  });
  sum_in_fp32(dweight, accumulate, [&](float* sum) {
    if (accumulate == Accumulate::no) std::fill_n(sum, width, 0.0f);
    for (std::int64_t block = 0; block < blocks; ++block) {
      const float* part = parts + block * width;
#pragma omp simd
      for (std::int64_t i = 0; i < width; ++i) sum[i] += part[i];
    }
  });
}

}  // namespace lockstep
