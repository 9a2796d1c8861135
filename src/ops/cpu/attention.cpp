#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/checks.h"
#include "ops/cpu/attention_tiles.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/parallel.h"

namespace lockstep {
namespace {

// The running softmax of a tile's queries (Dao et al. 2022, algorithm 1).
struct RunningSoftmax {
  float largest[tile_queries];
  float sum[tile_queries];
  float correction[tile_queries];  // of what was summed before the last tile

  RunningSoftmax() {
    std::fill_n(largest, tile_queries, -std::numeric_limits<float>::infinity());
    std::fill_n(sum, tile_queries, 0.0f);
  }

  // Takes in scores [keys, tile_queries], which become e^(score − largest), of
  // the queries [begin, end).
  void add(float* scores, std::int64_t keys, std::int64_t begin,
           std::int64_t end) {
    float before[tile_queries];
    std::copy_n(largest, tile_queries, before);
    for (std::int64_t j = 0; j < keys; ++j) {
      const float* row = scores + j * tile_queries;
#pragma omp simd
      for (std::int64_t t = begin; t < end; ++t) {
        largest[t] = std::max(largest[t], row[t]);
      }
    }
#pragma omp simd
    for (std::int64_t t = begin; t < end; ++t) {
      correction[t] = fast_exp(before[t] - largest[t]);
      sum[t] *= correction[t];
    }
    for (std::int64_t j = 0; j < keys; ++j) {
      float* row = scores + j * tile_queries;
#pragma omp simd
      for (std::int64_t t = begin; t < end; ++t) {
        row[t] = fast_exp(row[t] - largest[t]);
        sum[t] += row[t];
      }
    }
  }
};

std::int64_t forward_floats(std::int64_t width) {
  return tile_keys * tile_queries + (2 * tile_queries + 2 * tile_keys) * width;
}

// Outputs of up to tile_queries queries of one head; lse of that head.
template <class T>
void attend(const Head<T>& o, float* lse, const Head<T>& q, const Head<T>& k,
            const Head<T>& v, std::int64_t first, const AttentionSizes& sizes,
            Space space) {
  const std::int64_t width = sizes.width, head_dim = sizes.head_dim;
  const std::int64_t count = std::min(tile_queries, sizes.queries - first);
  const std::int64_t columns = round_to_lanes(count);
  float* queries = space.take(head_dim * tile_queries);
  float* scores = space.take(tile_keys * tile_queries);
  float* key_space = space.take(tile_keys * head_dim);
  float* value_space = space.take(tile_keys * width);
  float* sum = space.take(tile_queries * width);  // of e^score · v

  transpose_rows(queries, q, first, count, head_dim, sizes.scale);
  std::fill_n(sum, count * width, 0.0f);
  RunningSoftmax softmax;
  sizes.for_each_key_tile(first, count, [&](const KeyTile& tile) {
    const std::int64_t keys = tile.count, skip = tile.skip;
    const WideRows ks =
        wide_rows(k, tile.first, keys, head_dim, head_dim, key_space);
    const WideRows vs =
        wide_rows(v, tile.first, keys, head_dim, width, value_space);
    tile_product<Into::overwrite>(
        scores + skip, tile_queries, keys, columns - skip, head_dim,
        {ks.data, ks.stride}, queries + skip, tile_queries);
    if (sizes.causal) {
      mask_future(scores, tile, first, -std::numeric_limits<float>::infinity());
    }
    softmax.add(scores, keys, skip, columns);
    for (std::int64_t t = skip; t < count; ++t) {
#pragma omp simd
      for (std::int64_t i = 0; i < width; ++i) {
        sum[t * width + i] *= softmax.correction[t];
      }
    }
    tile_product<Into::accumulate>(
        sum + skip * width, width, count - skip, width, keys,
        {scores + skip, 1, tile_queries}, vs.data, vs.stride);
  });

  for (std::int64_t t = 0; t < count; ++t) {
    T* out = o.data + (first + t) * o.stride;
    const float inverse = 1.0f / softmax.sum[t];
#pragma omp simd
    for (std::int64_t i = 0; i < head_dim; ++i) {
      store(out[i], sum[t * width + i] * inverse);
    }
    lse[first + t] = softmax.largest[t] + std::log(softmax.sum[t]);
  }
}

}  // namespace

void CpuOps::attention(const Heads& o, const Tensor& lse, const Heads& q,
                       const Heads& k, const Heads& v, bool causal) {
  check_attention(lse, q, k, v, causal, dtype_);
  check_heads_like(o, q, "attention: o");

  const AttentionSizes sizes(q, k, causal);
  const std::int64_t tiles = (q.tokens + tile_queries - 1) / tile_queries;
  const std::int64_t floats = forward_floats(sizes.width);
  float* memory = scratch(Scratch::attention, thread_count() * floats);
  with_storage([&]<class T>(T) {
    // The tiles of long causal rows come first, so that no thread ends late.
    parallel_for_uneven(
        q.batch * q.heads * tiles, tile_queries * k.tokens * q.head_dim,
        [&](std::int64_t item) {
          const std::int64_t head = item / tiles;
          const std::int64_t tile = tiles - 1 - item % tiles;
          attend<T>(head_at<T>(o, head), lse.as<float>() + head * q.tokens,
                    head_at<T>(q, head), head_at<T>(k, head),
                    head_at<T>(v, head), tile * tile_queries, sizes,
                    Space(memory + thread_index() * floats));
        });
  });
}

}  // namespace lockstep
