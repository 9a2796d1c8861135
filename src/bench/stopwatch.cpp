#include "bench/stopwatch.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace lockstep::bench {
namespace {

// Several times the cache of any GPU; CPUs get none.
constexpr std::int64_t eviction_bytes = std::int64_t{256} << 20;

}  // namespace

Times summary(std::vector<double> milliseconds) {
  std::sort(milliseconds.begin(), milliseconds.end());
  const std::size_t count = milliseconds.size();
  Times times;
  times.least = milliseconds.front();
  times.most = milliseconds.back();
  times.median = (milliseconds[(count - 1) / 2] + milliseconds[count / 2]) / 2;
  for (const double value : milliseconds) times.mean += value / double(count);
  for (const double value : milliseconds) {
    times.deviation += std::pow(value - times.mean, 2);
  }
  times.deviation =
      count > 1 ? std::sqrt(times.deviation / double(count - 1)) : 0;
  return times;
}

Stopwatch::Stopwatch(Device& device, std::int64_t warmup,
                     std::int64_t iterations)
    : device_(device),
      warmup_(warmup),
      iterations_(iterations),
      eviction_(device.allocate(
          device.kind() == Device::Kind::cuda ? eviction_bytes : 0,
          Category::workspace, "eviction of the cache")) {}

Times Stopwatch::time(const std::function<void()>& work) {
  for (std::int64_t i = 0; i < warmup_; ++i) work();
  device_.synchronize();
  std::vector<std::pair<Event, Event>> runs;
  for (std::int64_t i = 0; i < iterations_; ++i) {
    if (eviction_) {
      device_.zero(eviction_.tensor(Dtype::f32,
                                    {eviction_bytes / bytes_of(Dtype::f32)}));
    }
    const Event begin = device_.record();
    work();
    runs.emplace_back(begin, device_.record());
  }
  device_.synchronize();
  std::vector<double> milliseconds;
  for (const auto& [begin, end] : runs) {
    milliseconds.push_back(end->milliseconds_since(*begin));
  }
  return summary(std::move(milliseconds));
}

}  // namespace lockstep::bench
