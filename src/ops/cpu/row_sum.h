#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "ops/cpu/numeric.h"

namespace lockstep {

// The largest of scale·x over a row, and Σ e^(scale·x − largest): what softmax
// and cross-entropy need of it.
struct RowSum {
  float largest;
  float exponentials;
};

template <class T>
RowSum row_sum(const T* x, std::int64_t count, float scale = 1) {
  float largest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, scale * load(x[i]));
  }
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) {
    sum += fast_exp(scale * load(x[i]) - largest);
  }
  return {largest, sum};
}

}  // namespace lockstep
