#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// What device memory is for. The order is that of the run record.
enum class Category : std::uint8_t {
  parameters,     // weights in the compute dtype, whole or gathered
  gradients,      // of weights, whole or sharded
  optimizer,      // moments, and what bf16 weights lack of fp32 ones
  activations,    // saved for backward, and the gradients of activations
  communication,  // staging and gather buffers of collectives
  workspace,      // scratch of kernels and libraries, token batches
};
constexpr int category_count = 6;
constexpr std::array<std::string_view, category_count> category_names = {
    "parameters",  "gradients",     "optimizer",
    "activations", "communication", "workspace"};
constexpr std::string_view name_of(Category category) {
  return category_names[static_cast<int>(category)];
}

using BytesByCategory = std::array<std::int64_t, category_count>;

struct MemoryFigures {
  BytesByCategory bytes{};
  std::int64_t total = 0;
  std::int64_t peak = 0;  // highest total since the start
};

struct MemoryEvent {
  double time_us = 0;            // since the ledger was made
  std::int64_t delta_bytes = 0;  // > 0: allocated, < 0: freed
  Category category{};
  std::string name;
};

// The account of every byte allocated on one device: who holds how much, what
// for, and the peak. Thread-safe.
class MemoryLedger {
 public:
  MemoryLedger();

  void add(std::int64_t bytes, Category category, std::string_view name);
  void remove(std::int64_t bytes, Category category, std::string_view name);
  MemoryFigures figures() const;
  // Bookings so far. As long as it stays, memory is where it was.
  std::int64_t changes() const;

  // Between start and take, every event is kept. What is held at the start
  // comes first, as it was allocated, so that the sum of all deltas is what is
  // held at the end.
  void start_timeline();
  std::vector<MemoryEvent> take_timeline();
  double now_us() const;  // on the clock of the events

  // "parameters 1.2 GiB, gradients 2.4 GiB, …", largest first.
  std::string summary() const;

 private:
  void book(const MemoryEvent& event);

  mutable std::mutex mutex_;
  MemoryFigures figures_;
  std::int64_t changes_ = 0;
  std::vector<MemoryEvent> held_;
  bool keeping_timeline_ = false;
  std::vector<MemoryEvent> timeline_;
  std::int64_t start_ns_ = 0;
};

// "1.50 GiB", "12.0 KiB", "1000 MiB", "17 B"
std::string format_bytes(double bytes);

}  // namespace lockstep
