#include "ops/cpu/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/numeric.h"
#include "ops/cpu/parallel.h"

namespace lockstep {
namespace {

template <class To, class From>
void cast_elements(const Tensor& out, const Tensor& x) {
  To* y = out.as<To>();
  const From* in = x.as<From>();
  parallel_pieces(x.elements(), [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) store(y[i], load(in[i]));
  });
}

template <class T>
void scale_elements(const Tensor& x, float factor) {
  T* values = x.as<T>();
  parallel_pieces(x.elements(), [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      store(values[i], load(values[i]) * factor);
    }
  });
}

}  // namespace

void CpuOps::cast(const Tensor& out, const Tensor& x) {
  check_count(out, out.dtype, x.elements(), "cast: out");
  check_count(x, x.dtype, x.elements(), "cast: x");
  if (x.dtype == Dtype::f32 && out.dtype == Dtype::bf16) {
    cast_elements<bfloat16, float>(out, x);
  } else if (x.dtype == Dtype::bf16 && out.dtype == Dtype::f32) {
    cast_elements<float, bfloat16>(out, x);
  } else {
    fail("cast: from {} to {}, but only f32 and bf16 change into each other",
         name_of(x.dtype), name_of(out.dtype));
  }
}

void CpuOps::scale(const Tensor& x, float factor) {
  check_count(x, x.dtype, x.elements(), "scale: x");
  if (x.dtype == Dtype::f32) {
    scale_elements<float>(x, factor);
  } else if (x.dtype == Dtype::bf16) {
    scale_elements<bfloat16>(x, factor);
  } else {
    fail("scale: x is {}, wanted f32 or bf16", name_of(x.dtype));
  }
}

}  // namespace lockstep
