#include "cuda/cuda_error.h"

#include <limits>

#include "core/error.h"

namespace lockstep {

void check_cuda(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  fail("{} failed: {} ({})", call, cudaGetErrorString(code),
       cudaGetErrorName(code));
}

void check_launch(const char* kernel) {
  const cudaError_t code = cudaGetLastError();
  if (code == cudaSuccess) return;
  fail("launching the {} kernel failed: {} ({})", kernel,
       cudaGetErrorString(code), cudaGetErrorName(code));
}

unsigned grid_blocks(long long blocks, const char* kernel) {
  require(blocks > 0 && blocks <= std::numeric_limits<int>::max(),
          "the {} kernel would need {} blocks; a grid has 1 to 2^31 - 1",
          kernel, blocks);
  return static_cast<unsigned>(blocks);
}

}  // namespace lockstep
