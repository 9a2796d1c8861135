#include "cuda/kernels/common.cuh"

namespace lockstep::kernels {
namespace {

constexpr int threads = 256;

// out[i] = from_float(x[i] · factor) for a flat range; out may be x. Moves n
// elements in and n out.
template <int width, class To, class From>
__global__ void scaled_copy_kernel(To* out, const From* x, std::int64_t n,
                                   float factor) {
  const std::int64_t first =
      (std::int64_t{blockIdx.x} * threads + threadIdx.x) * width;
  if (first + width <= n) {
    float values[width];
    load(values, x + first);
#pragma unroll
    for (int w = 0; w < width; ++w) values[w] *= factor;
    store(out + first, values);
    return;
  }
  for (std::int64_t i = first; i < n; ++i) {
    out[i] = from_float<To>(to_float(x[i]) * factor);
  }
}

template <class To, class From>
void scaled_copy(const Launch& launch, To* out, const From* x, std::int64_t n,
                 float factor) {
  // Sixteen bytes of the wider type.
  constexpr int width = std::min(full_width<To>, full_width<From>);
  if (rows_are_aligned<float>(0, out, x)) {
    const unsigned blocks = grid_blocks(divide_up(n, threads * width), "cast");
    scaled_copy_kernel<width>
        <<<blocks, threads, 0, launch.stream>>>(out, x, n, factor);
  } else {
    const unsigned blocks = grid_blocks(divide_up(n, threads), "cast");
    scaled_copy_kernel<1>
        <<<blocks, threads, 0, launch.stream>>>(out, x, n, factor);
  }
  check_launch("cast");
}

}  // namespace

template <class To, class From>
void cast(const Launch& launch, To* out, const From* x, std::int64_t n) {
  scaled_copy(launch, out, x, n, 1);
}

template <class T>
void scale(const Launch& launch, T* x, std::int64_t n, float factor) {
  scaled_copy(launch, x, x, n, factor);
}

template void cast(const Launch&, float*, const bf16*, std::int64_t);
template void cast(const Launch&, bf16*, const float*, std::int64_t);
template void scale(const Launch&, float*, std::int64_t, float);
template void scale(const Launch&, bf16*, std::int64_t, float);

}  // namespace lockstep::kernels
