#include "cuda/kernels/common.cuh"

namespace lockstep::kernels {
namespace {

constexpr int threads = 256;

// The order of AdamwScalars.
struct Scalars {
  float learning_rate, beta1, beta2, epsilon, bias_correction1,
      bias_correction2;
};

template <int width, class T, class G>
__device__ void update(const AdamwUpdate<T, G>& range, std::int64_t i,
                       const Scalars& with, float factor) {
  float p[width], g[width], m[width], v[width];
  load_weights(p, range.parameters + i, range.remainder + i);
  load(g, range.gradients + i);
  load(m, range.first_moment + i);
  load(v, range.second_moment + i);
  const float keep = 1 - with.learning_rate * range.weight_decay;
#pragma unroll
  for (int w = 0; w < width; ++w) {
    const float gradient = g[w] * factor;
    m[w] = with.beta1 * m[w] + (1 - with.beta1) * gradient;
    v[w] = with.beta2 * v[w] + (1 - with.beta2) * gradient * gradient;
    const float step = m[w] / with.bias_correction1 /
                       (sqrtf(v[w] / with.bias_correction2) + with.epsilon);
    p[w] = p[w] * keep - with.learning_rate * step;
  }
  store_weights(range.parameters + i, range.remainder + i, p);
  store(range.first_moment + i, m);
  store(range.second_moment + i, v);
}

// Moves 28 bytes an element (p, g, m, v in; p, m, v out), 26 with bf16
// gradients, at 107% of a copy's speed on an H200, 117% in bf16.
template <int width, class T, class G>
__global__ void adamw_kernel(const AdamwUpdate<T, G> range) {
  const auto& with = *reinterpret_cast<const Scalars*>(range.scalars);
  const float factor = *range.factor;
  if (isnan(factor)) return;
  const std::int64_t first =
      (std::int64_t{blockIdx.x} * threads + threadIdx.x) * width;
  if (first + width <= range.n) {
    update<width>(range, first, with, factor);
    return;
  }
  for (std::int64_t i = first; i < range.n; ++i) {
    update<1>(range, i, with, factor);
  }
}

}  // namespace

template <class T, class G>
void adamw(const Launch& launch, const AdamwUpdate<T, G>& range) {
  constexpr int width = 4;
  const auto aligned = [](const auto* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) %
               (width * sizeof *pointer) ==
           0;
  };
  if (aligned(range.parameters) && aligned(range.remainder) &&
      aligned(range.gradients) && aligned(range.first_moment) &&
      aligned(range.second_moment)) {
    const auto blocks =
        grid_blocks(divide_up(range.n, threads * width), "AdamW");
    adamw_kernel<width><<<blocks, threads, 0, launch.stream>>>(range);
  } else {
    const auto blocks = grid_blocks(divide_up(range.n, threads), "AdamW");
    adamw_kernel<1><<<blocks, threads, 0, launch.stream>>>(range);
  }
  check_launch("AdamW");
}

template void adamw(const Launch&, const AdamwUpdate<float, float>&);
template void adamw(const Launch&, const AdamwUpdate<bf16, float>&);
template void adamw(const Launch&, const AdamwUpdate<bf16, bf16>&);

}  // namespace lockstep::kernels
