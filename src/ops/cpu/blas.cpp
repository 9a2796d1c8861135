#include "ops/cpu/blas.h"

#include <cblas.h>

#include <cstdlib>
#include <limits>
#include <mutex>
#include <string_view>

#include "core/error.h"

// Not every CBLAS is OpenBLAS, so these may be absent.
// NOLINTBEGIN(readability-redundant-declaration)
extern "C" {
[[gnu::weak]] void openblas_set_num_threads(int);
[[gnu::weak]] char* openblas_get_corename();
[[gnu::weak]] void gotoblas_dynamic_init();
[[gnu::weak]] void gotoblas_dynamic_quit();
}
// NOLINTEND(readability-redundant-declaration)

namespace lockstep {
namespace {

// The best kernels of OpenBLAS for what this processor can do, or nullptr.
const char* fitting_core() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl")) {
    return "SkylakeX";
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return "Haswell";
  }
#endif
  return nullptr;
}

// OpenBLAS takes a processor newer than itself for one of 2004 ("Prescott",
// SSE3), which is five times slower. Unless the user chose, choose for it.
void choose_kernels() {
  if (!openblas_get_corename || !gotoblas_dynamic_init ||
      !gotoblas_dynamic_quit || std::getenv("OPENBLAS_CORETYPE") != nullptr ||
      std::string_view(openblas_get_corename()) != "Prescott") {
    return;
  }
  const char* core = fitting_core();
  if (core == nullptr) return;
  setenv("OPENBLAS_CORETYPE", core, 1);
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
  unsetenv("OPENBLAS_CORETYPE");
}

int blas_int(std::int64_t value) {
  require(value <= std::numeric_limits<int>::max(),
          "a matrix extent of {} is more than BLAS can count", value);
  return static_cast<int>(value);
}

CBLAS_TRANSPOSE blas_op(Op op) {
  return op == Op::plain ? CblasNoTrans : CblasTrans;
}

}  // namespace

void set_up_blas(int threads) {
  static std::once_flag once;
  std::call_once(once, choose_kernels);
  if (openblas_set_num_threads) openblas_set_num_threads(threads);
}

void matrix_product(float* c, std::int64_t c_stride, std::int64_t rows,
                    std::int64_t columns, std::int64_t inner, const Matrix& a,
                    const Matrix& b, float beta) {
  cblas_sgemm(CblasRowMajor, blas_op(a.op), blas_op(b.op), blas_int(rows),
              blas_int(columns), blas_int(inner), 1.0f, a.data,
              blas_int(a.stride), b.data, blas_int(b.stride), beta, c,
              blas_int(c_stride));
}

}  // namespace lockstep
