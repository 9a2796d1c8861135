#include "cuda/attention/mma.cuh"

// The backward pass of flash attention on tensor cores (Dao 2023, algorithm 2),
// as two kernels, each of which owns what it sums up, so that no atomics are
// needed and every sum has one order: one goes over queries for dk and dv of 64
// keys, one goes over keys for dq of 64 queries. Both recompute the
// probabilities: 7 products of T×T×D instead of 5.
//   shared memory  own tiles 2×64 tokens, stages 2×2×`step` tokens:
//                  55 KB at D = 64, 69 KB at 128; TF32 103 and 133 KB
//   registers      dk and dv D of a thread (dq D/2), scores and their gradient
namespace lockstep::attention {
namespace {

// Tokens of a stage: fewer where wide heads need the registers.
template <int D>
constexpr int step = D <= 64 ? 64 : 32;

template <class T, int D>
constexpr int shared_bytes = (2 * tile_elements<T, D>(own_tokens) +
                              4 * tile_elements<T, D>(step<D>)) *
                                 int{sizeof(T)} +
                             4 * step<D>* int{sizeof(float)};

template <class T, int D>
__global__ void __launch_bounds__(threads)
    mma_key_gradient_kernel(const Backward<T> problem) {
  constexpr int stage_elements = tile_elements<T, D>(step<D>);
  extern __shared__ __align__(16) unsigned char memory[];
  T* const shared = reinterpret_cast<T*>(memory);
  T* k = shared;
  T* v = k + tile_elements<T, D>(own_tokens);
  T* stages = v + tile_elements<T, D>(own_tokens);
  const auto q_stage = [&](int i) { return stages + i % 2 * stage_elements; };
  const auto dout_stage = [&](int i) {
    return stages + (2 + i % 2) * stage_elements;
  };
  auto* floats = reinterpret_cast<float*>(stages + 4 * stage_elements);
  const auto lse_stage = [&](int i) { return floats + i % 2 * step<D>; };
  const auto delta_stage = [&](int i) {
    return floats + (2 + i % 2) * step<D>;
  };

  const Extents& extents = problem.extents;
  const int head_dim = extents.head_dim, queries = extents.q_tokens;
  const Work work = work_of_block(extents.batch * extents.heads);
  const int first_key = work.tile * own_tokens;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const T* q = rows_of(problem.q, work.sequence, extents.heads);
  const T* dout = rows_of(problem.dout, work.sequence, extents.heads);
  const float* lse = problem.lse + work.sequence * queries;
  const float* delta = problem.delta + work.sequence * queries;
  // Queries beyond the last are zeros, and so is what they add.
  const auto copy_stage = [&](int i) {
    copy_tile<D, step<D>>(q_stage(i), q, problem.q.token_stride, i * step<D>,
                          queries, head_dim);
    copy_tile<D, step<D>>(dout_stage(i), dout, problem.dout.token_stride,
                          i * step<D>, queries, head_dim);
    if (threadIdx.x < step<D>) {
      const int query = i * step<D> + threadIdx.x;
      const bool inside = query < queries;
      copy_async_4(lse_stage(i) + threadIdx.x, lse + (inside ? query : 0),
                   inside);
      copy_async_4(delta_stage(i) + threadIdx.x, delta + (inside ? query : 0),
                   inside);
    }
    commit_copies();
  };

  copy_tile<D, own_tokens>(k, rows_of(problem.k, work.sequence, extents.heads),
                           problem.k.token_stride, first_key, extents.k_tokens,
                           head_dim);
  copy_tile<D, own_tokens>(v, rows_of(problem.v, work.sequence, extents.heads),
                           problem.v.token_stride, first_key, extents.k_tokens,
                           head_dim);
  const int first_stage = extents.causal ? first_key / step<D> : 0;
  const int stages_end = divide_up(queries, step<D>);
  copy_stage(first_stage);

  C dk[D / 8] = {}, dv[D / 8] = {};
  const float scale = extents.scale * log2_e;
  for (int i = first_stage; i < stages_end; ++i) {
    if (i + 1 < stages_end) {
      copy_stage(i + 1);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();

    // Transposed scores: rows are keys, columns queries.
    C p[step<D> / 8] = {}, ds[step<D> / 8] = {};
    add_dot_rows<D, step<D>>(p, k, warp * 16, q_stage(i));
    // Element c of fragment j is seen where key ≤ query, which is where
    // first_seen + 8·(c/2) ≤ 8·j + c%2.
    const int first_seen = extents.causal ? first_key + warp * 16 + lane / 4 -
                                                (i * step<D> + lane % 4 * 2)
                                          : -own_tokens;
    const float* lse_of = lse_stage(i) + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < step<D> / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float exponent =
            p[j].r[c] * scale - lse_of[8 * j + c % 2] * log2_e;
        const bool seen = first_seen + c / 2 * 8 <= 8 * j + c % 2;
        p[j].r[c] = seen ? exp2_fast(exponent) : 0.0f;
      }
    }
    add_product<D, step<D>>(dv, p, dout_stage(i));

    add_dot_rows<D, step<D>>(ds, v, warp * 16, dout_stage(i));
    const float* delta_of = delta_stage(i) + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < step<D> / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        ds[j].r[c] = p[j].r[c] * (ds[j].r[c] - delta_of[8 * j + c % 2]);
      }
    }
    add_product<D, step<D>>(dk, ds, q_stage(i));
    __syncthreads();  // this stage may be filled again
  }

  const int first_row = first_key + warp * 16;
  store_rows<D>(rows_of(problem.dk, work.sequence, extents.heads),
                problem.dk.token_stride, first_row, extents.k_tokens, head_dim,
                dk, extents.scale, extents.scale);
  store_rows<D>(rows_of(problem.dv, work.sequence, extents.heads),
                problem.dv.token_stride, first_row, extents.k_tokens, head_dim,
                dv, 1, 1);
}

