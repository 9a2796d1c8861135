#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace lockstep {

// The learning rate of step t = 1, 2, …: linear to `peak` over the warm-up,
// then half a cosine down to `floor` until step `decay`, `floor` from there on
// (Loshchilov & Hutter 2017, eq. 5, one cycle).
struct CosineSchedule {
  double peak = 0;
  double floor = 0;
  std::int64_t warmup = 0;
  std::int64_t decay = 0;

  double at(std::int64_t t) const {
    if (t < warmup) return peak * double(t) / double(warmup);
    if (t >= decay) return floor;
    const double progress = double(t - warmup) / double(decay - warmup);
    return floor +
           0.5 * (peak - floor) * (1 + std::cos(std::numbers::pi * progress));
  }
};

}  // namespace lockstep
