#pragma once

#include <string>
#include <utility>

#include "core/device.h"

namespace lockstep {

// Scratch memory of the work on one lane: a single buffer that grows to the
// largest request, and that each operation uses in its turn.
class Workspace {
 public:
  Workspace(Device& device, std::string name)
      : device_(device), name_(std::move(name)) {}

  // Valid until the next call; its former contents are lost.
  void* at_least(std::int64_t bytes) {
    if (bytes > buffer_.bytes()) {
      buffer_ = Buffer();
      buffer_ = device_.allocate(bytes, Category::workspace, name_);
    }
    return buffer_.data();
  }

 private:
  Device& device_;
  std::string name_;
  Buffer buffer_;
};

}  // namespace lockstep
