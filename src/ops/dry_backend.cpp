#include "ops/dry_backend.h"

#include <cstdlib>

#include "core/host_event.h"

namespace lockstep {
namespace {

class DryDevice final : public Device {
 public:
  Kind kind() const override { return Kind::cpu; }
  std::string name() const override { return "dry run"; }
  double peak_flops(Precision) const override { return 0; }

  Event record() override { return HostEvent::now(); }
  void wait(const Event&) override {}
  void synchronize() override {}

  HostBuffer allocate_host(std::int64_t bytes) override {
    return {std::calloc(1, static_cast<std::size_t>(bytes)), std::free};
  }
  void copy_to_device(const Tensor&, const void*) override {}
  void copy_to_host(void*, const Tensor&) override {}
  Event prefetch(const Tensor&, const void*, const Event&) override {
    return record();
  }
  void zero(const Tensor&) override {}
  void copy(const Tensor&, const Tensor&) override {}

 private:
  void* allocate_bytes(std::int64_t bytes) override {
    const std::uintptr_t address = next_;
    next_ += static_cast<std::uintptr_t>((bytes + 255) / 256 * 256);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): nobody follows it
    return reinterpret_cast<void*>(address);
  }
  void free_bytes(void*) noexcept override {}

  std::uintptr_t next_ = 256;
};

class DryOps final : public Ops {
 public:
  using T = const Tensor&;
  using H = const Heads&;
  void embedding(T, T, T) override {}
  void embedding_backward(T, T, T, Accumulate) override {}
  void rmsnorm(T, T, T, T, T, T) override {}
  void rmsnorm_backward(T, T, T, T, T, T, Accumulate) override {}
  void linear(T, T, T) override {}
  void linear_backward_input(T, T, T) override {}
  void linear_backward_weight(T, T, T, Accumulate) override {}
  void rope(H, T, Pass) override {}
  void attention(H, T, H, H, H, bool) override {}
  void attention_backward(H, H, H, H, H, T, H, H, H, bool) override {}
  void matmul(H, H, Transpose, H, Transpose) override {}
  void softmax(T, T, float, bool) override {}
  void softmax_backward(T, T, float) override {}
  void swiglu(T, T) override {}
  void swiglu_backward(T, T, T) override {}
  void cross_entropy(T, T, T, std::int64_t) override {}
  void cross_entropy_backward(T, T, T, std::int64_t, float) override {}
  void add_sum(T, T, double) override {}
  void add_sum_of_squares(T, T) override {}
  void clip_factor(T, T, double) override {}
  void adamw(const AdamwRange&, T, T) override {}
  void add(T, T) override {}
  void weighted_sum(T, T, T) override {}
  void weighted_sum_backward(T, T, T, T, T) override {}
  void cast(T, T) override {}
  void split_weights(T, T, T) override {}
  void join_weights(T, T, T) override {}
};

}  // namespace

Backend make_dry_backend() {
  return {std::make_unique<DryDevice>(), std::make_unique<DryOps>()};
}

}  // namespace lockstep
