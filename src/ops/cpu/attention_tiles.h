#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "ops/cpu/numeric.h"
#include "ops/cpu/tile_product.h"
#include "ops/ops.h"

namespace lockstep {

// What attention's two passes share. Work goes through tiles of keys x queries,
// transposed so that queries fill the vector lanes: the softmax over keys is
// then elementwise on rows, and needs no sum across lanes.
constexpr std::int64_t tile_queries = 64;
constexpr std::int64_t tile_keys = 64;
// Where a causal tile crosses the diagonal it is cut into strips of this many
// keys, each of which leaves out the queries before its first key.
constexpr std::int64_t strip_keys = 16;
static_assert(strip_keys % lanes == 0 && tile_queries % strip_keys == 0);

// Keys [first, first + count) beside a tile of queries, of which those before
// `skip` see none of them.
struct KeyTile {
  std::int64_t first, count, skip;
};

struct AttentionSizes {
  std::int64_t queries, keys, head_dim;
  std::int64_t width;  // head_dim rounded up to whole vectors
  float scale;         // 1/√head_dim
  bool causal;

  AttentionSizes(const Heads& q, const Heads& k, bool is_causal)
      : queries(q.tokens),
        keys(k.tokens),
        head_dim(q.head_dim),
        width(round_to_lanes(q.head_dim)),
        scale(1.0f / std::sqrt(static_cast<float>(q.head_dim))),
        causal(is_causal) {}

  // Calls body(KeyTile) for all keys that queries [first, first + count) see.
  template <class Body>
  void for_each_key_tile(std::int64_t first, std::int64_t count,
                         Body&& body) const {
    const std::int64_t visible = causal ? first + count : keys;
    for (std::int64_t key = 0; key < visible;) {
      const bool diagonal = causal && key >= first;
      const std::int64_t height =
          std::min(diagonal ? strip_keys : tile_keys, visible - key);
      body(KeyTile{key, height, diagonal ? key - first : 0});
      key += height;
    }
  }
};

// One head of one sequence: [tokens, head_dim] with a row stride.
template <class T>
struct Head {
  T* data;
  std::int64_t stride;
};

// Head `index` of all batch·heads, counting heads first.
template <class T>
Head<T> head_at(const Heads& heads, std::int64_t index) {
  return {static_cast<T*>(heads.data) +
              index / heads.heads * heads.batch_stride +
              index % heads.heads * heads.head_stride,
          heads.token_stride};
}

// Hands out pieces of a thread's scratch memory.
class Space {
 public:
  explicit Space(float* memory) : next_(memory) {}
  float* take(std::int64_t floats) {
    return std::exchange(next_, next_ + round_to_lanes(floats));
  }

 private:
  float* next_;
};

// fp32 rows, `stride` apart.
struct WideRows {
  const float* data;
  std::int64_t stride;
};

// Tokens [first, first + count) as fp32 rows of `width` ≥ head_dim columns,
// those past head_dim zero. Uses the head itself where it is like that
// already, or a copy in `space` [count, width].
template <class T>
WideRows wide_rows(const Head<T>& head, std::int64_t first, std::int64_t count,
                   std::int64_t head_dim, std::int64_t width, float* space) {
  const T* from = head.data + first * head.stride;
  if constexpr (std::is_same_v<T, float>) {
    if (head_dim == width) return {from, head.stride};
  }
  for (std::int64_t t = 0; t < count; ++t) {
    for (std::int64_t i = 0; i < width; ++i) {
      space[t * width + i] =
          i < head_dim ? load(from[t * head.stride + i]) : 0.0f;
    }
  }
  return {space, width};
}

// out[i, t] = factor · head[first + t, i] for t < count and 0 from there to
// tile_queries; out [head_dim, tile_queries].
template <class T>
void transpose_rows(float* out, const Head<T>& head, std::int64_t first,
                    std::int64_t count, std::int64_t head_dim, float factor) {
  if (count < tile_queries) std::fill_n(out, head_dim * tile_queries, 0.0f);
  for (std::int64_t t = 0; t < count; ++t) {
    const T* from = head.data + (first + t) * head.stride;
    for (std::int64_t i = 0; i < head_dim; ++i) {
      out[i * tile_queries + t] = factor * load(from[i]);
    }
  }
}

// Overwrites with `value` the scores [tile.count, tile_queries] of queries that
// come before their key.
inline void mask_future(float* scores, const KeyTile& tile,
                        std::int64_t first_query, float value) {
  for (std::int64_t j = 0; j < tile.count; ++j) {
    const std::int64_t seen_from = tile.first + j - first_query;
    for (std::int64_t t = tile.skip; t < seen_from; ++t) {
      scores[j * tile_queries + t] = value;
    }
  }
}

}  // namespace lockstep
