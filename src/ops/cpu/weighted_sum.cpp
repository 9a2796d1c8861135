#include <algorithm>
#include <vector>

#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/numeric.h"
#include "ops/cpu/parallel.h"

namespace lockstep {

void CpuOps::weighted_sum(const Tensor& y, const Tensor& x,
                          const Tensor& weight) {
  check_matrix(x, dtype_, "weighted_sum: x");
  check(y, dtype_, {x[0]}, "weighted_sum: y");
  check(weight, dtype_, {x[1]}, "weighted_sum: weight");
  const std::int64_t width = x[1];
  with_storage([&]<class T>(T) {
    parallel_for(x[0], width, [&](std::int64_t n) {
      const T* row = x.as<T>() + n * width;
      const T* w = weight.as<T>();
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t i = 0; i < width; ++i) sum += load(w[i]) * load(row[i]);
      store(y.as<T>()[n], sum);
    });
  });
}

void CpuOps::weighted_sum_backward(const Tensor& dx, const Tensor& dweight,
                                   const Tensor& dy, const Tensor& x,
                                   const Tensor& weight) {
  check_weighted_sum_backward(dx, dweight, dy, x, weight, dtype_);
  const std::int64_t count = x[0], width = x[1];
  // Every thread has columns of its own, and goes through all rows of them.
  constexpr std::int64_t columns = 256;
  with_storage([&]<class T>(T) {
    parallel_for((width + columns - 1) / columns, columns * count,
                 [&](std::int64_t piece) {
                   const std::int64_t begin = piece * columns;
                   const std::int64_t end = std::min(width, begin + columns);
                   const T* w = weight.as<T>();
                   float* sum = dweight.as<float>();
                   std::fill(sum + begin, sum + end, 0.0f);
                   for (std::int64_t n = 0; n < count; ++n) {
                     const float g = load(dy.as<T>()[n]);
                     const T* row = x.as<T>() + n * width;
                     T* out = dx.as<T>() + n * width;
#pragma omp simd
                     for (std::int64_t i = begin; i < end; ++i) {
                       sum[i] += g * load(row[i]);
                       store(out[i], g * load(w[i]));
                     }
                   }
                 });
  });
}

}  // namespace lockstep
