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

// 2^x; 0 for −∞.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
constexpr float log2_e = 1.4426950408889634f;

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Asynchronous copies into shared memory of 16 and 4 bytes; zeros where not
// `inside`, and then `from` is not read.
__device__ inline void copy_async_16(void* to, const void* from, bool inside) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
      "l"(from), "r"(inside ? 16 : 0));
}
__device__ inline void copy_async_4(void* to, const void* from, bool inside) {
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)),
      "l"(from), "r"(inside ? 4 : 0));
}
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;");
}
// Waits until at most `pending` of this thread's newest groups are under way.
template <int pending>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending));
}

// The next kernel on the stream may start where it was launched to.
__device__ inline void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
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
