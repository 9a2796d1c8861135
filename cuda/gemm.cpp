#include "cuda/gemm.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep {
namespace {

constexpr std::int64_t workspace_bytes = std::int64_t{32} << 20;

void check_cublas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail("{} failed: {}", call, cublasLtGetStatusString(status));
}

cudaDataType_t cuda_type(Dtype dtype) {
  return dtype == Dtype::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

// The largest power of two up to 16 that divides an address: algorithms with
// 16-byte accesses need no more, and those without must be asked for.
std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | 16;
  return static_cast<std::uint32_t>(address & -address);
}

// Memory of a row-major matrix is a column-major matrix transposed, which is
// how cuBLAS sees it: row r of ours is column r of its.
cublasLtMatrixLayout_t make_layout(Dtype dtype, std::int64_t rows_in_memory,
                                   std::int64_t columns_in_memory,
                                   std::int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_cublas(cublasLtMatrixLayoutCreate(
                   &layout, cuda_type(dtype),
                   static_cast<std::uint64_t>(columns_in_memory),
                   static_cast<std::uint64_t>(rows_in_memory), stride),
               "cublasLtMatrixLayoutCreate");
  return layout;
}
cublasLtMatrixLayout_t make_layout(const Operand& operand) {
  return operand.transposed ? make_layout(operand.dtype, operand.columns,
                                          operand.rows, operand.stride)
                            : make_layout(operand.dtype, operand.rows,
                                          operand.columns, operand.stride);
}

class Preference {
 public:
  Preference() {
    check_cublas(cublasLtMatmulPreferenceCreate(handle_.out()),
                 "cublasLtMatmulPreferenceCreate");
  }
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(handle_.get(), attribute,
                                                      &value, sizeof value),
                 "cublasLtMatmulPreferenceSetAttribute");
  }
  cublasLtMatmulPreference_t get() const { return handle_.get(); }

 private:
  Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> handle_;
};

}  // namespace

Gemm::Gemm(CudaDevice& device, Precision precision)
    : device_(device),
      compute_type_(precision == Precision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                 : CUBLAS_COMPUTE_32F),
      workspace_(device.allocate(workspace_bytes, Category::workspace,
                                 "matrix products")) {
  check_cublas(cublasLtCreate(library_.out()), "cublasLtCreate");
}

Gemm::Plan Gemm::make_plan(const Operand& a, const Operand& b, const void* c,
                           Dtype c_dtype, std::int64_t c_stride) {
  Plan plan;
  // cᵀ = bᵀ·aᵀ: what is row-major to us is its transpose to cuBLAS, so b comes
  // first, and an operand that we do not transpose, it does not either.
  check_cublas(cublasLtMatmulDescCreate(plan.description.out(), compute_type_,
                                        CUDA_R_32F),
               "cublasLtMatmulDescCreate");
  const auto transpose = [&](cublasLtMatmulDescAttributes_t which, bool yes) {
    const cublasOperation_t operation = yes ? CUBLAS_OP_T : CUBLAS_OP_N;
    check_cublas(cublasLtMatmulDescSetAttribute(plan.description.get(), which,
                                                &operation, sizeof operation),
                 "cublasLtMatmulDescSetAttribute");
  };
  transpose(CUBLASLT_MATMUL_DESC_TRANSA, b.transposed);
  transpose(CUBLASLT_MATMUL_DESC_TRANSB, a.transposed);
  *plan.a.out() = make_layout(a);
  *plan.b.out() = make_layout(b);
  *plan.c.out() = make_layout(c_dtype, a.rows, b.columns, c_stride);

  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                 static_cast<std::uint64_t>(workspace_bytes));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                 alignment_of(b.data));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                 alignment_of(a.data));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(c));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(c));
  std::array<cublasLtMatmulHeuristicResult_t, 4> found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      library_.get(), plan.description.get(), plan.b.get(), plan.a.get(),
      plan.c.get(), plan.c.get(), preference.get(),
      static_cast<int>(found.size()), found.data(), &count);
  const auto* best = std::find_if(
      found.begin(), found.begin() + count,
      [](const auto& one) { return one.state == CUBLAS_STATUS_SUCCESS; });
  require(status == CUBLAS_STATUS_SUCCESS && best != found.begin() + count,
          "cuBLASLt has no algorithm for {} × {} by {} × {} ({}, rows {} and "
          "{} apart): {}",
          a.rows, a.columns, b.rows, b.columns, name_of(a.dtype), a.stride,
          b.stride, cublasLtGetStatusString(status));
  plan.algorithm = best->algo;
  return plan;
}

void Gemm::multiply(const Operand& a, const Operand& b, void* c, Dtype c_dtype,
                    std::int64_t c_stride, bool accumulate) {
  require(a.columns == b.rows && a.dtype == b.dtype,
          "a product of {} × {} {} by {} × {} {}", a.rows, a.columns,
          name_of(a.dtype), b.rows, b.columns, name_of(b.dtype));
  const Key key = {a.rows,
                   a.columns,
                   a.stride,
                   a.transposed,
                   b.columns,
                   b.stride,
                   b.transposed,
                   static_cast<std::int64_t>(a.dtype),
                   static_cast<std::int64_t>(c_dtype),
                   c_stride,
                   alignment_of(a.data),
                   alignment_of(b.data),
                   alignment_of(c)};
  auto plan = plans_.find(key);
  if (plan == plans_.end()) {
    plan = plans_.emplace(key, make_plan(a, b, c, c_dtype, c_stride)).first;
  }
  const Plan& use = plan->second;
  const float alpha = 1, beta = accumulate ? 1 : 0;
  check_cublas(
      cublasLtMatmul(library_.get(), use.description.get(), &alpha, b.data,
                     use.b.get(), a.data, use.a.get(), &beta, c, use.c.get(), c,
                     use.c.get(), &use.algorithm, workspace_.data(),
                     workspace_bytes, device_.stream()),
      "cublasLtMatmul");
}

}  // namespace lockstep
