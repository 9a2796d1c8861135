#include "cuda/kernels/common.cuh"

namespace lockstep::kernels {
namespace {

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
    // While there is nothing but masked classes (−∞), their sum stays 0.
    const float from = best == -INFINITY ? 0.0f : best;
    if (best > maximum) sum *= expf(maximum - best);
    maximum = best;
#pragma unroll
    for (int w = 0; w < width; ++w) sum += expf(x[w] - from);
  }
};

// Calls visit(index, values) over a row's first `classes` elements: packs of
// `width`, then single ones.
template <int width, class T, class Visit>
__device__ void for_row(T* row, std::int64_t classes, Visit visit) {
  const std::int64_t whole = classes / width * width;
  for (std::int64_t i = std::int64_t{threadIdx.x} * width; i < whole;
       i += std::int64_t{blockDim.x} * width) {
    float x[width];
    load(x, row + i);
    visit(i, x);
  }
  for (std::int64_t i = whole + threadIdx.x; i < classes; i += blockDim.x) {
    float x[1];
    load(x, row + i);
    visit(i, x);
  }
}

// The row's maximum and Σ exp(x − maximum), the same on all threads.
template <int width, class T>
__device__ OnlineSum sum_row(const T* row, std::int64_t classes) {
  OnlineSum mine;
  for_row<width>(row, classes,
                 [&](std::int64_t, const auto& x) { mine.add(x); });
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

// One block a row. Moves N·V elements in.
template <class T, int width>
__global__ void cross_entropy_kernel(float* losses, const Rows<const T> logits,
                                     const std::int32_t* targets) {
  const T* row = logits.data + blockIdx.x * logits.stride;
  const OnlineSum all = sum_row<width>(row, logits.width);
  if (threadIdx.x != 0) return;
  losses[blockIdx.x] =
      logf(all.sum) + (all.maximum - to_float(row[targets[blockIdx.x]]));
}

// One block a row. Moves N·V elements in and out; the second reading of a row
// comes from cache.
template <class T, int width>
__global__ void cross_entropy_backward_kernel(float* losses,
                                              const Rows<T> logits,
                                              const std::int32_t* targets,
                                              float scale) {
  T* row = logits.data + blockIdx.x * logits.stride;
  const int target = targets[blockIdx.x];
  const float wanted = to_float(row[target]);
  const OnlineSum all = sum_row<width>(row, logits.width);
  if (threadIdx.x == 0) {
    losses[blockIdx.x] = logf(all.sum) + (all.maximum - wanted);
  }
  const float factor = scale / all.sum;
  for_row<width>(row, logits.width, [&](std::int64_t index, auto& x) {
    std::int64_t i = index;
    for (float& value : x) {
      value = expf(value - all.maximum) * factor;
      if (i++ == target) value -= scale;
    }
    store(row + index, x);
  });
  for (std::int64_t i = logits.width + threadIdx.x; i < logits.stride;
       i += blockDim.x) {
    row[i] = from_float<T>(0);
  }
}

unsigned threads_for(std::int64_t classes, int width) {
  return row_threads(divide_up(classes, width * 4), 512);
}

}  // namespace

template <class T>
void cross_entropy(const Launch& launch, float* losses,
                   const Rows<const T>& logits, const std::int32_t* targets) {
  const unsigned blocks = grid_blocks(logits.count, "cross-entropy");
  constexpr int width = full_width<T>;
  if (rows_are_aligned<T>(logits.stride, logits.data)) {
    cross_entropy_kernel<T, width>
        <<<blocks, threads_for(logits.width, width), 0, launch.stream>>>(
            losses, logits, targets);
  } else {
    cross_entropy_kernel<T, 1>
        <<<blocks, threads_for(logits.width, 1), 0, launch.stream>>>(
            losses, logits, targets);
  }
  check_launch("cross-entropy");
}

template <class T>
void cross_entropy_backward(const Launch& launch, float* losses,
                            const Rows<T>& logits, const std::int32_t* targets,
                            float scale) {
  const unsigned blocks = grid_blocks(logits.count, "cross-entropy backward");
  constexpr int width = full_width<T>;
  if (rows_are_aligned<T>(logits.stride, logits.data)) {
    cross_entropy_backward_kernel<T, width>
        <<<blocks, threads_for(logits.width, width), 0, launch.stream>>>(
            losses, logits, targets, scale);
  } else {
    cross_entropy_backward_kernel<T, 1>
        <<<blocks, threads_for(logits.width, 1), 0, launch.stream>>>(
            losses, logits, targets, scale);
  }
  check_launch("cross-entropy backward");
}

template void cross_entropy(const Launch&, float*, const Rows<const float>&,
                            const std::int32_t*);
template void cross_entropy(const Launch&, float*, const Rows<const bf16>&,
                            const std::int32_t*);
template void cross_entropy_backward(const Launch&, float*, const Rows<float>&,
                                     const std::int32_t*, float);
template void cross_entropy_backward(const Launch&, float*, const Rows<bf16>&,
                                     const std::int32_t*, float);

}  // namespace lockstep::kernels
