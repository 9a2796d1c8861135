#include "ops/cpu/cpu_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>

#include "core/host_event.h"
#include "ops/cpu/parallel.h"

namespace lockstep {
namespace {

constexpr std::int64_t alignment = 256;
constexpr std::int64_t huge_page = std::int64_t{2} << 20;
constexpr std::int64_t piece_bytes = 1 << 18;

// Large buffers ask for huge pages: matrix products walk through them in
// strides, which costs many misses of the address translation otherwise.
void* aligned_bytes(std::int64_t bytes) {
  const std::int64_t boundary = bytes < huge_page ? alignment : huge_page;
  const std::int64_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* data = nullptr;
  if (posix_memalign(&data, boundary, rounded) != 0) return nullptr;
  if (boundary == huge_page) madvise(data, rounded, MADV_HUGEPAGE);
  return data;
}

// What the host could still give without swapping; more than anyone asks for
// where it does not say.
std::int64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  for (std::int64_t kib = 0; file >> name >> kib; file.ignore(8, '\n')) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return std::numeric_limits<std::int64_t>::max();
}

// By all threads: on a host of several memory nodes each then holds the part
// that its own cores touched first.
void zero_bytes(void* data, std::int64_t bytes) {
  const std::int64_t pieces = (bytes + piece_bytes - 1) / piece_bytes;
  parallel_for(pieces, piece_bytes, [&](std::int64_t piece) {
    const std::int64_t begin = piece * piece_bytes;
    std::memset(static_cast<std::byte*>(data) + begin, 0,
                static_cast<std::size_t>(std::min(piece_bytes, bytes - begin)));
  });
}

}  // namespace

std::string CpuDevice::name() const {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "CPU";
}

Event CpuDevice::record() {
  return HostEvent::now();
}

void CpuDevice::wait(const Event& event) {
  if (event != nullptr) event->wait();
}

HostBuffer CpuDevice::allocate_host(std::int64_t bytes) {
  void* data = aligned_bytes(bytes);
  require(data != nullptr, "out of host memory: a buffer needs {}",
          format_bytes(double(bytes)));
  return {data, [](void* memory) { std::free(memory); }};
}

void CpuDevice::copy_to_device(const Tensor& to, const void* from) {
  if (to.bytes() != 0) std::memcpy(to.data, from, to.bytes());
}

void CpuDevice::copy_to_host(void* to, const Tensor& from) {
  if (from.bytes() != 0) std::memcpy(to, from.data, from.bytes());
}

Event CpuDevice::prefetch(const Tensor& to, const void* from,
                          const Event& after) {
  wait(after);
  copy_to_device(to, from);
  return record();
}

void CpuDevice::zero(const Tensor& tensor) {
  zero_bytes(tensor.data, tensor.bytes());
}

void CpuDevice::copy(const Tensor& to, const Tensor& from) {
  const std::int64_t pieces = (from.bytes() + piece_bytes - 1) / piece_bytes;
  parallel_for(pieces, piece_bytes, [&](std::int64_t piece) {
    const std::int64_t begin = piece * piece_bytes;
    std::memcpy(
        static_cast<std::byte*>(to.data) + begin,
        static_cast<const std::byte*>(from.data) + begin,
        static_cast<std::size_t>(std::min(piece_bytes, from.bytes() - begin)));
  });
}

void* CpuDevice::allocate_bytes(std::int64_t bytes) {
  // The kernel grants what it hasn't got, and kills who then uses it.
  if (bytes >= huge_page && bytes > available_bytes()) return nullptr;
  void* data = aligned_bytes(bytes);
  if (data != nullptr) zero_bytes(data, bytes);
  return data;
}

void CpuDevice::free_bytes(void* data) noexcept {
  std::free(data);
}

}  // namespace lockstep
