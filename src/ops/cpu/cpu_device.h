#pragma once

#include "core/device.h"

namespace lockstep {

// The CPUs that this process may use. The compute lane is the calling thread:
// work is done when the call returns, so every recorded event has completed.
class CpuDevice final : public Device {
 public:
  Kind kind() const override { return Kind::cpu; }
  std::string name() const override;
  double peak_flops(Precision) const override { return 0; }

  Event record() override;
  void wait(const Event& event) override;
  void synchronize() override {}

  HostBuffer allocate_host(std::int64_t bytes) override;
  void copy_to_device(const Tensor& to, const void* from) override;
  void copy_to_host(void* to, const Tensor& from) override;
  Event prefetch(const Tensor& to, const void* from,
                 const Event& after) override;
  void zero(const Tensor& tensor) override;
  void copy(const Tensor& to, const Tensor& from) override;

 private:
  void* allocate_bytes(std::int64_t bytes) override;
  void free_bytes(void* data) noexcept override;
};

}  // namespace lockstep
