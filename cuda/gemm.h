#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <map>

#include "core/dtype.h"
#include "cuda/cuda_device.h"
#include "cuda/handles.h"

namespace lockstep {

// A row-major matrix in device memory as a product uses it: rows × columns
// after a transposition that only changes how memory is read.
struct Operand {
  const void* data = nullptr;
  Dtype dtype = Dtype::f32;
  std::int64_t rows = 0, columns = 0;
  std::int64_t stride = 0;  // elements from one row in memory to the next
  bool transposed = false;
};

// Matrix products by cuBLASLt on the compute stream, accumulated in fp32. What
// cuBLASLt has to be asked for once per shape (descriptors and the choice of an
// algorithm) is kept, so that a training step asks nothing.
class Gemm {
 public:
  // fp32 products use no TF32; those of tf32 do.
  Gemm(CudaDevice& device, Precision precision);

  // c = a·b, or c += a·b; c is [a.rows, b.columns], not transposed.
  void multiply(const Operand& a, const Operand& b, void* c, Dtype c_dtype,
                std::int64_t c_stride, bool accumulate);

 private:
  using Description = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
  using Layout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
  struct Plan {
    Description description;
    Layout a, b, c;
    cublasLtMatmulAlgo_t algorithm;
  };
  // Everything that a plan depends on: extents, strides, dtypes, alignments.
  using Key = std::array<std::int64_t, 13>;

  Plan make_plan(const Operand& a, const Operand& b, const void* c,
                 Dtype c_dtype, std::int64_t c_stride);

  CudaDevice& device_;
  cublasComputeType_t compute_type_;
  Handle<cublasLtHandle_t, cublasLtDestroy> library_;
  Buffer workspace_;
  std::map<Key, Plan> plans_;
};

}  // namespace lockstep
