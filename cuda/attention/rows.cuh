#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/attention/kernels.h"
#include "cuda/cuda_error.h"

// What the attention kernels share.
namespace lockstep::attention {

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(bf16 x) {
  return __bfloat162float(x);
}
__device__ inline void assign(float& to, float x) {
  to = x;
}
__device__ inline void assign(bf16& to, float x) {
  to = __float2bfloat16_rn(x);
}

// Token 0 of head h of batch b, for sequence b·heads + h.
template <class T>
__device__ T* rows_of(const View<T>& view, std::int64_t sequence,
                      std::int64_t heads) {
  return view.data + sequence / heads * view.batch_stride +
         sequence % heads * view.head_stride;
}

__device__ inline float warp_sum(float x) {
  for (int offset = 16; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  return x;
}

// The sequence and the tile of tokens that a block works on. Tiles vary
// slowest, so that all sequences' long tiles of a causal pass start first.
struct Work {
  std::int64_t sequence;
  int tile;
};
__device__ inline Work work_of_block(std::int64_t sequences) {
  return {blockIdx.x % sequences, static_cast<int>(blockIdx.x / sequences)};
}

constexpr int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

// Blocks for `tiles` tiles of every sequence.
inline unsigned blocks_for(const Extents& extents, int tiles) {
  return grid_blocks(extents.sequences() * tiles, "attention");
}

// Allows a kernel its dynamic shared memory.
template <class Kernel>
void allow_shared(Kernel* kernel, int bytes) {
  check_cuda(cudaFuncSetAttribute(
                 kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "cudaFuncSetAttribute for attention's shared memory");
}

}  // namespace lockstep::attention
