#pragma once

#include "cuda/kernels/common.cuh"

// What softmax and cross-entropy share: a block has a row of elements.
namespace lockstep::kernels {

// Σ exp(x − maximum) over what has been seen so far of elements T (Milakov &
// Gimelshein 2018, algorithm 3), a few at a time.
template <class T>
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
    if (best > maximum) sum *= exponential<T>(maximum, best);
    maximum = best;
#pragma unroll
    for (int w = 0; w < width; ++w) sum += exponential<T>(x[w], from);
  }
};

// A thread's part of a row: packs of elements, this many in flight at a time.
constexpr int packs_at_once = 4;

// Calls visit(index, values[rows][width]) over the first `count` elements of
// some rows of one length: packs of `width`, then single elements. All of a
// thread's packs are asked for before the first is made into fp32.
template <int width, class Visit, class T, class... Rest>
__device__ void for_row(std::int64_t count, Visit visit, const T* first,
                        const Rest*... rest) {
  constexpr int rows = 1 + sizeof...(rest);
  const T* const row[rows] = {first, rest...};
  const std::int64_t whole = count / width * width;
  const std::int64_t step = std::int64_t{blockDim.x} * width;
  for (std::int64_t i = std::int64_t{threadIdx.x} * width; i < whole;
       i += packs_at_once * step) {
    Pack<T, width> packs[packs_at_once][rows];
#pragma unroll
    for (int p = 0; p < packs_at_once; ++p) {
      if (i + p * step >= whole) continue;
#pragma unroll
      for (int r = 0; r < rows; ++r)
        packs[p][r] = load_pack<width>(row[r] + i + p * step);
    }
#pragma unroll
    for (int p = 0; p < packs_at_once; ++p) {
      if (i + p * step >= whole) continue;
      float x[rows][width];
#pragma unroll
      for (int r = 0; r < rows; ++r) to_float(x[r], packs[p][r]);
      visit(i + p * step, x);
    }
  }
  for (std::int64_t i = whole + threadIdx.x; i < count; i += blockDim.x) {
    float x[rows][1];
#pragma unroll
    for (int r = 0; r < rows; ++r) load(x[r], row[r] + i);
    visit(i, x);
  }
}

// The maximum of scale·x over a row and Σ exp(scale·x − maximum), the same on
// all threads.
template <int width, class T>
__device__ OnlineSum<T> sum_row(const T* row, std::int64_t count, float scale) {
  OnlineSum<T> mine;
  for_row<width>(
      count,
      [&](std::int64_t, auto& x) {
        for (float& value : x[0]) value *= scale;
        mine.add(x[0]);
      },
      row);
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
      mine.sum == 0 ? 0.0f : mine.sum * exponential<T>(mine.maximum, maximum);
  return {maximum, block_sum(scaled)};
}

// Threads for a row that is read in accesses of `width` elements.
inline unsigned threads_for(std::int64_t count, int width) {
  return row_threads(divide_up(count, width * packs_at_once), 512);
}

}  // namespace lockstep::kernels
