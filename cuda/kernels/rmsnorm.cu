#include <type_traits>

#include "cuda/kernels/common.cuh"

namespace lockstep::kernels {
namespace {

constexpr float epsilon = 1e-5f;

// Rows in flight: a block holds `groups` rows, each with `lanes` threads, which
// keep their columns in registers, `packs` accesses of `width` each.
struct RowShape {
  int lanes = 0, groups = 0;

  RowShape(std::int64_t d, int columns_of_thread)
      : lanes(static_cast<int>(divide_up(divide_up(d, columns_of_thread), 32)) *
              32),
        groups(std::max(1, 512 / lanes)) {}
  int threads() const { return lanes * groups; }
  // As many as run at once where `resident` threads fit on a multiprocessor.
  unsigned blocks(const Launch& launch, std::int64_t rows, int resident) const {
    return static_cast<unsigned>(std::min<std::int64_t>(
        divide_up(rows, groups), std::int64_t{launch.multiprocessors} *
                                     std::max(1, resident / threads())));
  }
};

// Sums over the threads of each of a block's rows, every thread getting its
// row's; always in the same order. All threads of the block call it together.
class RowSum {
 public:
  __device__ explicit RowSum(int lanes)
      : first_(threadIdx.x / lanes * (lanes / 32)), warps_(lanes / 32) {}
  __device__ float operator()(float value) {
    __shared__ float of_warp[2][32];
    for (int offset = 16; offset > 0; offset /= 2) {
      value += __shfl_xor_sync(0xffffffffu, value, offset);
    }
    // Two sets in turn: one barrier is enough.
    set_ ^= 1;
    if (threadIdx.x % 32 == 0) of_warp[set_][threadIdx.x / 32] = value;
    __syncthreads();
    float total = 0;
    for (int warp = 0; warp < warps_; ++warp) {
      total += of_warp[set_][first_ + warp];
    }
    return total;
  }

