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

template <class To, class From>
void add_elements(const Tensor& sum, const Tensor& x) {
  To* y = sum.as<To>();
  const From* in = x.as<From>();
  parallel_pieces(x.elements(), [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      store(y[i], load(y[i]) + load(in[i]));
    }
  });
}

template <class Visit>
void for_elements(std::int64_t count, Visit visit) {
  parallel_pieces(count, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) visit(i);
  });
}

}  // namespace

void CpuOps::split_weights(const Tensor& parameters, const Tensor& remainder,
                           const Tensor& values) {
  const std::int64_t count = values.elements();
  check_count(values, Dtype::f32, count, "split_weights: values");
  check_weights(parameters, remainder, count, /*remainder_needed=*/false,
                "split_weights: parameters");
  if (parameters.dtype == Dtype::f32) return cast(parameters, values);
  const float* from = values.as<float>();
  auto* rounded = parameters.as<bfloat16>();
  auto* rest = remainder ? remainder.as<std::int16_t>() : nullptr;
  for_elements(count, [=](std::int64_t i) {
    const SplitWeight weight(from[i]);
    rounded[i] = weight.rounded;
    if (rest != nullptr) rest[i] = weight.remainder;
  });
}

void CpuOps::join_weights(const Tensor& values, const Tensor& parameters,
                          const Tensor& remainder) {
  const std::int64_t count = values.elements();
  check_count(values, Dtype::f32, count, "join_weights: values");
  check_weights(parameters, remainder, count, /*remainder_needed=*/false,
                "join_weights: parameters");
  if (!remainder) return cast(values, parameters);
  float* to = values.as<float>();
  const auto* rounded = parameters.as<bfloat16>();
  const auto* rest = remainder.as<std::int16_t>();
  for_elements(
      count, [=](std::int64_t i) { to[i] = SplitWeight(rounded[i], rest[i]); });
}

void CpuOps::cast(const Tensor& out, const Tensor& x) {
  check_count(out, out.dtype, x.elements(), "cast: out");
  with_element(x, "cast: x", [&]<class From>(From) {
    with_element(out, "cast: out",
                 [&]<class To>(To) { cast_elements<To, From>(out, x); });
  });
}

void CpuOps::add(const Tensor& sum, const Tensor& x) {
  check_count(sum, sum.dtype, x.elements(), "add: sum");
  with_element(x, "add: x", [&]<class From>(From) {
    with_element(sum, "add: sum",
                 [&]<class To>(To) { add_elements<To, From>(sum, x); });
  });
}

}  // namespace lockstep
