#include "cuda/attention/hopper.cuh"
#include "cuda/cuda_error.h"

namespace lockstep::attention::hopper {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found when it is first needed: the driver is not
// linked.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  check_cuda(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                       12000, cudaEnableDefault, &found),
      "cudaGetDriverEntryPointByVersion");
#else
  check_cuda(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function,
                                     cudaEnableDefault, &found),
             "cudaGetDriverEntryPoint");
#endif
  if (found != cudaDriverEntryPointSuccess) {
    check_cuda(cudaErrorSymbolNotFound, "cuTensorMapEncodeTiled");
  }
  return reinterpret_cast<Encode>(function);
}

}  // namespace

CUtensorMap tensor_map(const void* data, const Extents& extents, int tokens,
                       std::int64_t batch_stride, std::int64_t token_stride,
                       std::int64_t head_stride) {
  static const Encode encode = find_encode();
  const std::uint64_t sizes[] = {static_cast<std::uint64_t>(extents.head_dim),
                                 static_cast<std::uint64_t>(tokens),
                                 static_cast<std::uint64_t>(extents.heads),
                                 static_cast<std::uint64_t>(extents.batch)};
  const auto bytes = [](std::int64_t elements) {
    return static_cast<std::uint64_t>(elements) * sizeof(bf16);
  };
  const std::uint64_t strides[] = {bytes(token_stride), bytes(head_stride),
                                   bytes(batch_stride)};
  const std::uint32_t box[] = {64, box_rows, 1, 1}, steps[] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(data),
             sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    check_cuda(cudaErrorInvalidValue, "cuTensorMapEncodeTiled");
  }
  return map;
}

unsigned multiprocessors() {
  int device = 0, count = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
      "cudaDeviceGetAttribute");
  return static_cast<unsigned>(count);
}

}  // namespace lockstep::attention::hopper

namespace lockstep::attention {

bool is_hopper() {
  int device = 0, major = 0, minor = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
      "cudaDeviceGetAttribute");
  check_cuda(
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
      "cudaDeviceGetAttribute");
  return major == 9 && minor == 0;
}

}  // namespace lockstep::attention
