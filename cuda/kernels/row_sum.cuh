#pragma once

#include "cuda/kernels/common.cuh"

// What softmax and cross-entropy share: a block has a row of elements.
namespace lockstep::kernels {

// Σ exp(x − maximum) over what has been seen so far (Milakov & Gimelshein
// 2018, algorithm 3), a few elements at a time.
struct OnlineSum {
  float maximum = -INFINITY;
  float sum = 0;

  template <int width>
  __device__ void add(const float (&x)[width]) {
    float best = maximum;
#pragma unroll
    for (int w = 0; w < width; ++w) best = fmaxf(best, x[w]);
    // While there is nothing but masked elements (−∞), their sum stays 0.
    const float from = best == -INFINITY ? 0.0f : best;
    if (best > maximum) sum *= expf(maximum - best);
    maximum = best;
#pragma unroll
    for (int w = 0; w < width; ++w) sum += expf(x[w] - from);
  }
};

// Calls visit(index, values) over a row's first `count` elements: packs of
// `width`, then single ones.
template <int width, class T, class Visit>
__device__ void for_row(T* row, std::int64_t count, Visit visit) {
  const std::int64_t whole = count / width * width;
  for (std::int64_t i = std::int64_t{threadIdx.x} * width; i < whole;
       i += std::int64_t{blockDim.x} * width) {
    float x[width];
    load(x, row + i);
    visit(i, x);
  }
  for (std::int64_t i = whole + threadIdx.x; i < count; i += blockDim.x) {
    float x[1];
    load(x, row + i);
    visit(i, x);
  }
}

// The maximum of scale·x over a row and Σ exp(scale·x − maximum), the same on
// all threads.
template <int width, class T>
__device__ OnlineSum sum_row(const T* row, std::int64_t count, float scale) {
  OnlineSum mine;
  for_row<width>(row, count, [&](std::int64_t, auto& x) {
    for (float& value : x) value *= scale;
    mine.add(x);
  });
  __shared__ float of_warp[32];
  float maximum = mine.maximum;
  for (int offset = 16; offset > 0; offset /= 2) {
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, offset));
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = maximum;
  __syncthreads();
  for (int warp = 0; warp < blockDim.x / 32; ++warp) {
    maximum = fmaxf(maximum, of_warp[warp]);
  }
  const float scaled =
      mine.sum == 0 ? 0.0f : mine.sum * expf(mine.maximum - maximum);
  return {maximum, block_sum(scaled)};
}

// Threads for a row that is read in accesses of `width` elements.
inline unsigned threads_for(std::int64_t count, int width) {
  return row_threads(divide_up(count, width * 4), 512);
}

}  // namespace lockstep::kernels
