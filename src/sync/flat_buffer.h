#pragma once

#include <cstdint>

#include "core/device.h"
#include "model/parameter_store.h"

namespace lockstep {

// One buffer for all units' parameters or gradients, unit after unit, so that
// any stretch of them can travel as one.
class FlatBuffer {
 public:
  FlatBuffer() = default;
  // Allocates, and points `member` (Unit::parameters or Unit::gradients) of
  // each unit at its part.
  FlatBuffer(Device& device, ParameterStore& store, Dtype dtype,
             Tensor Unit::*member, Category category, const char* name) {
    std::int64_t elements = 0;
    for (const Unit& unit : store.units()) elements += unit.elements;
    memory_ = device.allocate(dtype, {elements}, category, name);
    all_ = memory_.tensor(dtype, {elements});
    std::int64_t begin = 0;
    for (Unit& unit : store.units()) {
      unit.*member = all_.range(begin, unit.elements);
      begin += unit.elements;
    }
  }

  const Tensor& all() const { return all_; }
  // Where a tensor inside the buffer begins, in elements.
  std::int64_t offset_of(const Tensor& part) const {
    return (static_cast<const std::byte*>(part.data) -
            static_cast<const std::byte*>(all_.data)) /
           bytes_of(all_.dtype);
  }

 private:
  Buffer memory_;
  Tensor all_;
};

}  // namespace lockstep
