#include <algorithm>
#include <cstring>

#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/numeric.h"
#include "ops/cpu/parallel.h"

namespace lockstep {

void CpuOps::embedding(const Tensor& out, const Tensor& weight,
                       const Tensor& ids) {
  check_matrix(out, dtype_, "embedding: out");
  check_matrix(weight, dtype_, "embedding: weight");
  check(out, dtype_, {out[0], weight[1]}, "embedding: out");
  check_ids(ids, out[0], weight[0], "embedding: ids");

  const std::int64_t row_bytes = weight[1] * bytes_of(dtype_);
  const auto* from = static_cast<const std::byte*>(weight.data);
  auto* to = static_cast<std::byte*>(out.data);
  const std::int32_t* id = ids.as<std::int32_t>();
  parallel_for(out[0], weight[1], [&](std::int64_t n) {
    std::memcpy(to + n * row_bytes, from + id[n] * row_bytes,
                static_cast<std::size_t>(row_bytes));
  });
}

void CpuOps::embedding_backward(const Tensor& dweight, const Tensor& dout,
                                const Tensor& ids, Accumulate accumulate) {
  check_matrix(dweight, gradient_dtype(dweight, dtype_),
               "embedding_backward: dweight");
  check_matrix(dout, dtype_, "embedding_backward: dout");
  check(dout, dtype_, {dout[0], dweight[1]}, "embedding_backward: dout");
  check_ids(ids, dout[0], dweight[0], "embedding_backward: ids");

  // Each row of dweight belongs to one of the threads, which goes through all
  // ids in order: nothing races, and the order of additions is always the same.
  const std::int64_t width = dweight[1], owners = thread_count();
  const std::int32_t* id = ids.as<std::int32_t>();
  sum_in_fp32(dweight, accumulate, [&](float* to) {
    if (accumulate == Accumulate::no) {
      std::fill_n(to, dweight.elements(), 0.0f);
    }
    with_storage([&]<class T>(T) {
      const T* from = dout.as<T>();
      parallel_for(owners, dout[0] * width / owners, [&](std::int64_t mine) {
        for (std::int64_t n = 0; n < dout[0]; ++n) {
          if (id[n] % owners != mine) continue;
          float* sum = to + id[n] * width;
          const T* x = from + n * width;
#pragma omp simd
          for (std::int64_t i = 0; i < width; ++i) sum[i] += load(x[i]);
        }
      });
    });
  });
}

}  // namespace lockstep
