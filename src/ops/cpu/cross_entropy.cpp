#include <algorithm>
#include <cmath>

#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/numeric.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_sum.h"

namespace lockstep {
namespace {

// Not log-sum-exp minus logit: with logits of 1e4 that would round away the
// loss itself.
float loss_of(const RowSum& row, float target_logit) {
  return (row.largest - target_logit) + std::log(row.exponentials);
}

template <class T>
void gradient_row(T* logits, const RowSum& row, std::int64_t target,
                  std::int64_t vocabulary, std::int64_t stride, float scale) {
  const float factor = scale / row.exponentials;
  const float at_target =
      fast_exp(load(logits[target]) - row.largest) * factor - scale;
#pragma omp simd
  for (std::int64_t i = 0; i < vocabulary; ++i) {
    store(logits[i], fast_exp(load(logits[i]) - row.largest) * factor);
  }
  store(logits[target], at_target);
  std::fill(logits + vocabulary, logits + stride, T{});
}

void check_arguments(const Tensor& losses, const Tensor& logits,
                     const Tensor& targets, std::int64_t vocabulary,
                     Dtype dtype) {
  check_matrix(logits, dtype, "cross_entropy: logits");
  require(vocabulary >= 1, "cross_entropy: a vocabulary of {}", vocabulary);
  check_wide(logits, dtype, logits[0], vocabulary, "cross_entropy: logits");
  check(losses, Dtype::f32, {logits[0]}, "cross_entropy: losses");
  check_ids(targets, logits[0], vocabulary, "cross_entropy: targets");
}

}  // namespace

void CpuOps::cross_entropy(const Tensor& losses, const Tensor& logits,
                           const Tensor& targets, std::int64_t vocabulary) {
  check_arguments(losses, logits, targets, vocabulary, dtype_);
  const std::int32_t* target = targets.as<std::int32_t>();
  float* loss = losses.as<float>();
  with_storage([&]<class T>(T) {
    parallel_for(logits[0], 4 * vocabulary, [&](std::int64_t n) {
      const T* row = static_cast<const T*>(logits.data) + n * logits[1];
      loss[n] = loss_of(row_sum(row, vocabulary), load(row[target[n]]));
    });
  });
}

void CpuOps::cross_entropy_backward(const Tensor& losses, const Tensor& logits,
                                    const Tensor& targets,
                                    std::int64_t vocabulary, float scale) {
  check_arguments(losses, logits, targets, vocabulary, dtype_);
  const std::int32_t* target = targets.as<std::int32_t>();
  float* loss = losses.as<float>();
  with_storage([&]<class T>(T) {
    parallel_for(logits[0], 8 * vocabulary, [&](std::int64_t n) {
      T* row = static_cast<T*>(logits.data) + n * logits[1];
      const RowSum sum = row_sum(row, vocabulary);
      loss[n] = loss_of(sum, load(row[target[n]]));
      gradient_row(row, sum, target[n], vocabulary, logits[1], scale);
    });
  });
}

}  // namespace lockstep
