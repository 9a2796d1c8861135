#include "cuda/gemm.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>

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

void repeat(cublasLtMatrixLayout_t layout, std::int64_t count,
            std::int64_t stride) {
  if (count == 1) return;
  const auto set = [&](cublasLtMatrixLayoutAttribute_t which,
                       const auto& value) {
    check_cublas(
        cublasLtMatrixLayoutSetAttribute(layout, which, &value, sizeof value),
        "cublasLtMatrixLayoutSetAttribute");
  };
  set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(count));
  set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
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

Gemm::Gemm(CudaDevice& device, Precision precision,
           const std::string& cache_file)
    : device_(device),
      compute_type_(precision == Precision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                 : CUBLAS_COMPUTE_32F),
      workspace_(device.allocate(workspace_bytes, Category::workspace,
                                 "matrix products")),
      cache_(cache_file) {
  check_cublas(cublasLtCreate(library_.out()), "cublasLtCreate");
}

Gemm::Plan Gemm::make_plan(const Operand& a, const Operand& b, Dtype c_dtype,
                           std::int64_t c_stride, const ProductBatch& batch) {
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
  repeat(plan.a.get(), batch.count, batch.a_stride);
  repeat(plan.b.get(), batch.count, batch.b_stride);
  repeat(plan.c.get(), batch.count, batch.c_stride);
  return plan;
}

std::vector<cublasLtMatmulAlgo_t> Gemm::proposals(const Plan& plan,
                                                  const Operand& a,
                                                  const Operand& b,
                                                  const void* c,
                                                  Dtype c_dtype) const {
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                 static_cast<std::uint64_t>(workspace_bytes));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                 alignment_of(b.data));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                 alignment_of(a.data));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(c));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(c));
  if (c_dtype == Dtype::bf16) {
    // Where the inner extent is cut in parts, their sums are added in fp32, in
    // the workspace, rather than rounded to bf16 first.
    preference.set(
        CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  }
  std::array<cublasLtMatmulHeuristicResult_t, 16> found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      library_.get(), plan.description.get(), plan.b.get(), plan.a.get(),
      plan.c.get(), plan.c.get(), preference.get(),
      static_cast<int>(found.size()), found.data(), &count);
  std::vector<cublasLtMatmulAlgo_t> proposed;
  for (int i = 0; i < count; ++i) {
    if (found[i].state == CUBLAS_STATUS_SUCCESS) {
      proposed.push_back(found[i].algo);
    }
  }
  require(status == CUBLAS_STATUS_SUCCESS && !proposed.empty(),
          "cuBLASLt has no algorithm for {} × {} by {} × {} ({}, rows {} and "
          "{} apart): {}",
          a.rows, a.columns, b.rows, b.columns, name_of(a.dtype), a.stride,
          b.stride, cublasLtGetStatusString(status));
  return proposed;
}

std::optional<cublasLtMatmulAlgo_t> Gemm::remembered(const std::string& key,
                                                     const Plan& plan) const {
  const auto words = cache_.find(key);
  if (!words) return std::nullopt;
  cublasLtMatmulAlgo_t algorithm;
  static_assert(sizeof algorithm == sizeof *words);
  std::memcpy(&algorithm, words->data(), sizeof algorithm);
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(
      library_.get(), plan.description.get(), plan.b.get(), plan.a.get(),
      plan.c.get(), plan.c.get(), &algorithm, &result);
  const bool serves = status == CUBLAS_STATUS_SUCCESS &&
                      result.state == CUBLAS_STATUS_SUCCESS &&
                      result.workspaceSize <= workspace_bytes;
  if (!serves) return std::nullopt;
  return algorithm;
}

cublasLtMatmulAlgo_t Gemm::fastest(
    const Plan& plan, const std::vector<cublasLtMatmulAlgo_t>& proposed,
    const void* a, const void* b, void* c) {
  constexpr int rounds = 7, runs = 4;
  // What the heuristics put first stays unless another is clearly faster.
  constexpr double clearly = 0.99;
  std::vector<double> least(proposed.size(),
                            std::numeric_limits<double>::infinity());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < proposed.size(); ++i) {
      const Event start = device_.record();
      bool works = true;
      for (int repeat = 0; works && repeat < runs; ++repeat) {
        works = run(plan, proposed[i], a, b, c, /*accumulate=*/false) ==
                CUBLAS_STATUS_SUCCESS;
      }
      const Event end = device_.record();
      end->wait();
      if (works) least[i] = std::min(least[i], end->milliseconds_since(*start));
    }
  }
  const auto best = std::min_element(least.begin(), least.end());
  return *best < clearly * least[0] ? proposed[best - least.begin()]
                                    : proposed[0];
}

cublasStatus_t Gemm::run(const Plan& plan,
                         const cublasLtMatmulAlgo_t& algorithm, const void* a,
                         const void* b, void* c, bool accumulate) {
  const float alpha = 1, beta = accumulate ? 1 : 0;
  return cublasLtMatmul(library_.get(), plan.description.get(), &alpha, b,
                        plan.b.get(), a, plan.a.get(), &beta, c, plan.c.get(),
                        c, plan.c.get(), &algorithm, workspace_.data(),
                        workspace_bytes, device_.stream());
}

void Gemm::multiply(const Operand& a, const Operand& b, void* c, Dtype c_dtype,
                    std::int64_t c_stride, bool accumulate,
                    const ProductBatch& batch) {
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
                   alignment_of(c),
                   batch.count,
                   batch.a_stride,
                   batch.b_stride,
                   batch.c_stride};
  auto found = plans_.find(key);
  if (found == plans_.end()) {
    Plan plan = make_plan(a, b, c_dtype, c_stride, batch);
    const std::string name = fmt::format(
        "{} | cuBLASLt {} | {} {}", device_.name(), cublasLtGetVersion(),
        static_cast<int>(compute_type_), fmt::join(key, " "));
    if (const auto algorithm = remembered(name, plan)) {
      plan.algorithm = *algorithm;
    } else {
      const auto proposed = proposals(plan, a, b, c, c_dtype);
      plan.algorithm = proposed[0];
      // Measuring overwrites c, which a sum cannot bear.
      if (cache_.keeps() && !accumulate) {
        plan.algorithm = fastest(plan, proposed, a.data, b.data, c);
        GemmCache::Algorithm words;
        std::memcpy(words.data(), &plan.algorithm, sizeof words);
        cache_.put(name, words);
      }
    }
    found = plans_.emplace(key, std::move(plan)).first;
  }
  check_cublas(run(found->second, found->second.algorithm, a.data, b.data, c,
                   accumulate),
               "cublasLtMatmul");
}

}  // namespace lockstep
