#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "cuda/cuda_device.h"
#include "cuda/gemm_cache.h"
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

// Products of one shape that are computed together, and the elements from one
// factor or product to the next.
struct ProductBatch {
  std::int64_t count = 1;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;
};

// Matrix products by cuBLASLt on the compute stream, accumulated in fp32 and
// rounded to the dtype of the product once. What cuBLASLt has to be asked for
// once per shape (descriptors and the choice of an algorithm) is kept, so that
// a training step asks nothing.
//
// The algorithm is the first that the library's heuristics propose. With a
// cache file it is the fastest of their proposals instead, measured the first
// time the shape comes up and then taken from the file: what is measured may
// differ from run to run, what is in the file does not.
class Gemm {
 public:
  // fp32 products use no TF32; those of tf32 do.
  Gemm(CudaDevice& device, Precision precision, const std::string& cache_file);

  // c = a·b, or c += a·b; c is [a.rows, b.columns], not transposed.
  void multiply(const Operand& a, const Operand& b, void* c, Dtype c_dtype,
                std::int64_t c_stride, bool accumulate,
                const ProductBatch& batch = {});

 private:
  using Description = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
  using Layout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
  struct Plan {
    Description description;
    Layout a, b, c;
    cublasLtMatmulAlgo_t algorithm;
  };
  // Everything that a plan depends on: extents, strides, dtypes, alignments.
  using Key = std::array<std::int64_t, 17>;

  // All of a plan but the algorithm.
  Plan make_plan(const Operand& a, const Operand& b, Dtype c_dtype,
                 std::int64_t c_stride, const ProductBatch& batch);
  // What the heuristics propose for a plan, likely fastest first.
  std::vector<cublasLtMatmulAlgo_t> proposals(const Plan& plan,
                                              const Operand& a,
                                              const Operand& b, const void* c,
                                              Dtype c_dtype) const;
  // The algorithm that the cache has for this key, if it still serves.
  std::optional<cublasLtMatmulAlgo_t> remembered(const std::string& key,
                                                 const Plan& plan) const;
  // The fastest of `proposed`, measured by computing c = a·b with each.
  cublasLtMatmulAlgo_t fastest(
      const Plan& plan, const std::vector<cublasLtMatmulAlgo_t>& proposed,
      const void* a, const void* b, void* c);
  cublasStatus_t run(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                     const void* a, const void* b, void* c, bool accumulate);

  CudaDevice& device_;
  cublasComputeType_t compute_type_;
  Handle<cublasLtHandle_t, cublasLtDestroy> library_;
  Buffer workspace_;
  GemmCache cache_;
  std::map<Key, Plan> plans_;
};

}  // namespace lockstep
