#include "cuda/kernels/common.cuh"

namespace lockstep::kernels {
namespace {

constexpr float epsilon = 1e-5f;

// One block a row. Moves 4·N·d elements (2 in, 2 out), and reads back what it
// has just written from cache.
template <class T, int width>
__global__ void rmsnorm_kernel(const RmsNorm<T> norm) {
  const std::int64_t d = norm.x.width;
  const std::int64_t row = blockIdx.x * d;
  const std::int64_t step = std::int64_t{blockDim.x} * width;
  const std::int64_t first = std::int64_t{threadIdx.x} * width;
  const bool copies = norm.add != nullptr || norm.residual != norm.x.data;

  float squares = 0;
  for (std::int64_t i = first; i < d; i += step) {
    float x[width], add[width];
    load(x, norm.x.data + row + i);
    if (norm.add != nullptr) {
      load(add, norm.add + row + i);
#pragma unroll
      for (int w = 0; w < width; ++w) {
        x[w] = to_float(from_float<T>(x[w] + add[w]));
      }
    }
#pragma unroll
    for (int w = 0; w < width; ++w) squares += x[w] * x[w];
    if (copies) store(norm.residual + row + i, x);
  }
  const float inverse_rms =
      rsqrtf(block_sum(squares) / static_cast<float>(d) + epsilon);
  if (threadIdx.x == 0) norm.inverse_rms[blockIdx.x] = inverse_rms;

  for (std::int64_t i = first; i < d; i += step) {
    float x[width], weight[width];
    load(x, norm.residual + row + i);
    load(weight, norm.weight + i);
#pragma unroll
    for (int w = 0; w < width; ++w) x[w] *= inverse_rms * weight[w];
    store(norm.y + row + i, x);
  }
}

// With r = inverse_rms and x̂ = x·r: dx = r·(dy·w − x̂·mean(dy·w·x̂)), dw = Σ dy·x̂
// over rows. A block takes every gridDim.x-th row and keeps its part of dw in
// shared memory, where each thread has columns of its own. Moves 4·N·d elements
// (dy, x and dresidual in, dresidual out); dy and x are read again from cache.
template <class T, int width>
__global__ void rmsnorm_backward_kernel(const RmsNormBackward<T> norm,
                                        float* partial) {
  extern __shared__ float dweight[];  // [d]
  const std::int64_t d = norm.residual.width;
  const std::int64_t step = std::int64_t{blockDim.x} * width;
  const std::int64_t first = std::int64_t{threadIdx.x} * width;
  for (std::int64_t i = first; i < d; i += step) {
#pragma unroll
    for (int w = 0; w < width; ++w) dweight[i + w] = 0;
  }

  for (std::int64_t n = blockIdx.x; n < norm.residual.count; n += gridDim.x) {
    const T* x_row = norm.residual.data + n * d;
    const T* dy_row = norm.dy + n * d;
    const float r = norm.inverse_rms[n];
    float dot = 0;
    for (std::int64_t i = first; i < d; i += step) {
      float x[width], dy[width], weight[width];
      load(x, x_row + i);
      load(dy, dy_row + i);
      load(weight, norm.weight + i);
#pragma unroll
      for (int w = 0; w < width; ++w) dot += dy[w] * weight[w] * (x[w] * r);
    }
    const float mean = block_sum(dot) / static_cast<float>(d);

    for (std::int64_t i = first; i < d; i += step) {
      float x[width], dy[width], weight[width], dx[width];
      load(x, x_row + i);
      load(dy, dy_row + i);
      load(weight, norm.weight + i);
      load(dx, norm.dresidual + n * d + i);
#pragma unroll
      for (int w = 0; w < width; ++w) {
        const float normed = x[w] * r;
        dx[w] += r * (dy[w] * weight[w] - normed * mean);
        dweight[i + w] += dy[w] * normed;
      }
      store(norm.dresidual + n * d + i, dx);
    }
  }
  for (std::int64_t i = first; i < d; i += step) {
#pragma unroll
    for (int w = 0; w < width; ++w) {
      partial[blockIdx.x * d + i + w] = dweight[i + w];
    }
  }
}

// total[column] (+)= Σ partial[row, column]; a block of 32×32 threads takes 32
// columns.
__global__ void sum_columns_kernel(float* total, const float* partial, int rows,
                                   std::int64_t d, bool accumulate) {
  __shared__ float sums[32][33];
  const std::int64_t column = std::int64_t{blockIdx.x} * 32 + threadIdx.x;
  float sum = 0;
  if (column < d) {
#pragma unroll 4
    for (int row = threadIdx.y; row < rows; row += 32) {
      sum += partial[row * d + column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= d) return;
  sum = 0;
  for (int i = 0; i < 32; ++i) sum += sums[i][threadIdx.x];
  total[column] = accumulate ? total[column] + sum : sum;
}

unsigned backward_blocks(const Launch& launch, std::int64_t count) {
  return static_cast<unsigned>(
      std::min<std::int64_t>(count, launch.multiprocessors * 8));
}

template <class T, int width>
void launch_backward(const Launch& launch, const RmsNormBackward<T>& norm,
                     float* partial) {
  const unsigned blocks = backward_blocks(launch, norm.residual.count);
  const std::int64_t d = norm.residual.width;
  const auto shared_bytes = static_cast<int>(d * sizeof(float));
  check_cuda(cudaFuncSetAttribute(rmsnorm_backward_kernel<T, width>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  shared_bytes),
             "cudaFuncSetAttribute for RMSNorm's backward pass");
  rmsnorm_backward_kernel<T, width>
      <<<blocks, row_threads(d / width), shared_bytes, launch.stream>>>(
          norm, partial);
  check_launch("RMSNorm backward");
}

}  // namespace

template <class T>
void rmsnorm(const Launch& launch, const RmsNorm<T>& norm) {
  const std::int64_t d = norm.x.width;
  const unsigned blocks = grid_blocks(norm.x.count, "RMSNorm");
  if (rows_are_aligned<T>(d, norm.y, norm.residual, norm.x.data, norm.add,
                          norm.weight)) {
    constexpr int width = full_width<T>;
    rmsnorm_kernel<T, width>
        <<<blocks, row_threads(d / width), 0, launch.stream>>>(norm);
  } else {
    rmsnorm_kernel<T, 1><<<blocks, row_threads(d), 0, launch.stream>>>(norm);
  }
  check_launch("RMSNorm");
}

std::int64_t rmsnorm_backward_bytes(const Launch& launch, std::int64_t count,
                                    std::int64_t width) {
  return backward_blocks(launch, count) * width * std::int64_t{sizeof(float)};
}

template <class T>
void rmsnorm_backward(const Launch& launch, const RmsNormBackward<T>& norm,
                      void* scratch) {
  auto* partial = static_cast<float*>(scratch);
  const std::int64_t d = norm.residual.width;
  if (rows_are_aligned<T>(d, norm.dresidual, norm.dy, norm.residual.data,
                          norm.weight)) {
    launch_backward<T, full_width<T>>(launch, norm, partial);
  } else {
    launch_backward<T, 1>(launch, norm, partial);
  }
  const unsigned blocks = grid_blocks(divide_up(d, 32), "RMSNorm backward");
  sum_columns_kernel<<<blocks, dim3(32, 32), 0, launch.stream>>>(
      norm.dweight, partial,
      static_cast<int>(backward_blocks(launch, norm.residual.count)), d,
      norm.accumulate);
  check_launch("RMSNorm backward");
}

template void rmsnorm(const Launch&, const RmsNorm<float>&);
template void rmsnorm(const Launch&, const RmsNorm<bf16>&);
template void rmsnorm_backward(const Launch&, const RmsNormBackward<float>&,
                               void*);
template void rmsnorm_backward(const Launch&, const RmsNormBackward<bf16>&,
                               void*);

}  // namespace lockstep::kernels
