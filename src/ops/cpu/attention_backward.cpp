#include <algorithm>

#include "ops/checks.h"
#include "ops/cpu/attention_tiles.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/parallel.h"

namespace lockstep {
namespace {

template <class T>
struct BackwardHeads {
  Head<T> dq, dk, dv, dout, o, q, k, v;
  const float* lse;  // [queries]
};

// Scores of the queries [begin, end) become probabilities P = e^(score − lse).
void probabilities(float* scores, std::int64_t keys, std::int64_t begin,
                   std::int64_t end, const float* lse) {
  for (std::int64_t j = 0; j < keys; ++j) {
    float* row = scores + j * tile_queries;
#pragma omp simd
    for (std::int64_t t = begin; t < end; ++t) {
      row[t] = fast_exp(row[t] - lse[t]);
    }
  }
}

// dp becomes the gradient of q·k: P ⊙ (dP − delta) · scale.
void score_gradients(float* dp, const float* p, std::int64_t keys,
                     std::int64_t begin, std::int64_t end, const float* delta,
                     float scale) {
  for (std::int64_t j = 0; j < keys; ++j) {
    float* row = dp + j * tile_queries;
    const float* weight = p + j * tile_queries;
#pragma omp simd
    for (std::int64_t t = begin; t < end; ++t) {
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
// Matrices [rows, width] are zero past head_dim.
template <class T>
class HeadBackward {
 public:
  static std::int64_t floats(const AttentionSizes& sizes) {
    return 2 * tile_queries + 2 * tile_keys * tile_queries +
           (5 * tile_queries + 2 * tile_keys + 2 * sizes.keys) * sizes.width;
  }

  HeadBackward(const BackwardHeads<T>& head, const AttentionSizes& sizes,
               Space space)
      : head_(head),
        sizes_(sizes),
        queries_(space.take(sizes.width * tile_queries)),
        douts_(space.take(sizes.width * tile_queries)),
        query_space_(space.take(tile_queries * sizes.width)),
        dout_space_(space.take(tile_queries * sizes.width)),
        dq_(space.take(tile_queries * sizes.width)),
        lse_(space.take(tile_queries)),
        delta_(space.take(tile_queries)),
        p_(space.take(tile_keys * tile_queries)),
        ds_(space.take(tile_keys * tile_queries)),
        key_space_(space.take(tile_keys * sizes.width)),
        value_space_(space.take(tile_keys * sizes.width)),
        dk_(space.take(sizes.keys * sizes.width)),
        dv_(space.take(sizes.keys * sizes.width)) {}

  void run() {
    std::fill_n(dk_, sizes_.keys * sizes_.width, 0.0f);
    std::fill_n(dv_, sizes_.keys * sizes_.width, 0.0f);
    for (first_ = 0; first_ < sizes_.queries; first_ += tile_queries) {
      count_ = std::min(tile_queries, sizes_.queries - first_);
      load_queries();
      sizes_.for_each_key_tile(first_, count_,
                               [this](const KeyTile& tile) { add(tile); });
      narrow_rows(head_.dq, first_, count_, sizes_.head_dim, dq_, sizes_.width);
    }
    narrow_rows(head_.dk, 0, sizes_.keys, sizes_.head_dim, dk_, sizes_.width);
    narrow_rows(head_.dv, 0, sizes_.keys, sizes_.head_dim, dv_, sizes_.width);
  }

 private:
  void load_queries() {
    const std::int64_t dim = sizes_.head_dim, width = sizes_.width;
    transpose_rows(queries_, head_.q, first_, count_, dim, sizes_.scale);
    transpose_rows(douts_, head_.dout, first_, count_, dim, 1.0f);
    query_rows_ = wide_rows(head_.q, first_, count_, dim, width, query_space_);
    dout_rows_ = wide_rows(head_.dout, first_, count_, dim, width, dout_space_);
    std::fill_n(lse_, tile_queries, 0.0f);
    std::copy_n(head_.lse + first_, count_, lse_);

    // delta = Σ_i dout·o, summed in the order in which dP is, so that a query
    // with one key gets a gradient of exactly zero.
    float* outs = dq_;
    transpose_rows(outs, head_.o, first_, count_, dim, 1.0f);
    std::fill_n(delta_, tile_queries, 0.0f);
    for (std::int64_t i = 0; i < dim; ++i) {
#pragma omp simd
      for (std::int64_t t = 0; t < tile_queries; ++t) {
        delta_[t] += outs[i * tile_queries + t] * douts_[i * tile_queries + t];
      }
    }
    std::fill_n(dq_, count_ * width, 0.0f);
  }

  // What a tile of keys adds to the gradients.
  void add(const KeyTile& tile) {
    const std::int64_t keys = tile.count, skip = tile.skip;
    const std::int64_t dim = sizes_.head_dim, width = sizes_.width;
    const std::int64_t seeing = count_ - skip;  // queries
    const std::int64_t end = round_to_lanes(count_);
    const WideRows k =
        wide_rows(head_.k, tile.first, keys, dim, width, key_space_);
    const WideRows v =
        wide_rows(head_.v, tile.first, keys, dim, width, value_space_);

    tile_product<Into::overwrite>(p_ + skip, tile_queries, keys, end - skip,
                                  dim, {k.data, k.stride}, queries_ + skip,
                                  tile_queries);
    probabilities(p_, keys, skip, end, lse_);
    if (sizes_.causal) mask_future(p_, tile, first_, 0.0f);
    tile_product<Into::overwrite>(ds_ + skip, tile_queries, keys, end - skip,
                                  dim, {v.data, v.stride}, douts_ + skip,
                                  tile_queries);
    score_gradients(ds_, p_, keys, skip, end, delta_, sizes_.scale);

    tile_product<Into::accumulate>(dv_ + tile.first * width, width, keys, width,
                                   seeing, {p_ + skip, tile_queries},
                                   dout_rows_.data + skip * dout_rows_.stride,
                                   dout_rows_.stride);
    tile_product<Into::accumulate>(dk_ + tile.first * width, width, keys, width,
                                   seeing, {ds_ + skip, tile_queries},
                                   query_rows_.data + skip * query_rows_.stride,
                                   query_rows_.stride);
    tile_product<Into::accumulate>(dq_ + skip * width, width, seeing, width,
                                   keys, {ds_ + skip, 1, tile_queries}, k.data,
                                   k.stride);
  }

  BackwardHeads<T> head_;
  AttentionSizes sizes_;
  std::int64_t first_ = 0, count_ = 0;      // the tile of queries in work
  float *queries_, *douts_;                 // [head_dim, tile_queries]
  float *query_space_, *dout_space_, *dq_;  // [tile_queries, width]
  WideRows query_rows_, dout_rows_;
  float *lse_, *delta_;              // [tile_queries]
  float *p_, *ds_;                   // [tile_keys, tile_queries]
  float *key_space_, *value_space_;  // [tile_keys, width]
  float *dk_, *dv_;                  // [keys, width]
};

}  // namespace

void CpuOps::attention_backward(const Heads& dq, const Heads& dk,
                                const Heads& dv, const Heads& dout,
                                const Heads& o, const Tensor& lse,
                                const Heads& q, const Heads& k, const Heads& v,
                                bool causal) {
  check_attention_backward(dq, dk, dv, dout, o, lse, q, k, v, causal, dtype_);

  const AttentionSizes sizes(q, k, causal);
  const std::int64_t floats = HeadBackward<float>::floats(sizes);
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
          HeadBackward<T>(head, sizes, Space(memory + thread_index() * floats))
              .run();
        });
  });
}

}  // namespace lockstep
