#pragma once

#include <string>

#include "core/device.h"
#include "cuda/cuda_lane.h"

namespace lockstep {

// One NVIDIA GPU: a compute stream, a transfer stream beside it, device memory
// by cudaMalloc. Makes a context on this GPU and on no other; the thread that
// makes it is the one that uses it.
class CudaDevice : public Device {
 public:
  // GPU `ordinal` of those visible to the process.
  explicit CudaDevice(int ordinal);

  Kind kind() const override { return Kind::cuda; }
  std::string name() const override { return name_; }
  double peak_flops(Precision precision) const override;

  HostBuffer allocate_host(std::int64_t bytes) override;
  void copy_to_device(const Tensor& to, const void* from) override;
  void copy_to_host(void* to, const Tensor& from) override;
  Event prefetch(const Tensor& to, const void* from,
                 const Event& after) override;
  void zero(const Tensor& tensor) override;
  void copy(const Tensor& to, const Tensor& from) override;

  std::unique_ptr<CapturedWork> capture(
      const std::function<void()>& issue) override;

  Event record() override { return compute_.record(); }
  void wait(const Event& event) override { compute_.wait(event); }
  void synchronize() override { compute_.synchronize(); }

  cudaStream_t stream() const { return compute_.stream(); }
  int ordinal() const { return ordinal_; }
  int multiprocessors() const { return multiprocessors_; }

 protected:
  void* allocate_bytes(std::int64_t bytes) override;
  void free_bytes(void* data) noexcept override;
  void push_profiler_range(const char* name) override;
  void pop_profiler_range() override;

 private:
  // Made current before the lanes' streams are made.
  struct Current {
    explicit Current(int ordinal);
  };

  int ordinal_;
  Current current_;
  std::string name_;
  int multiprocessors_ = 0;
  CudaLane compute_;
  CudaLane transfer_;
};

}  // namespace lockstep
