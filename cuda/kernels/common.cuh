#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "cuda/cuda_error.h"
#include "cuda/kernels/kernels.h"

// What the kernels share: 16-byte accesses, sums over a block, launch shapes.
namespace lockstep::kernels {

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(bf16 x) {
  return __bfloat162float(x);
}
template <class T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}

// `width` adjacent elements that move as one access.
template <class T, int width>
struct alignas(sizeof(T) * width) Pack {
  T at[width];
};
template <class T>
constexpr int full_width = 16 / sizeof(T);

// One access. 16 bytes are written by an instruction of our own, for the
// compiler takes packs apart and may then write them an element at a time.
template <class T, int width>
__device__ void store(T* to, const Pack<T, width>& pack) {
  if constexpr (sizeof pack == 16) {
    const auto words = __builtin_bit_cast(uint4, pack);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to),
                 "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
                 : "memory");
  } else {
    *reinterpret_cast<Pack<T, width>*>(to) = pack;
  }
}

template <int width, class T>
__device__ Pack<T, width> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, width>*>(from);
}

template <class T, int width>
__device__ void to_float(float (&values)[width], const Pack<T, width>& pack) {
#pragma unroll
  for (int i = 0; i < width; ++i) values[i] = to_float(pack.at[i]);
}

// As one access, or as many of 16 bytes as `width` elements take.
template <int width, class T>
__device__ void load(float (&values)[width], const T* from) {
  constexpr int each = width < full_width<T> ? width : full_width<T>;
#pragma unroll
  for (int first = 0; first < width; first += each) {
    const auto pack = load_pack<each>(from + first);
#pragma unroll
    for (int i = 0; i < each; ++i) values[first + i] = to_float(pack.at[i]);
  }
}

template <int width, class T>
__device__ void store(T* to, const float (&values)[width]) {
  constexpr int each = width < full_width<T> ? width : full_width<T>;
#pragma unroll
  for (int first = 0; first < width; first += each) {
    Pack<T, each> pack;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      pack.at[i] = from_float<T>(values[first + i]);
    }
    store(to + first, pack);
  }
}

// to[i] += values[i] in fp32, rounded once.
template <int width, class T>
__device__ void add_to(T* to, const float (&values)[width]) {
  float sums[width];
  load(sums, to);
#pragma unroll
  for (int i = 0; i < width; ++i) sums[i] += values[i];
  store(to, sums);
}

// fp32 weights from the memory of their bf16 halves and remainders, and back
// (SplitWeight in core/dtype.h has the formula).
template <int width>
__device__ void load_weights(float (&values)[width], const bf16* parameters,
                             const std::int16_t* remainder) {
  const auto rounded = load_pack<width>(parameters);
  const auto rest = load_pack<width>(remainder);
#pragma unroll
  for (int i = 0; i < width; ++i) {
    const auto upper = std::uint32_t{__bfloat16_as_ushort(rounded.at[i])} << 16;
    values[i] = __uint_as_float(
        upper + static_cast<std::uint32_t>(std::int32_t{rest.at[i]}));
  }
}
template <int width>
__device__ void store_weights(bf16* parameters, std::int16_t* remainder,
                              const float (&values)[width]) {
  Pack<bf16, width> rounded;
  Pack<std::int16_t, width> rest;
#pragma unroll
  for (int i = 0; i < width; ++i) {
    const std::uint32_t u = __float_as_uint(values[i]);
    const bool nan = values[i] != values[i];
    rounded.at[i] = nan ? __float2bfloat16_rn(values[i])
                        : __ushort_as_bfloat16(
                              static_cast<unsigned short>((u + 0x8000u) >> 16));
    rest.at[i] = nan ? std::int16_t{0} : static_cast<std::int16_t>(u & 0xffffu);
  }
  store(parameters, rounded);
  if (remainder != nullptr) store(remainder, rest);
}
// f32 weights have no remainder.
template <int width>
__device__ void load_weights(float (&values)[width], const float* parameters,
                             const std::int16_t*) {
  load(values, parameters);
}
template <int width>
__device__ void store_weights(float* parameters, std::int16_t*,
                              const float (&values)[width]) {
  store(parameters, values);
}

// e^(x − from). bf16 keeps 8 bits of what it is for, so there one
// multiply-add and the hardware's 2ˣ serve, which is good to 2 ulp of fp32 and
// takes results below 2⁻¹²⁶ as 0.
template <class T>
__device__ float exponential(float x, float from = 0) {
  return expf(x - from);
}
template <>
__device__ inline float exponential<bf16>(float x, float from) {
  constexpr float log2_e = 1.44269504F;
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;"
      : "=f"(power)
      : "f"(fmaf(x, log2_e, -from * log2_e)));
  return power;
}

// The sum over a block's threads, the same on all of them, always added in the
// same order. Threads are a multiple of 32.
template <class T>
__device__ T block_sum(T value) {
  __shared__ T of_warp[32];
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  const int warps = blockDim.x / 32;
  __syncthreads();  // the last call's readers are done
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  T total = 0;
  for (int warp = 0; warp < warps; ++warp) total += of_warp[warp];
  return total;
}

// Whether elements may be accessed 16 bytes at a time: rows of `width` elements
// start aligned in all of `pointers`.
template <class T, class... Pointers>
bool rows_are_aligned(std::int64_t width, Pointers... pointers) {
  const auto aligned = [](const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
  };
  return width % full_width<T> == 0 && (aligned(pointers) && ...);
}

// Threads for a row of `items` accesses.
inline unsigned row_threads(std::int64_t items, int most = 256) {
  return static_cast<unsigned>(
      std::clamp<std::int64_t>((items + 31) / 32 * 32, 32, most));
}

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace lockstep::kernels
