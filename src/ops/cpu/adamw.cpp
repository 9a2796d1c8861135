#include <cmath>

#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/numeric.h"
#include "ops/cpu/parallel.h"

namespace lockstep {

void CpuOps::adamw(const AdamwRange& range, const Tensor& scalars,
                   const Tensor& factor) {
  check_adamw(range, scalars, factor, dtype_);
  const std::int64_t count = range.parameters.elements();
  if (count == 0) return;

  const float* s = scalars.as<float>();
  const AdamwScalars at{s[0], s[1], s[2], s[3], s[4], s[5]};
  const float clip = *factor.as<float>();
  if (std::isnan(clip)) return;
  const auto keep = static_cast<float>(1.0 - double(at.learning_rate) *
                                                 double(range.weight_decay));
  const auto step =
      static_cast<float>(double(at.learning_rate) / at.bias_correction1);
  const auto unbias =
      static_cast<float>(1.0 / std::sqrt(double(at.bias_correction2)));

  // read(i) and write(i, p): a parameter's fp32 value.
  const auto update = [&]<class G>(const G* gradients, auto read, auto write) {
    float* first = range.first_moment.as<float>();
    float* second = range.second_moment.as<float>();
    parallel_pieces(count, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        const float g = clip * load(gradients[i]);
        const float m = at.beta1 * first[i] + (1.0f - at.beta1) * g;
        const float v = at.beta2 * second[i] + (1.0f - at.beta2) * g * g;
        const float root = std::sqrt(v) * unbias + at.epsilon;
        const float p = read(i) * keep - step * m / root;
        first[i] = m;
        second[i] = v;
        write(i, p);
      }
    });
  };
  with_element(range.gradients, "adamw: gradients", [&]<class G>(G) {
    const G* gradients = range.gradients.as<G>();
    if (dtype_ == Dtype::f32) {
      float* parameters = range.parameters.as<float>();
      update(
          gradients, [=](std::int64_t i) { return parameters[i]; },
          [=](std::int64_t i, float p) { parameters[i] = p; });
      return;
    }
    auto* rounded = range.parameters.as<bfloat16>();
    auto* rest = range.remainder.as<std::int16_t>();
    update(
        gradients,
        [=](std::int64_t i) -> float {
          return SplitWeight(rounded[i], rest[i]);
        },
        [=](std::int64_t i, float p) {
          const SplitWeight weight(p);
          rounded[i] = weight.rounded;
          rest[i] = weight.remainder;
        });
  });
}

}  // namespace lockstep
