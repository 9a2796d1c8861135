#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/numeric.h"
#include "ops/cpu/parallel.h"

namespace lockstep {
namespace {

template <class T>
void swiglu_row(T* y, const T* gate, const T* up, std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    const float g = load(gate[i]);
    store(y[i], g * sigmoid(g) * load(up[i]));
  }
}

// silu'(g) = s·(1 + g·(1 − s)) with s = sigmoid(g).
template <class T>
void swiglu_row_backward(T* dgate, T* dup, T* dy, const T* gate, const T* up,
                         std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    const float g = load(gate[i]), u = load(up[i]), d = load(dy[i]);
    const float s = sigmoid(g);
    store(dy[i], g * s * u);
    store(dgate[i], d * u * s * (1.0f + g * (1.0f - s)));
    store(dup[i], d * g * s);
  }
}

}  // namespace

void CpuOps::swiglu(const Tensor& y, const Tensor& gate_up) {
  check_matrix(y, dtype_, "swiglu: y");
  const std::int64_t width = y[1];
  check(gate_up, dtype_, {y[0], 2 * width}, "swiglu: gate_up");

  with_storage([&]<class T>(T) {
    parallel_for(y[0], 4 * width, [&](std::int64_t row) {
      const T* in = static_cast<const T*>(gate_up.data) + row * 2 * width;
      swiglu_row(static_cast<T*>(y.data) + row * width, in, in + width, width);
    });
  });
}

void CpuOps::swiglu_backward(const Tensor& dgate_up, const Tensor& dy,
                             const Tensor& gate_up) {
  check_matrix(dy, dtype_, "swiglu_backward: dy");
  const std::int64_t width = dy[1];
  check(gate_up, dtype_, {dy[0], 2 * width}, "swiglu_backward: gate_up");
  check(dgate_up, dtype_, {dy[0], 2 * width}, "swiglu_backward: dgate_up");

  with_storage([&]<class T>(T) {
    parallel_for(dy[0], 8 * width, [&](std::int64_t row) {
      const T* in = static_cast<const T*>(gate_up.data) + row * 2 * width;
      T* out = static_cast<T*>(dgate_up.data) + row * 2 * width;
      swiglu_row_backward(out, out + width,
                          static_cast<T*>(dy.data) + row * width, in,
                          in + width, width);
    });
  });
}

}  // namespace lockstep
