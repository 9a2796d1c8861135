#include "bench/values.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/random.h"

namespace lockstep::bench {

void fill_normal(Device& device, const Tensor& tensor, std::uint32_t stream) {
  constexpr std::int64_t period = 1'000'003;  // rows of any matrix differ
  const std::int64_t count = tensor.elements();
  std::vector<float> values(std::min(count, period));
  const auto made = static_cast<std::int64_t>(values.size());
#pragma omp parallel for
  for (std::int64_t i = 0; i < made; i += 2) {
    const auto bits =
        random_bits(1, Stream::samples, stream, static_cast<std::uint64_t>(i));
    // Box & Muller 1958: two normal values of two uniform ones.
    const double radius =
        std::sqrt(-2 * std::log(1 - unit_interval(bits[0], bits[1])));
    const double angle = 2 * std::numbers::pi * unit_interval(bits[2], bits[3]);
    values[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < made) {
      values[i + 1] = static_cast<float>(radius * std::sin(angle));
    }
  }
  const Tensor flat{tensor.data, tensor.dtype, {count}};
  upload(device, flat.range(0, made), values);
  for (std::int64_t at = made; at < count; at += made) {
    const std::int64_t size = std::min(made, count - at);
    device.copy(flat.range(at, size), flat.range(0, size));
  }
}

void fill_below(Device& device, const Tensor& tensor, std::int32_t limit) {
  std::vector<std::int32_t> values(tensor.elements());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] =
        static_cast<std::int32_t>(random_bits(1, Stream::tokens, 0, i)[0] %
                                  static_cast<std::uint32_t>(limit));
  }
  device.copy_to_device(tensor, values.data());
  device.synchronize();
}

std::vector<double> values_of(Device& device, const Tensor& tensor) {
  std::vector<double> values(tensor.elements());
  if (tensor.dtype == Dtype::f64) {
    device.copy_to_host(values.data(), tensor);
    device.synchronize();
    return values;
  }
  std::vector<float> narrow(values.size());
  download(device, narrow, tensor);
  values.assign(narrow.begin(), narrow.end());
  return values;
}

double relative_difference(std::span<const double> a,
                           std::span<const double> b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(a[i] - b[i], 2);
    norm += std::pow(b[i], 2);
  }
  return std::sqrt(norm > 0 ? difference / norm : difference);
}

}  // namespace lockstep::bench
