#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/attention/rows.cuh"

// Matrix products of tiles by mma.sync, one warp at a time: of bf16 (PTX ISA,
// "mma.m16n8k16"), or of fp32 rounded to TF32 ("mma.m16n8k8", two for one).
// Names of fragments are that document's:
//   A  16×16, row-major:  a lane's 8 elements, 4 registers (TF32: 8)
//   B  16×8:              2 registers (TF32: 4)
//   C  16×8, fp32:        lane l holds row l/4, columns 2(l%4) and 2(l%4)+1 in
//                         c[0], c[1], and row l/4 + 8 in c[2], c[3]
// Tiles lie in shared memory by token, each row 16 bytes longer than it needs
// to be, so that the eight rows of an 8×8 matrix are in different banks.
namespace lockstep::attention {

constexpr int warps = 4;
constexpr int threads = warps * 32;
constexpr int own_tokens = 16 * warps;  // a block's own tile, 16 rows a warp

// Elements of 16 bytes.
template <class T>
constexpr int chunk = 16 / static_cast<int>(sizeof(T));
// Row stride of a tile for head dims padded to D.
template <class T, int D>
constexpr int stride = D + chunk<T>;
template <class T, int D>
constexpr int tile_elements(int tokens) {
  return tokens * stride<T, D>;
}

// 16×16 elements of a warp.
template <class T>
constexpr int registers = 2 * static_cast<int>(sizeof(T));
template <class T>
struct A {
  std::uint32_t r[registers<T>];
};
// B fragments of 16×16, side by side.
template <class T>
struct B2 {
  std::uint32_t r[registers<T>];
};
struct C {
  float r[4];
};

// 8×8 matrices of 2-byte elements, or 8×4 of 4-byte ones.
template <class T>
__device__ void ldmatrix(std::uint32_t* r, const T* row) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(shared_address(row)));
}
__device__ inline void ldmatrix_transposed(std::uint32_t* r, const bf16* row) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(shared_address(row)));
}
__device__ inline std::uint32_t tf32(float x) {
  std::uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}
template <class T>
__device__ void round_to_tf32(std::uint32_t (&r)[registers<T>]) {
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (std::uint32_t& x : r) x = tf32(__uint_as_float(x));
  }
}

// Rows [row, row + 16) × columns [column, column + 16) of a tile as A.
template <int D, class T>
__device__ A<T> load_a(const T* tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  A<T> a;
#pragma unroll
  for (int i = 0; i < registers<T>; i += 4) {
    ldmatrix(a.r + i, tile + (row + lane % 16) * stride<T, D> + column + 2 * i +
                          lane / 16 * chunk<T>);
  }
  round_to_tf32<T>(a.r);
  return a;
}

// The transpose of rows [row, row + 16) × columns [column, column + 16) as B:
// the product then runs over columns (of two tiles, by head dim).
template <int D>
__device__ B2<bf16> load_b_transposed(const bf16* tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  B2<bf16> b;
  ldmatrix(b.r, tile + (row + lane / 16 * 8 + lane % 8) * stride<bf16, D> +
                    column + lane / 8 % 2 * 8);
  return b;
}
template <int D>
__device__ B2<float> load_b_transposed(const float* tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  B2<float> b;
#pragma unroll
  for (int right = 0; right < 2; ++right) {
    ldmatrix(b.r + 4 * right,
             tile + (row + right * 8 + lane % 8) * stride<float, D> + column +
                 lane / 8 * 4);
  }
  round_to_tf32<float>(b.r);
  return b;
}

// Rows [row, row + 16) × columns [column, column + 16) as B: the product runs
// over rows (tokens), in the order that as_a has them in.
template <int D>
__device__ B2<bf16> load_b(const bf16* tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  B2<bf16> b;
  ldmatrix_transposed(
      b.r, tile + (row + lane % 16) * stride<bf16, D> + column + lane / 16 * 8);
  return b;
}
template <int D>
__device__ B2<float> load_b(const float* tile, int row, int column) {
  const int lane = threadIdx.x % 32;
  const float* const first =
      tile + (row + lane % 4 * 2) * stride<float, D> + column + lane / 4;
  B2<float> b;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int right = i / 4, lower = i / 2 % 2;
    b.r[i] = tf32(first[(lower * 8 + i % 2) * stride<float, D> + right * 8]);
  }
  return b;
}

