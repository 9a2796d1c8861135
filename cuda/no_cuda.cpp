#include "core/error.h"
#include "ops/ops.h"

// The CUDA backend of a build without CUDA.
namespace lockstep {

Backend make_cuda_backend(int, Precision, const std::string&) {
  fail(
      "this build has no CUDA backend; use --device cpu, or build with "
      "-DLOCKSTEP_CUDA=ON");
}

bool built_with_cuda() {
  return false;
}

std::vector<CudaDeviceInfo> cuda_devices() {
  return {};
}

std::string cuda_version() {
  return "";
}

}  // namespace lockstep
