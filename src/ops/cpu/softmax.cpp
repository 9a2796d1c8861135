#include <cmath>

#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/numeric.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_sum.h"

namespace lockstep {

void CpuOps::softmax(const Tensor& scores, const Tensor& lse, float scale,
                     bool causal) {
  check_scores(scores, dtype_, causal, "softmax: scores");
  check(lse, Dtype::f32, {scores[0], scores[1], scores[2]}, "softmax: lse");
  const std::int64_t queries = scores[2], keys = scores[3];
  with_storage([&]<class T>(T) {
    parallel_for(scores.elements() / keys, keys, [&](std::int64_t index) {
      T* row = scores.as<T>() + index * keys;
      const std::int64_t visible = causal ? index % queries + 1 : keys;
      const RowSum sum = row_sum(row, visible, scale);
      lse.as<float>()[index] = sum.largest + std::log(sum.exponentials);
      const float inverse = 1.0f / sum.exponentials;
#pragma omp simd
      for (std::int64_t i = 0; i < visible; ++i) {
        store(row[i], fast_exp(scale * load(row[i]) - sum.largest) * inverse);
      }
      std::fill(row + visible, row + keys, T{});
    });
  });
}

void CpuOps::softmax_backward(const Tensor& dp, const Tensor& p, float scale) {
  check_scores(p, dtype_, /*causal=*/false, "softmax_backward: p");
  check(dp, dtype_, p.shape, "softmax_backward: dp");
  const std::int64_t keys = p[3];
  with_storage([&]<class T>(T) {
    parallel_for(p.elements() / keys, keys, [&](std::int64_t index) {
      T* to = dp.as<T>() + index * keys;
      const T* of = p.as<T>() + index * keys;
      float delta = 0;
#pragma omp simd reduction(+ : delta)
      for (std::int64_t i = 0; i < keys; ++i)
        delta += load(of[i]) * load(to[i]);
#pragma omp simd
      for (std::int64_t i = 0; i < keys; ++i) {
        store(to[i], scale * load(of[i]) * (load(to[i]) - delta));
      }
    });
  });
}

}  // namespace lockstep
