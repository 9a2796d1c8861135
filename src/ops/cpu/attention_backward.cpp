#include <algorithm>

#include "ops/cpu/attention_tiles.h"
#include "ops/cpu/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/parallel.h"

namespace lockstep {
namespace {

template <class T>
struct BackwardHeads {
  Head<T> dq, dk, dv, dout, o, q, k, v;
  const float* lse;  // [queries]
};

std::int64_t backward_floats(const AttentionSizes& sizes) {
  return 2 * tile_keys * tile_queries + 2 * tile_queries +
         (5 * tile_queries + 2 * tile_keys + 2 * sizes.keys) * sizes.width;
}

// scores become probabilities P = e^(score − lse).
void probabilities(float* scores, std::int64_t keys, std::int64_t columns,
                   const float* lse) {
  for (std::int64_t j = 0; j < keys; ++j) {
    float* row = scores + j * tile_queries;
#pragma omp simd
    for (std::int64_t t = 0; t < columns; ++t) {
      row[t] = fast_exp(row[t] - lse[t]);
    }
  }
}

// dp becomes the gradient of q·k: P ⊙ (dP − delta) · scale.
void score_gradients(float* dp, const float* p, std::int64_t keys,
                     std::int64_t columns, const float* delta, float scale) {
  for (std::int64_t j = 0; j < keys; ++j) {
    float* row = dp + j * tile_queries;
    const float* weight = p + j * tile_queries;
#pragma omp simd
    for (std::int64_t t = 0; t < columns; ++t) {
      row[t] = weight[t] * (row[t] - delta[t]) * scale;
    }
  }
}

template <class T>
void narrow_rows(const Head<T>& to, std::int64_t first, std::int64_t count,
                 std::int64_t head_dim, const float* from, std::int64_t width) {
  for (std::int64_t t = 0; t < count; ++t) {
    T* out = to.data + (first + t) * to.stride;
#pragma omp simd
    for (std::int64_t i = 0; i < head_dim; ++i) {
      store(out[i], from[t * width + i]);
    }
  }
}

// All gradients of one head (Dao 2023, algorithm 2), tile of queries by tile.
template <class T>
void attend_backward(const BackwardHeads<T>& head, const AttentionSizes& sizes,
                     Space space) {
  const std::int64_t width = sizes.width, head_dim = sizes.head_dim;
  float* queries = space.take(head_dim * tile_queries);
  float* douts = space.take(head_dim * tile_queries);
  float* query_space = space.take(tile_queries * width);
  float* dout_space = space.take(tile_queries * width);
  float* dq = space.take(tile_queries * width);
  float* lse = space.take(tile_queries);
  float* delta = space.take(tile_queries);
  float* p = space.take(tile_keys * tile_queries);
  float* ds = space.take(tile_keys * tile_queries);
  float* key_space = space.take(tile_keys * width);
  float* value_space = space.take(tile_keys * width);
  float* dk = space.take(sizes.keys * width);
  float* dv = space.take(sizes.keys * width);
  std::fill_n(dk, sizes.keys * width, 0.0f);
  std::fill_n(dv, sizes.keys * width, 0.0f);

  for (std::int64_t first = 0; first < sizes.queries; first += tile_queries) {
    const std::int64_t count = std::min(tile_queries, sizes.queries - first);
    const std::int64_t columns = round_to_lanes(count);
    transpose_rows(queries, head.q, first, count, head_dim, sizes.scale);
    transpose_rows(douts, head.dout, first, count, head_dim, 1.0f);
    std::fill_n(lse, tile_queries, 0.0f);
    std::copy_n(head.lse + first, count, lse);

    // delta = Σ_i dout·o, summed in the order in which dP is, so that a query
    // with one key gets a gradient of exactly zero.
    float* outs = dq;
    transpose_rows(outs, head.o, first, count, head_dim, 1.0f);
    std::fill_n(delta, tile_queries, 0.0f);
    for (std::int64_t i = 0; i < head_dim; ++i) {
#pragma omp simd
      for (std::int64_t t = 0; t < tile_queries; ++t) {
        delta[t] += outs[i * tile_queries + t] * douts[i * tile_queries + t];
      }
    }
    const WideRows qs =
        wide_rows(head.q, first, count, head_dim, width, query_space);
    const WideRows dos =
        wide_rows(head.dout, first, count, head_dim, width, dout_space);
    std::fill_n(dq, count * width, 0.0f);

    const std::int64_t visible = sizes.visible_keys(first + count);
    for (std::int64_t key = 0; key < visible; key += tile_keys) {
      const std::int64_t keys = std::min(tile_keys, visible - key);
      const WideRows ks =
          wide_rows(head.k, key, keys, head_dim, width, key_space);
      const WideRows vs =
          wide_rows(head.v, key, keys, head_dim, width, value_space);
      tile_product<Into::overwrite>(p, tile_queries, keys, columns, head_dim,
                                    {ks.data, ks.stride}, queries,
                                    tile_queries);
      probabilities(p, keys, columns, lse);
      if (sizes.causal) mask_future(p, key, keys, first, 0.0f);
      tile_product<Into::accumulate>(dv + key * width, width, keys, width,
                                     count, {p, tile_queries}, dos.data,
                                     dos.stride);
      tile_product<Into::overwrite>(ds, tile_queries, keys, columns, head_dim,
                                    {vs.data, vs.stride}, douts, tile_queries);
      score_gradients(ds, p, keys, columns, delta, sizes.scale);
      tile_product<Into::accumulate>(dk + key * width, width, keys, width,
                                     count, {ds, tile_queries}, qs.data,
                                     qs.stride);
      tile_product<Into::accumulate>(dq, width, count, width, keys,
                                     {ds, 1, tile_queries}, ks.data, ks.stride);
    }
    narrow_rows(head.dq, first, count, head_dim, dq, width);
  }
  narrow_rows(head.dk, 0, sizes.keys, head_dim, dk, width);
  narrow_rows(head.dv, 0, sizes.keys, head_dim, dv, width);
}

}  // namespace

void CpuOps::attention_backward(const Heads& dq, const Heads& dk,
                                const Heads& dv, const Heads& dout,
                                const Heads& o, const Tensor& lse,
                                const Heads& q, const Heads& k, const Heads& v,
                                bool causal) {
  check_attention(lse, q, k, v, causal, dtype_);
  check_heads_like(o, q, "attention_backward: o");
  check_heads_like(dout, q, "attention_backward: dout");
  check_heads_like(dq, q, "attention_backward: dq");
  check_heads_like(dk, k, "attention_backward: dk");
  check_heads_like(dv, k, "attention_backward: dv");

  const AttentionSizes sizes(q, k, causal);
  const std::int64_t floats = backward_floats(sizes);
  float* memory = scratch(Scratch::attention, thread_count() * floats);
  with_storage([&]<class T>(T) {
    parallel_for_uneven(
        q.batch * q.heads, q.tokens * k.tokens * q.head_dim,
        [&](std::int64_t index) {
          const BackwardHeads<T> head{head_at<T>(dq, index),
                                      head_at<T>(dk, index),
                                      head_at<T>(dv, index),
                                      head_at<T>(dout, index),
                                      head_at<T>(o, index),
                                      head_at<T>(q, index),
                                      head_at<T>(k, index),
                                      head_at<T>(v, index),
                                      lse.as<float>() + index * q.tokens};
          attend_backward(head, sizes, Space(memory + thread_index() * floats));
        });
  });
}

}  // namespace lockstep
