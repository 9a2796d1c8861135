#include "core/device.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace lockstep {

Buffer::Buffer(Device& device, void* data, std::int64_t bytes,
               Category category, std::string name)
    : device_(&device),
      data_(data),
      bytes_(bytes),
      category_(category),
      name_(std::move(name)) {
  device_->ledger_.add(bytes_, category_, name_);
}

Buffer::~Buffer() {
  if (device_ == nullptr) return;
  device_->free_bytes(data_);
  device_->ledger_.remove(bytes_, category_, name_);
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(category_, other.category_);
  std::swap(name_, other.name_);
}

Tensor Buffer::tensor(Dtype dtype, Shape shape) const {
  require(shape.elements() * bytes_of(dtype) <= bytes_,
          "{} {} does not fit in '{}' of {} bytes", name_of(dtype),
          shape.text(), name_, bytes_);
  return {data_, dtype, shape};
}

Buffer Device::allocate(std::int64_t bytes, Category category,
                        std::string name) {
  require(bytes >= 0, "'{}' asks for {} bytes", name, bytes);
  if (bytes == 0) return {};
  void* data = allocate_bytes(bytes);
  if (data == nullptr) {
    throw OutOfMemory(
        fmt::format(
            "out of memory on {}: '{}' ({}) needs {}; held so far: {}; try a "
            "smaller --batch-size with more --grad-accumulation, a shorter "
            "--context-length, --precision bf16, or a smaller model",
            this->name(), name, name_of(category), format_bytes(double(bytes)),
            ledger_.summary()),
        bytes);
  }
  return {*this, data, bytes, category, std::move(name)};
}

void Device::push_range(const char* name) {
  push_profiler_range(name);
  if (!tracing_) return;
  const int depth = static_cast<int>(open_.size());
  open_.push_back(trace_.size());
  trace_.push_back({name, depth, 0, record(), nullptr});
}

void Device::pop_range() {
  pop_profiler_range();
  if (!tracing_) return;
  trace_.at(open_.back()).end = record();
  open_.pop_back();
}

void Device::start_trace() {
  tracing_ = true;
  trace_.clear();
  open_.clear();
}

std::vector<Span> Device::take_trace() {
  tracing_ = false;
  return std::exchange(trace_, {});
}

void upload(Device& device, const Tensor& to, std::span<const float> from) {
  require(to.elements() == std::ssize(from), "{} values for a tensor of {}",
          from.size(), to.elements());
  if (to.dtype == Dtype::f32) {
    device.copy_to_device(to, from.data());
    device.synchronize();
    return;
  }
  require(to.dtype == Dtype::bf16, "cannot upload to {}", name_of(to.dtype));
  std::vector<bfloat16> rounded(from.size());
  std::transform(from.begin(), from.end(), rounded.begin(),
                 [](float value) { return bfloat16(value); });
  device.copy_to_device(to, rounded.data());
  device.synchronize();
}

void download(Device& device, std::span<float> to, const Tensor& from) {
  require(from.elements() == std::ssize(to), "{} values from a tensor of {}",
          to.size(), from.elements());
  if (from.dtype == Dtype::f32) {
    device.copy_to_host(to.data(), from);
    device.synchronize();
    return;
  }
  require(from.dtype == Dtype::bf16, "cannot download {}", name_of(from.dtype));
  std::vector<bfloat16> rounded(to.size());
  device.copy_to_host(rounded.data(), from);
  device.synchronize();
  std::copy(rounded.begin(), rounded.end(), to.begin());
}

}  // namespace lockstep
