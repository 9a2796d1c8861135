#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/tensor.h"

namespace lockstep {

// Storage types as fp32 values, in forms that loops vectorise.
inline float load(float value) {
  return value;
}
inline float load(bfloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
inline void store(float& to, float value) {
  to = value;
}
inline void store(bfloat16& to, float value) {
  to = bfloat16(value);
}

// Calls apply(T{}) with the element type of an f32 or bf16 tensor.
template <class Apply>
void with_element(const Tensor& x, const char* what, Apply apply) {
  if (x.dtype == Dtype::f32) return apply(float{});
  if (x.dtype == Dtype::bf16) return apply(bfloat16{});
  fail("{} is {}, wanted f32 or bf16", what, name_of(x.dtype));
}

// e^x within 1e-6 relative, without a branch. Below −87.33 (fp32's smallest
// normal number) it is 0, from 88.37 up infinity; NaN stays NaN; e^0 is 1.
//   e^x = 2^n · e^r with n = round(x / ln 2), |r| ≤ ln 2 / 2,
// ln 2 in two parts so that r is exact, e^r by its Taylor polynomial.
inline float fast_exp(float x) {
  constexpr float round_by_adding = 0x1.8p23f;
  const float shifted = x * 1.44269504f + round_by_adding;
  const float n = shifted - round_by_adding;
  const float r = (x - n * 0.693145752f) - n * 1.42860682e-6f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // The low bits of `shifted` hold n; moved up they are the exponent of 2^n.
  const auto exponent = (std::bit_cast<std::uint32_t>(shifted) << 23) +
                        std::bit_cast<std::uint32_t>(1.0f);
  const float result = p * std::bit_cast<float>(exponent);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  return x < -87.33f ? 0.0f : (x > 88.37f ? infinity : result);
}

inline float sigmoid(float x) {
  return 1.0f / (1.0f + fast_exp(-x));
}

}  // namespace lockstep
