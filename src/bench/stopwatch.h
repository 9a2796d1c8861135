#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "core/device.h"

namespace lockstep::bench {

// What repeated measurements of one thing gave, in ms.
struct Times {
  double median = 0;
  double least = 0, most = 0;
  double mean = 0, deviation = 0;  // sample standard deviation; 0 of one
};
// At least one measurement.
Times summary(std::vector<double> milliseconds);

// Times work on a device's compute lane, each run between two events of its
// own. On a GPU the last-level cache is emptied before each run (by writing to
// memory larger than it), as training finds it; that also gives the host time
// to issue the run before the GPU gets to it.
class Stopwatch {
 public:
  Stopwatch(Device& device, std::int64_t warmup, std::int64_t iterations);

  Times time(const std::function<void()>& work);

 private:
  Device& device_;
  std::int64_t warmup_, iterations_;
  Buffer eviction_;
};

}  // namespace lockstep::bench
