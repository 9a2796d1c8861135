#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/numeric.h"
#include "ops/cpu/parallel.h"

namespace lockstep {
namespace {

template <class T>
void rotate_pairs(T* x, const float* table, std::int64_t pairs, float sign) {
#pragma omp simd
  for (std::int64_t i = 0; i < pairs; ++i) {
    const float cosine = table[2 * i], sine = sign * table[2 * i + 1];
    const float even = load(x[2 * i]), odd = load(x[2 * i + 1]);
    store(x[2 * i], even * cosine - odd * sine);
    store(x[2 * i + 1], even * sine + odd * cosine);
  }
}

}  // namespace

void CpuOps::rope(const Heads& x, const Tensor& table, Pass pass) {
  check_heads(x, dtype_, "rope: x");
  require(x.head_dim % 2 == 0, "rope: an odd head dimension ({})", x.head_dim);
  const std::int64_t pairs = x.head_dim / 2;
  require(table.shape.rank() == 3 && table[0] >= x.tokens,
          "rope: a table of shape {} for {} tokens", table.shape.text(),
          x.tokens);
  check(table, Dtype::f32, {table[0], pairs, 2}, "rope: table");

  const float sign = pass == Pass::forward ? 1.0f : -1.0f;
  const float* angles = table.as<float>();
  with_storage([&]<class T>(T) {
    parallel_for(
        x.batch * x.tokens, x.heads * x.head_dim, [&](std::int64_t row) {
          const std::int64_t b = row / x.tokens, t = row % x.tokens;
          T* token =
              static_cast<T*>(x.data) + b * x.batch_stride + t * x.token_stride;
          for (std::int64_t h = 0; h < x.heads; ++h) {
            rotate_pairs(token + h * x.head_stride, angles + t * 2 * pairs,
                         pairs, sign);
          }
        });
  });
}

}  // namespace lockstep
