#pragma once

#include <cstdint>
#include <cstring>

namespace lockstep {

// Products of small fp32 matrices that lie in cache, where calling BLAS would
// cost more than the product. A block of C stays in registers while it sums
// over the inner dimension: 6 x 4 vectors of AVX-512, 6 x 2 of what is shorter.
#ifdef __AVX512F__
constexpr std::int64_t lanes = 16;
constexpr int block_vectors = 4;
#elif defined(__AVX__)
constexpr std::int64_t lanes = 8;
constexpr int block_vectors = 2;
#else
constexpr std::int64_t lanes = 4;
constexpr int block_vectors = 2;
#endif
constexpr int block_rows = 6;

constexpr std::int64_t round_to_lanes(std::int64_t count) {
  return (count + lanes - 1) / lanes * lanes;
}

// Element (i, k) is data[i·row_stride + k·column_stride].
struct Strided {
  const float* data;
  std::int64_t row_stride;
  std::int64_t column_stride = 1;
};

enum class Into { overwrite, accumulate };

namespace detail {

using Vector = float __attribute__((vector_size(lanes * sizeof(float))));

inline Vector load_vector(const float* from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <int rows, int vectors, Into into>
void block_product(float* c, std::int64_t c_stride, std::int64_t inner,
                   const Strided& a, const float* b, std::int64_t b_stride) {
  Vector sum[rows][vectors] = {};
  if constexpr (into == Into::accumulate) {
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < vectors; ++j) {
        sum[i][j] = load_vector(c + i * c_stride + j * lanes);
      }
    }
  }
  const float* a_column = a.data;
  for (std::int64_t k = 0; k < inner; ++k) {
    Vector row[vectors];
    for (int j = 0; j < vectors; ++j) row[j] = load_vector(b + j * lanes);
    for (int i = 0; i < rows; ++i) {
      const float factor = a_column[i * a.row_stride];
      for (int j = 0; j < vectors; ++j) sum[i][j] += factor * row[j];
    }
    a_column += a.column_stride;
    b += b_stride;
  }
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < vectors; ++j) {
      std::memcpy(c + i * c_stride + j * lanes, &sum[i][j], sizeof(Vector));
    }
  }
}

// Blocks of `block` rows, then the rest in a smaller one.
template <int block, int vectors, Into into>
void column_product(float* c, std::int64_t c_stride, std::int64_t rows,
                    std::int64_t inner, Strided a, const float* b,
                    std::int64_t b_stride) {
  for (; rows >= block; rows -= block) {
    block_product<block, vectors, into>(c, c_stride, inner, a, b, b_stride);
    c += block * c_stride;
    a.data += block * a.row_stride;
  }
  if constexpr (block > 1) {
    column_product<block - 1, vectors, into>(c, c_stride, rows, inner, a, b,
                                             b_stride);
  }
}

template <int vectors, Into into>
void columns_product(float* c, std::int64_t c_stride, std::int64_t rows,
                     std::int64_t columns, std::int64_t inner, const Strided& a,
                     const float* b, std::int64_t b_stride) {
  constexpr std::int64_t width = vectors * lanes;
  for (; columns >= width; columns -= width) {
    column_product<block_rows, vectors, into>(c, c_stride, rows, inner, a, b,
                                              b_stride);
    c += width;
    b += width;
  }
  if constexpr (vectors > 1) {
    columns_product<vectors - 1, into>(c, c_stride, rows, columns, inner, a, b,
                                       b_stride);
  }
}

}  // namespace detail

// c[rows, columns] = (or +=) a[rows, inner]·b[inner, columns]; b and c are
// row-major, `columns` is a multiple of `lanes`. Each element is summed in
// order of the inner index, whatever the sizes.
template <Into into>
void tile_product(float* c, std::int64_t c_stride, std::int64_t rows,
                  std::int64_t columns, std::int64_t inner, const Strided& a,
                  const float* b, std::int64_t b_stride) {
  detail::columns_product<block_vectors, into>(c, c_stride, rows, columns,
                                               inner, a, b, b_stride);
}

}  // namespace lockstep
