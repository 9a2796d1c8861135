#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/lane.h"
#include "core/memory_ledger.h"
#include "core/tensor.h"

namespace lockstep {

class Device;

// Device memory, owned. Moves only; freed and booked out of the ledger on
// destruction, which must come before the Device's own.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, void* data, std::int64_t bytes, Category category,
         std::string name);
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer();

  void* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }
  // The first elements of the buffer as a tensor.
  Tensor tensor(Dtype dtype, Shape shape) const;

 private:
  void swap(Buffer& other) noexcept;

  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
  Category category_{};
  std::string name_;
};

// Host memory that a device can copy from and to while the host goes on
// (pinned where there is a GPU). Owned; moves only.
using HostBuffer = std::unique_ptr<void, void (*)(void*)>;

// Work that was captured, to be issued any number of times at the cost of one
// launch (a CUDA graph). It reads and writes the memory that it was captured
// with, and is destroyed before its device.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  virtual void launch() = 0;
};

// One processor that computes: its memory, and its compute lane. All work is
// issued from one thread. On CPUs the compute lane runs as it is issued.
class Device : public Lane {
 public:
  enum class Kind { cpu, cuda };

  virtual Kind kind() const = 0;
  virtual std::string name() const = 0;  // "NVIDIA H200", the CPU's model
  // Dense peak of matrix products in FLOP/s; 0 where it isn't known.
  virtual double peak_flops(Precision precision) const = 0;

  // Zeroed memory, aligned to 256 bytes. Out of memory is an Error that says
  // what every category holds and what to try.
  Buffer allocate(std::int64_t bytes, Category category, std::string name);
  Buffer allocate(Dtype dtype, Shape shape, Category category,
                  std::string name) {
    return allocate(shape.elements() * bytes_of(dtype), category,
                    std::move(name));
  }
  virtual HostBuffer allocate_host(std::int64_t bytes) = 0;

  // Copies in order on the compute lane. Host memory must stay as it is until
  // the lane has passed the copy; with memory of allocate_host() the host does
  // not wait.
  virtual void copy_to_device(const Tensor& to, const void* from) = 0;
  virtual void copy_to_host(void* to, const Tensor& from) = 0;
  // Copies on a transfer lane of its own, beside compute, once `after` has
  // completed; the returned event completes when the data has arrived.
  virtual Event prefetch(const Tensor& to, const void* from,
                         const Event& after) = 0;
  virtual void zero(const Tensor& tensor) = 0;
  // Bytes of one tensor to another of this device that is as large.
  virtual void copy(const Tensor& to, const Tensor& from) = 0;

  // What the argument issues on the compute lane, without running it; nullptr
  // where the device has no such thing, and then it is not called. It must not
  // wait for the device, allocate on it or wait for other lanes. Events that it
  // records are those of the latest launch.
  virtual std::unique_ptr<CapturedWork> capture(const std::function<void()>&) {
    return nullptr;
  }

  // Names the work issued until pop_range(): for profilers (NVTX), and for
  // the trace. Ranges nest.
  void push_range(const char* name);
  void pop_range();
  // Between start and take, every range is kept as a span, in the order of
  // their beginnings. It begins and ends outside of all ranges.
  void start_trace();
  std::vector<Span> take_trace();

  MemoryLedger& ledger() { return ledger_; }
  const MemoryLedger& ledger() const { return ledger_; }

 protected:
  friend class Buffer;
  // Zeroed memory; nullptr when there is not enough.
  virtual void* allocate_bytes(std::int64_t bytes) = 0;
  virtual void free_bytes(void* data) noexcept = 0;
  virtual void push_profiler_range(const char*) {}
  virtual void pop_profiler_range() {}

 private:
  MemoryLedger ledger_;
  bool tracing_ = false;
  std::vector<Span> trace_;
  std::vector<std::size_t> open_;  // indices of trace_, the innermost last
};

// fp32 host values into an f32 or bf16 tensor (rounded to nearest even), and
// back; both return when done.
void upload(Device& device, const Tensor& to, std::span<const float> from);
void download(Device& device, std::span<float> to, const Tensor& from);

// A profiler range that ends with its scope.
class ScopedRange {
 public:
  ScopedRange(Device& device, const char* name) : device_(device) {
    device_.push_range(name);
  }
  ~ScopedRange() { device_.pop_range(); }
  ScopedRange(const ScopedRange&) = delete;
  ScopedRange& operator=(const ScopedRange&) = delete;

 private:
  Device& device_;
};

}  // namespace lockstep
