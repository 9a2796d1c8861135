#include "ops/cpu/cpu_ops.h"

#include <omp.h>

#include "ops/cpu/blas.h"
#include "ops/cpu/cpu_device.h"

namespace lockstep {

CpuOps::CpuOps(Device& device, int threads, Precision precision)
    : device_(device), dtype_(compute_dtype(precision)) {
  require(threads >= 1, "a CPU backend needs at least 1 thread, not {}",
          threads);
  require(precision != Precision::tf32,
          "tf32 is a precision of GPUs; use fp32 or bf16 on CPUs");
  omp_set_num_threads(threads);
  set_up_blas(threads);
}

float* CpuOps::scratch(Scratch purpose, std::int64_t floats) {
  constexpr std::array names = {"first operand in fp32",
                                "second operand in fp32", "results in fp32",
                                "partial sums", "attention tiles"};
  const auto index = static_cast<std::size_t>(purpose);
  Buffer& buffer = scratch_[index];
  const auto bytes = floats * static_cast<std::int64_t>(sizeof(float));
  if (buffer.bytes() < bytes) {
    buffer = Buffer();  // freed first, so that the two don't add up
    buffer = device_.allocate(bytes, Category::workspace, names[index]);
  }
  return static_cast<float*>(buffer.data());
}

Backend make_cpu_backend(int threads, Precision precision) {
  auto device = std::make_unique<CpuDevice>();
  auto ops = std::make_unique<CpuOps>(*device, threads, precision);
  return {std::move(device), std::move(ops)};
}

}  // namespace lockstep