 private:
  int first_, warps_;
  int set_ = 0;
};

// Calls body(pack, column) for this thread's accesses inside a row of d.
template <int width, int packs, class Body>
__device__ void for_packs(int lane, int lanes, std::int64_t d, Body body) {
#pragma unroll
  for (int pack = 0; pack < packs; ++pack) {
    const std::int64_t column = (std::int64_t{pack} * lanes + lane) * width;
    if (column < d) body(pack, column);
  }
}

// Moves 4·N·d elements, x and add in, residual and y out, at 95% of a copy's
// speed on an H200, 100% in bf16.
template <class T, int width, int packs>
__global__ void __launch_bounds__(1024)
    rmsnorm_kernel(const RmsNorm<T> norm, int lanes) {
  const std::int64_t d = norm.x.width;
  const int groups = blockDim.x / lanes;
  const int lane = threadIdx.x % lanes;
  const bool copies = norm.add != nullptr || norm.residual != norm.x.data;
  RowSum row_sum(lanes);

  for (std::int64_t base = std::int64_t{blockIdx.x} * groups;
       base < norm.x.count; base += std::int64_t{gridDim.x} * groups) {
    const std::int64_t n = base + threadIdx.x / lanes;
    const bool active = n < norm.x.count;
    float x[packs][width];
    float squares = 0;
    if (active) {
      for_packs<width, packs>(lane, lanes, d, [&](int p, std::int64_t i) {
        load(x[p], norm.x.data + n * d + i);
        if (norm.add != nullptr) {
          float add[width];
          load(add, norm.add + n * d + i);
#pragma unroll
          for (int w = 0; w < width; ++w) {
            x[p][w] = to_float(from_float<T>(x[p][w] + add[w]));
          }
        }
#pragma unroll
        for (int w = 0; w < width; ++w) squares += x[p][w] * x[p][w];
        if (copies) store(norm.residual + n * d + i, x[p]);
      });
    }
    const float inverse_rms =
        rsqrtf(row_sum(squares) / static_cast<float>(d) + epsilon);
    if (!active) continue;
    if (lane == 0) norm.inverse_rms[n] = inverse_rms;
    for_packs<width, packs>(lane, lanes, d, [&](int p, std::int64_t i) {
      float weight[width];
      load(weight, norm.weight + i);
#pragma unroll
      for (int w = 0; w < width; ++w) weight[w] *= x[p][w] * inverse_rms;
      store(norm.y + n * d + i, weight);
    });
  }
}

// With r = inverse_rms and x̂ = x·r: dx = r·(dy·w − x̂·mean(dy·w·x̂)), dw = Σ dy·x̂
// over rows. Each group of threads keeps its part of dw in registers; a block
// adds up its groups' and leaves one row of `partial`. Moves 4·N·d elements,
// dy, x and dresidual in, dresidual out, at 90% of a copy's speed on an H200,
// 89% in bf16.
template <class T, int width, int packs>
__global__ void __launch_bounds__(1024)
    rmsnorm_backward_kernel(const RmsNormBackward<T> norm, float* partial,
                            int lanes) {
  extern __shared__ float dweight_of_groups[];  // [groups, d]
  const std::int64_t d = norm.residual.width;
  const int groups = blockDim.x / lanes;
  const int group = threadIdx.x / lanes, lane = threadIdx.x % lanes;
  RowSum row_sum(lanes);
  float weight[packs][width], dweight[packs][width] = {};
  for_packs<width, packs>(lane, lanes, d, [&](int p, std::int64_t i) {
    load(weight[p], norm.weight + i);
  });

  for (std::int64_t base = std::int64_t{blockIdx.x} * groups;
       base < norm.residual.count; base += std::int64_t{gridDim.x} * groups) {
    const std::int64_t n = base + group;
    const bool active = n < norm.residual.count;
    float x[packs][width], dy[packs][width], dx[packs][width];
    float dot = 0, r = 0;
    if (active) {
      r = norm.inverse_rms[n];
      for_packs<width, packs>(lane, lanes, d, [&](int p, std::int64_t i) {
        load(x[p], norm.residual.data + n * d + i);
        load(dy[p], norm.dy + n * d + i);
        load(dx[p], norm.dresidual + n * d + i);
#pragma unroll
        for (int w = 0; w < width; ++w) {
          x[p][w] *= r;
          dweight[p][w] += dy[p][w] * x[p][w];
          dy[p][w] *= weight[p][w];
          dot += dy[p][w] * x[p][w];
        }
      });
    }
    const float mean = row_sum(dot) / static_cast<float>(d);
    if (!active) continue;
    for_packs<width, packs>(lane, lanes, d, [&](int p, std::int64_t i) {
#pragma unroll
      for (int w = 0; w < width; ++w) {
        dx[p][w] += r * (dy[p][w] - x[p][w] * mean);
      }
      store(norm.dresidual + n * d + i, dx[p]);
    });
  }

  for_packs<width, packs>(lane, lanes, d, [&](int p, std::int64_t i) {
#pragma unroll
    for (int w = 0; w < width; ++w) {
      dweight_of_groups[group * d + i + w] = dweight[p][w];
    }
  });
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < d; i += blockDim.x) {
    float sum = 0;
    for (int g = 0; g < groups; ++g) sum += dweight_of_groups[g * d + i];
    partial[blockIdx.x * d + i] = sum;
  }
}

// total[column] (+)= Σ partial[row, column]; a block of 32×32 threads takes 32
// columns.
template <class G>
__global__ void sum_columns_kernel(G* total, const float* partial, int rows,
                                   std::int64_t d, bool accumulate) {
  __shared__ float sums[32][33];
  const std::int64_t column = std::int64_t{blockIdx.x} * 32 + threadIdx.x;
  float sum = 0;
  if (column < d) {
#pragma unroll 8
    for (int row = threadIdx.y; row < rows; row += 32) {
      sum += partial[row * d + column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= d) return;
  sum = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) sum += sums[i][threadIdx.x];
  if (accumulate) sum += to_float(total[column]);
  total[column] = from_float<G>(sum);
}

template <int value>
using Constant = std::integral_constant<int, value>;

// run(width, packs) with constants such that a row of d fits into 1024 threads.
template <class T, class Run>
void with_row_shape(std::int64_t d, bool aligned, Run run) {
  constexpr int full = full_width<T>;
  if (aligned && d <= 1024 * full) {
    run(Constant<full>(), Constant<1>());
  } else if (aligned) {
    run(Constant<full>(), Constant<widest_rmsnorm / 1024 / full>());
  } else if (d <= 1024) {
    run(Constant<1>(), Constant<1>());
  } else {
    run(Constant<1>(), Constant<widest_rmsnorm / 1024>());
  }
}

// Threads of the backward pass that fit, at 64 registers each, and the most
// blocks that this makes: none has fewer than 256 threads.
constexpr int resident_backward = 1024;
constexpr int most_blocks_backward = resident_backward / 256;

}  // namespace

template <class T>
void rmsnorm(const Launch& launch, const RmsNorm<T>& norm) {
  const std::int64_t d = norm.x.width;
  const bool aligned = rows_are_aligned<T>(d, norm.y, norm.residual,
                                           norm.x.data, norm.add, norm.weight);
  with_row_shape<T>(d, aligned, [&](auto width_of, auto packs_of) {
    constexpr int width = decltype(width_of)::value;
    constexpr int packs = decltype(packs_of)::value;
    const RowShape shape(d, width * packs);
    rmsnorm_kernel<T, width, packs>
        <<<shape.blocks(launch, norm.x.count, 2048), shape.threads(), 0,
           launch.stream>>>(norm, shape.lanes);
  });
  check_launch("RMSNorm");
}

std::int64_t rmsnorm_backward_bytes(const Launch& launch, std::int64_t count,
                                    std::int64_t width) {
  return std::min<std::int64_t>(count,
                                launch.multiprocessors * most_blocks_backward) *
         width * std::int64_t{sizeof(float)};
}

template <class T, class G>
void rmsnorm_backward(const Launch& launch, const RmsNormBackward<T>& norm,
                      G* dweight, bool accumulate, void* scratch) {
  auto* partial = static_cast<float*>(scratch);
  const std::int64_t d = norm.residual.width;
  const bool aligned = rows_are_aligned<T>(d, norm.dresidual, norm.dy,
                                           norm.residual.data, norm.weight);
  with_row_shape<T>(d, aligned, [&](auto width_of, auto packs_of) {
    constexpr int width = decltype(width_of)::value;
    constexpr int packs = decltype(packs_of)::value;
    const RowShape shape(d, width * packs);
    const auto kernel = rmsnorm_backward_kernel<T, width, packs>;
    const auto shared_bytes =
        static_cast<int>(shape.groups * d * sizeof(float));
    const unsigned blocks =
        shape.blocks(launch, norm.residual.count, resident_backward);
    check_cuda(
        cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute for RMSNorm's backward pass");
    kernel<<<blocks, shape.threads(), shared_bytes, launch.stream>>>(
        norm, partial, shape.lanes);
    check_launch("RMSNorm backward");
    sum_columns_kernel<<<grid_blocks(divide_up(d, 32), "RMSNorm backward"),
                         dim3(32, 32), 0, launch.stream>>>(
        dweight, partial, static_cast<int>(blocks), d, accumulate);
    check_launch("RMSNorm backward");
  });
}

template void rmsnorm(const Launch&, const RmsNorm<float>&);
template void rmsnorm(const Launch&, const RmsNorm<bf16>&);
template void rmsnorm_backward(const Launch&, const RmsNormBackward<float>&,
                               float*, bool, void*);
template void rmsnorm_backward(const Launch&, const RmsNormBackward<bf16>&,
                               float*, bool, void*);
template void rmsnorm_backward(const Launch&, const RmsNormBackward<bf16>&,
                               bf16*, bool, void*);

}  // namespace lockstep::kernels