template <class T, int D>
__global__ void __launch_bounds__(threads)
    mma_query_gradient_kernel(const Backward<T> problem) {
  constexpr int stage_elements = tile_elements<T, D>(step<D>);
  extern __shared__ __align__(16) unsigned char memory[];
  T* const shared = reinterpret_cast<T*>(memory);
  T* q = shared;
  T* dout = q + tile_elements<T, D>(own_tokens);
  T* stages = dout + tile_elements<T, D>(own_tokens);
  const auto k_stage = [&](int i) { return stages + i % 2 * stage_elements; };
  const auto v_stage = [&](int i) {
    return stages + (2 + i % 2) * stage_elements;
  };

  const Extents& extents = problem.extents;
  const int head_dim = extents.head_dim;
  const Work work = work_of_block(extents.batch * extents.heads);
  const int last_tile = (extents.q_tokens - 1) / own_tokens;
  const int first_query = (last_tile - work.tile) * own_tokens;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const T* k = rows_of(problem.k, work.sequence, extents.heads);
  const T* v = rows_of(problem.v, work.sequence, extents.heads);
  const auto copy_stage = [&](int i) {
    copy_tile<D, step<D>>(k_stage(i), k, problem.k.token_stride, i * step<D>,
                          extents.k_tokens, head_dim);
    copy_tile<D, step<D>>(v_stage(i), v, problem.v.token_stride, i * step<D>,
                          extents.k_tokens, head_dim);
    commit_copies();
  };

  copy_tile<D, own_tokens>(q, rows_of(problem.q, work.sequence, extents.heads),
                           problem.q.token_stride, first_query,
                           extents.q_tokens, head_dim);
  copy_tile<D, own_tokens>(
      dout, rows_of(problem.dout, work.sequence, extents.heads),
      problem.dout.token_stride, first_query, extents.q_tokens, head_dim);
  copy_stage(0);

  // Of the thread's two rows; +∞ makes the probabilities of a query that does
  // not exist zero.
  float lse[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first_query + warp * 16 + lane / 4 + 8 * half;
    const bool inside = query < extents.q_tokens;
    const std::int64_t at = work.sequence * extents.q_tokens + query;
    lse[half] = inside ? problem.lse[at] * log2_e : INFINITY;
    delta[half] = inside ? problem.delta[at] : 0.0f;
  }

  C dq[D / 8] = {};
  const float scale = extents.scale * log2_e;
  const int keys = extents.causal
                       ? min(first_query + own_tokens, extents.k_tokens)
                       : extents.k_tokens;
  const int stages_end = divide_up(keys, step<D>);
  for (int i = 0; i < stages_end; ++i) {
    if (i + 1 < stages_end) {
      copy_stage(i + 1);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();

    C p[step<D> / 8] = {}, ds[step<D> / 8] = {};
    add_dot_rows<D, step<D>>(p, q, warp * 16, k_stage(i));
    add_dot_rows<D, step<D>>(ds, dout, warp * 16, v_stage(i));
    // Element c of fragment j is seen where 8·j + c%2 < limit, and 8 further
    // for the lower of two rows in a causal pass.
    const int limit = (extents.causal ? first_query + warp * 16 + lane / 4 + 1
                                      : extents.k_tokens) -
                      (i * step<D> + lane % 4 * 2);
    const int lower = extents.causal ? 8 : 0;
#pragma unroll
    for (int j = 0; j < step<D> / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const bool seen = 8 * j + c % 2 < limit + c / 2 * lower;
        const float exponent = p[j].r[c] * scale - lse[c / 2];
        ds[j].r[c] =
            seen ? exp2_fast(exponent) * (ds[j].r[c] - delta[c / 2]) : 0.0f;
      }
    }
    add_product<D, step<D>>(dq, ds, k_stage(i));
    __syncthreads();  // this stage may be filled again
  }
  store_rows<D>(rows_of(problem.dq, work.sequence, extents.heads),
                problem.dq.token_stride, first_query + warp * 16,
                extents.q_tokens, head_dim, dq, extents.scale, extents.scale);
}

}  // namespace

template <class T>
void mma_backward(cudaStream_t stream, const Backward<T>& problem) {
  const Extents& extents = problem.extents;
  with_padded_head_dim(extents.head_dim, [&](auto padded) {
    constexpr int D = padded;
    allow_shared(mma_key_gradient_kernel<T, D>, shared_bytes<T, D>);
    mma_key_gradient_kernel<T, D>
        <<<blocks_for(extents, divide_up(extents.k_tokens, own_tokens)),
           threads, shared_bytes<T, D>, stream>>>(problem);
    check_launch("attention backward of keys");
    allow_shared(mma_query_gradient_kernel<T, D>, shared_bytes<T, D>);
    mma_query_gradient_kernel<T, D>
        <<<blocks_for(extents, divide_up(extents.q_tokens, own_tokens)),
           threads, shared_bytes<T, D>, stream>>>(problem);
    check_launch("attention backward of queries");
  });
}

template void mma_backward(cudaStream_t, const Backward<bf16>&);
template void mma_backward(cudaStream_t, const Backward<float>&);

}  // namespace lockstep::attention
