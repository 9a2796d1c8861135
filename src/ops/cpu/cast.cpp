#include "ops/checks.h"
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

template <class From>
void add_elements(const Tensor& sum, const Tensor& x) {
  float* y = sum.as<float>();
  const From* in = x.as<From>();
  parallel_pieces(x.elements(), [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) y[i] += load(in[i]);
  });
}

// Calls apply(T{}) with the element type of an f32 or bf16 tensor.
template <class Apply>
void with_element(const Tensor& x, const char* what, Apply apply) {
  if (x.dtype == Dtype::f32) return apply(float{});
  if (x.dtype == Dtype::bf16) return apply(bfloat16{});
  fail("{} is {}, wanted f32 or bf16", what, name_of(x.dtype));
}

}  // namespace

void CpuOps::cast(const Tensor& out, const Tensor& x) {
  check_count(out, out.dtype, x.elements(), "cast: out");
  with_element(x, "cast: x", [&]<class From>(From) {
    with_element(out, "cast: out",
                 [&]<class To>(To) { cast_elements<To, From>(out, x); });
  });
}

void CpuOps::add(const Tensor& sum, const Tensor& x) {
  check_count(sum, Dtype::f32, x.elements(), "add: sum");
  with_element(x, "add: x",
               [&]<class From>(From) { add_elements<From>(sum, x); });
}

}  // namespace lockstep
