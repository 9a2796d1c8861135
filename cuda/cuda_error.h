#pragma once

#include <cuda_runtime_api.h>

namespace lockstep {

// A failed CUDA call as an Error: "cudaMalloc failed: out of memory
// (cudaErrorMemoryAllocation)".
void check_cuda(cudaError_t code, const char* call);

// The same for the kernel that was launched just before.
void check_launch(const char* kernel);

// Blocks of a one-dimensional grid; an Error where a grid cannot be so large.
unsigned grid_blocks(long long blocks, const char* kernel);

}  // namespace lockstep
