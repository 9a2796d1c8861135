#include "cuda/kernels/row_sum.cuh"

namespace lockstep::kernels {
namespace {

template <class T, int width>
__device__ OnlineSum<T> sum_of(BlockRows<width, T>& row) {
  OnlineSum<T> mine;
  row.visit([&](int, const auto& x) { mine.add(x[0]); });
  return block_total(mine);
}

// One block a row. Moves N·V elements in, at 84% of a copy's speed on an H200,
// 86% in bf16.
template <class T, int width>
__global__ void __launch_bounds__(most_row_threads, 2)
    cross_entropy_kernel(float* losses, const Rows<const T> logits,
                         const std::int32_t* targets) {
  const T* row = logits.data + blockIdx.x * logits.stride;
  BlockRows<width, T> held(int(logits.width), row);
  const OnlineSum<T> all = sum_of(held);
  if (threadIdx.x != 0) return;
  losses[blockIdx.x] =
      logf(all.sum) + (all.maximum - to_float(row[targets[blockIdx.x]]));
}

// One block a row. Moves N·V elements in and out, at 81% of a copy's speed on
// an H200, 91% in bf16.
template <class T, int width>
__global__ void __launch_bounds__(most_row_threads, 2)
    cross_entropy_backward_kernel(float* losses, const Rows<T> logits,
                                  const std::int32_t* targets, float scale) {
  T* row = logits.data + blockIdx.x * logits.stride;
  const int target = targets[blockIdx.x];
  const float wanted = to_float(row[target]);
  BlockRows<width, T> held(int(logits.width), row);
  const OnlineSum<T> all = sum_of(held);
  if (threadIdx.x == 0) {
    losses[blockIdx.x] = logf(all.sum) + (all.maximum - wanted);
  }
  const float factor = scale / all.sum;
  held.visit([&](int index, auto& x) {
    for (float& value : x[0]) {
      value = exponential<T>(value, all.maximum) * factor;
    }
    constexpr int elements = sizeof x[0] / sizeof *x[0];
    if (index <= target && target < index + elements) {
      for (int w = 0; w < elements; ++w) {
        if (index + w == target) x[0][w] -= scale;
      }
    }
    store(row + index, x[0]);
  });
  for (std::int64_t i = logits.width + threadIdx.x; i < logits.stride;
       i += blockDim.x) {
    row[i] = from_float<T>(0);
  }
}

}  // namespace

template <class T>
void cross_entropy(const Launch& launch, float* losses,
                   const Rows<const T>& logits, const std::int32_t* targets) {
  const unsigned blocks = grid_blocks(logits.count, "cross-entropy");
  // Few, as nothing is read twice: a block's waits are hidden by other blocks.
  constexpr int threads = 64;
  constexpr int width = full_width<T>;
  if (rows_are_aligned<T>(logits.stride, logits.data)) {
    cross_entropy_kernel<T, width>
        <<<blocks, threads, 0, launch.stream>>>(losses, logits, targets);
  } else {
    cross_entropy_kernel<T, 1>
        <<<blocks, threads, 0, launch.stream>>>(losses, logits, targets);
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