__device__ inline void mma(C& left, C& right, const A<bf16>& a,
                           const B2<bf16>& b) {
  const auto multiply = [&](C& c, std::uint32_t b0, std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
  };
  multiply(left, b.r[0], b.r[1]);
  multiply(right, b.r[2], b.r[3]);
}
__device__ inline void mma(C& left, C& right, const A<float>& a,
                           const B2<float>& b) {
  const auto multiply = [&](C& c, const std::uint32_t* half,
                            const std::uint32_t* pair) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])
        : "r"(half[0]), "r"(half[1]), "r"(half[2]), "r"(half[3]), "r"(pair[0]),
          "r"(pair[1]));
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    multiply(left, a.r + 4 * half, b.r + 2 * half);
    multiply(right, a.r + 4 * half, b.r + 4 + 2 * half);
  }
}

__device__ inline std::uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// Two neighbouring C fragments, rounded to T, are an A fragment: of TF32 with
// its columns in the order 0 2 4 6 1 3 5 7 of each 8.
template <class T>
__device__ A<T> as_a(const C& left, const C& right) {
  if constexpr (std::is_same_v<T, bf16>) {
    return {{pack(left.r[0], left.r[1]), pack(left.r[2], left.r[3]),
             pack(right.r[0], right.r[1]), pack(right.r[2], right.r[3])}};
  } else {
    return {{tf32(left.r[0]), tf32(left.r[2]), tf32(left.r[1]), tf32(left.r[3]),
             tf32(right.r[0]), tf32(right.r[2]), tf32(right.r[1]),
             tf32(right.r[3])}};
  }
}

// scores += rows [row, row + 16) of `own` times the tokens of `other`.
template <int D, int tokens, class T>
__device__ void add_dot_rows(C (&scores)[tokens / 8], const T* own, int row,
                             const T* other) {
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    const A<T> a = load_a<D>(own, row, d);
#pragma unroll
    for (int n = 0; n < tokens; n += 16) {
      mma(scores[n / 8], scores[n / 8 + 1], a,
          load_b_transposed<D>(other, n, d));
    }
  }
}

// out += weights (rounded to T) · values; out is 16×D, weights 16×tokens.
template <int D, int tokens, class T>
__device__ void add_product(C (&out)[D / 8], const C (&weights)[tokens / 8],
                            const T* values) {
#pragma unroll
  for (int n = 0; n < tokens; n += 16) {
    const A<T> a = as_a<T>(weights[n / 8], weights[n / 8 + 1]);
#pragma unroll
    for (int d = 0; d < D; d += 16) {
      mma(out[d / 8], out[d / 8 + 1], a, load_b<D>(values, n, d));
    }
  }
}

// Starts to copy tokens [first, first + tokens) of a head; zeros beyond the
// last token and beyond the head dim.
template <int D, int tokens, class T>
__device__ void copy_tile(T* to, const T* from, std::int64_t token_stride,
                          int first, int count, int head_dim) {
  constexpr int chunks = D / chunk<T>;
#pragma unroll 4
  for (int i = threadIdx.x; i < tokens * chunks; i += threads) {
    const int row = i / chunks, column = i % chunks * chunk<T>;
    const bool inside = first + row < count && column < head_dim;
    copy_async_16(to + row * stride<T, D> + column,
                  inside ? from + (first + row) * token_stride + column : from,
                  inside);
  }
}

__device__ inline void store_neighbours(bf16* to, float low, float high) {
  *reinterpret_cast<std::uint32_t*>(to) = pack(low, high);
}
__device__ inline void store_neighbours(float* to, float low, float high) {
  *reinterpret_cast<float2*>(to) = make_float2(low, high);
}

// Writes the warp's 16×D result times a factor a row: rows of tokens
// [first, first + 16) that exist.
template <int D, class T>
__device__ void store_rows(T* to, std::int64_t token_stride, int first,
                           int count, int head_dim, const C (&rows)[D / 8],
                           float upper_factor, float lower_factor) {
  const int lane = threadIdx.x % 32;
  const int upper = first + lane / 4, lower = upper + 8;
  T* const upper_row = to + upper * token_stride + lane % 4 * 2;
  T* const lower_row = to + lower * token_stride + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    if (8 * j >= head_dim) break;
    const C& c = rows[j];
    if (upper < count) {
      store_neighbours(upper_row + 8 * j, c.r[0] * upper_factor,
                       c.r[1] * upper_factor);
    }
    if (lower < count) {
      store_neighbours(lower_row + 8 * j, c.r[2] * lower_factor,
                       c.r[3] * lower_factor);
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
