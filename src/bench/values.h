#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/device.h"

namespace lockstep::bench {

// Fills an f32 or bf16 tensor with N(0, 1), the same values for the same
// stream and again from the start after 1,000,003, and i32 with whole
// numbers below `limit`.
void fill_normal(Device& device, const Tensor& tensor, std::uint32_t stream);
void fill_below(Device& device, const Tensor& tensor, std::int32_t limit);

// The elements of an f32, bf16 or f64 tensor.
std::vector<double> values_of(Device& device, const Tensor& tensor);

// ‖a − b‖ / ‖b‖; NaN where either has one.
double relative_difference(std::span<const double> a,
                           std::span<const double> b);

}  // namespace lockstep::bench
