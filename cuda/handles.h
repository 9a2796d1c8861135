#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "cuda/cuda_error.h"

namespace lockstep {

// A handle of a C library (a stream, an event, a matrix layout, a
// communicator), owned: moves only, and is destroyed once.
//
//   Handle<cudaStream_t, cudaStreamDestroy> stream;
//   check_cuda(cudaStreamCreate(stream.out()), "cudaStreamCreate");
template <class T, auto destroy>
class Handle {
 public:
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  Handle(Handle&& other) noexcept : raw_(std::exchange(other.raw_, T{})) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Handle() { reset(); }

  T get() const { return raw_; }
  explicit operator bool() const { return raw_ != T{}; }
  // Where a create function writes the new handle; drops the present one.
  T* out() {
    reset();
    return &raw_;
  }
  // Gives the handle up without destroying it.
  T release() { return std::exchange(raw_, T{}); }
  void reset() {
    if (raw_ != T{}) destroy(raw_);
    raw_ = T{};
  }

 private:
  T raw_{};
};

using StreamHandle = Handle<cudaStream_t, cudaStreamDestroy>;
using GraphHandle = Handle<cudaGraph_t, cudaGraphDestroy>;
using GraphExecHandle = Handle<cudaGraphExec_t, cudaGraphExecDestroy>;
using EventHandle = Handle<cudaEvent_t, cudaEventDestroy>;

}  // namespace lockstep
