#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/attention/rows.cuh"

// Matrix products of bf16 tiles by mma.sync (PTX ISA, "mma.m16n8k16"), one warp
// at a time. Names of fragments are that document's:
//   A  16×16, row-major:  4 registers of 2 elements a lane
//   B  16×8:              2 registers
//   C  16×8, fp32:        lane l holds row l/4, columns 2(l%4) and 2(l%4)+1 in
//                         c[0], c[1], and row l/4 + 8 in c[2], c[3]
// Tiles lie in shared memory by token, each row 8 elements longer than it
// needs to be, so that the eight rows of an 8×8 matrix are in different banks.
namespace lockstep::attention {

constexpr int warps = 4;
constexpr int threads = warps * 32;
constexpr int own_tokens = 16 * warps;  // a block's own tile, 16 rows a warp

// Row stride of a tile for head dims padded to D.
template <int D>
constexpr int stride = D + 8;
template <int D>
constexpr int tile_elements(int tokens) {
  return tokens * stride<D>;
}

struct A {
  std::uint32_t r[4];
};
// B fragments of 16×16, side by side.
struct B2 {
  std::uint32_t r[4];
};
struct C {
  float r[4];
};

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void ldmatrix(std::uint32_t (&r)[4], const bf16* row) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(shared_address(row)));
}
__device__ inline void ldmatrix_transposed(std::uint32_t (&r)[4],
                                           const bf16* row) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(shared_address(row)));
}

// Rows [row, row + 16) × columns [column, column + 16) of a tile as A.
template <int D>
__device__ A load_a(const bf16* tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  A a;
  ldmatrix(a.r, tile + (row + lane % 16) * stride<D> + column + lane / 16 * 8);
  return a;
}

// The transpose of rows [row, row + 16) × columns [column, column + 16) as B:
// the product then runs over columns (of two tiles, by head dim).
template <int D>
__device__ B2 load_b_transposed(const bf16* tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  B2 b;
  ldmatrix(b.r, tile + (row + lane / 16 * 8 + lane % 8) * stride<D> + column +
                    lane / 8 % 2 * 8);
  return b;
}

// Rows [row, row + 16) × columns [column, column + 16) as B: the product runs
// over rows (tokens).
template <int D>
__device__ B2 load_b(const bf16* tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  B2 b;
  ldmatrix_transposed(
      b.r, tile + (row + lane % 16) * stride<D> + column + lane / 16 * 8);
  return b;
}

__device__ inline void mma(C& c, const A& a, std::uint32_t b0,
                           std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
}
__device__ inline void mma(C& left, C& right, const A& a, const B2& b) {
  mma(left, a, b.r[0], b.r[1]);
  mma(right, a, b.r[2], b.r[3]);
}

__device__ inline std::uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// Two neighbouring C fragments, rounded to bf16, are an A fragment.
__device__ inline A as_a(const C& left, const C& right) {
  return {{pack(left.r[0], left.r[1]), pack(left.r[2], left.r[3]),
           pack(right.r[0], right.r[1]), pack(right.r[2], right.r[3])}};
}

// scores += rows [row, row + 16) of `own` times the tokens of `other`.
template <int D, int tokens>
__device__ void add_dot_rows(C (&scores)[tokens / 8], const bf16* own, int row,
                             const bf16* other) {
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    const A a = load_a<D>(own, row, d);
#pragma unroll
    for (int n = 0; n < tokens; n += 16) {
      const B2 b = load_b_transposed<D>(other, n, d);
      mma(scores[n / 8], scores[n / 8 + 1], a, b);
    }
  }
}

// out += weights (rounded to bf16) · values; out is 16×D, weights 16×tokens.
template <int D, int tokens>
__device__ void add_product(C (&out)[D / 8], const C (&weights)[tokens / 8],
                            const bf16* values) {
#pragma unroll
  for (int n = 0; n < tokens; n += 16) {
    const A a = as_a(weights[n / 8], weights[n / 8 + 1]);
#pragma unroll
    for (int d = 0; d < D; d += 16) {
      const B2 b = load_b<D>(values, n, d);
      mma(out[d / 8], out[d / 8 + 1], a, b);
    }
  }
}

// 2^x; 0 for −∞.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
constexpr float log2_e = 1.4426950408889634f;

// Asynchronous copies into shared memory of 16 and 4 bytes; zeros where not
// `inside`, and then `from` is not read.
__device__ inline void copy_async_16(void* to, const void* from, bool inside) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
      "l"(from), "r"(inside ? 16 : 0));
}
__device__ inline void copy_async_4(void* to, const void* from, bool inside) {
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)),
      "l"(from), "r"(inside ? 4 : 0));
}
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;");
}
// Waits until at most `pending` of this thread's newest groups are under way.
template <int pending>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending));
}

// Starts to copy tokens [first, first + tokens) of a head; zeros beyond the
// last token and beyond the head dim.
template <int D, int tokens>
__device__ void copy_tile(bf16* to, const bf16* from, std::int64_t token_stride,
                          int first, int count, int head_dim) {
  constexpr int chunks = D / 8;
#pragma unroll 4
  for (int i = threadIdx.x; i < tokens * chunks; i += threads) {
    const int row = i / chunks, column = i % chunks * 8;
    const bool inside = first + row < count && column < head_dim;
    copy_async_16(to + row * stride<D> + column,
                  inside ? from + (first + row) * token_stride + column : from,
                  inside);
  }
}

// Writes the warp's 16×D result times a factor a row: rows of tokens
// [first, first + 16) that exist.
template <int D>
__device__ void store_rows(bf16* to, std::int64_t token_stride, int first,
                           int count, int head_dim, const C (&rows)[D / 8],
                           float upper_factor, float lower_factor) {
  const int lane = threadIdx.x % 32;
  const int upper = first + lane / 4, lower = upper + 8;
  bf16* upper_row = to + upper * token_stride + lane % 4 * 2;
  bf16* lower_row = to + lower * token_stride + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    if (8 * j >= head_dim) break;
    const C& c = rows[j];
    if (upper < count) {
      *reinterpret_cast<std::uint32_t*>(upper_row + 8 * j) =
          pack(c.r[0] * upper_factor, c.r[1] * upper_factor);
    }
    if (lower < count) {
      *reinterpret_cast<std::uint32_t*>(lower_row + 8 * j) =
          pack(c.r[2] * lower_factor, c.r[3] * lower_factor);
    }
  }
}

template <int D>
using HeadDim = std::integral_constant<int, D>;

// run(HeadDim<D>{}) with the smallest padded head dim there is code for.
template <class Run>
void with_padded_head_dim(int head_dim, Run run) {
  if (head_dim <= 32) return run(HeadDim<32>{});
  if (head_dim <= 64) return run(HeadDim<64>{});
  if (head_dim <= 80) return run(HeadDim<80>{});
  if (head_dim <= 96) return run(HeadDim<96>{});
  run(HeadDim<128>{});
}

}  // namespace lockstep::attention
