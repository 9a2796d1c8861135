#include "cuda/attention/mma.cuh"

// Flash attention on tensor cores (Dao 2023, algorithm 1). A block of 4 warps
// has 64 queries, 16 a warp, kept in registers; keys and values pass through
// two stages of shared memory, 64 tokens at a time, so that the next tile
// travels while this one is multiplied.
//   shared memory  4 tiles of 64 tokens: 36 KB at D = 64, 68 KB at 128;
//                  TF32 68 and 132 KB
//   registers      S 32, O D/2, Q D/4 of a thread (TF32: D/2)
// Moves q, k, v in and o out of device memory; k and v are read again from L2
// by each tile of queries.
namespace lockstep::attention {
namespace {

constexpr int step = 64;  // keys of a stage

template <class T, int D>
constexpr int shared_bytes = 4 * tile_elements<T, D>(step) * int{sizeof(T)};

template <class T, int D>
__global__ void __launch_bounds__(threads)
    mma_forward_kernel(const Forward<T> problem) {
  extern __shared__ __align__(16) unsigned char memory[];
  T* const shared = reinterpret_cast<T*>(memory);
  const auto k_stage = [&](int i) {
    return shared + (i % 2) * tile_elements<T, D>(step);
  };
  const auto v_stage = [&](int i) {
    return shared + (2 + i % 2) * tile_elements<T, D>(step);
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
    copy_tile<D, step>(k_stage(i), k, problem.k.token_stride, i * step,
                       extents.k_tokens, head_dim);
    copy_tile<D, step>(v_stage(i), v, problem.v.token_stride, i * step,
                       extents.k_tokens, head_dim);
    commit_copies();
  };

  // The queries pass through the second stage's memory on their way.
  copy_tile<D, own_tokens>(
      k_stage(1), rows_of(problem.q, work.sequence, extents.heads),
      problem.q.token_stride, first_query, extents.q_tokens, head_dim);
  copy_stage(0);
  wait_for_copies<0>();
  __syncthreads();
  A<T> q[D / 16];
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    q[d / 16] = load_a<D>(k_stage(1), warp * 16, d);
  }
  __syncthreads();

  C out[D / 8] = {};
  // Of the thread's two rows: maxima in units of log2, sums of its own columns.
  float maximum[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
  const float scale = extents.scale * log2_e;
  const int row = first_query + warp * 16 + lane / 4;
  const int keys = extents.causal
                       ? min(first_query + own_tokens, extents.k_tokens)
                       : extents.k_tokens;
  const int stages = divide_up(keys, step);
  for (int i = 0; i < stages; ++i) {
    if (i + 1 < stages) {
      copy_stage(i + 1);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();

    C scores[step / 8] = {};
#pragma unroll
    for (int d = 0; d < D; d += 16) {
#pragma unroll
      for (int n = 0; n < step; n += 16) {
        const B2<T> b = load_b_transposed<D>(k_stage(i), n, d);
        mma(scores[n / 8], scores[n / 8 + 1], q[d / 16], b);
      }
    }
    if (i + 1 == stages) {  // the only tile with keys that are not to be seen
#pragma unroll
      for (int j = 0; j < step / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int key = i * step + 8 * j + lane % 4 * 2 + c % 2;
          const int limit =
              extents.causal ? row + c / 2 * 8 + 1 : extents.k_tokens;
          if (key >= limit) scores[j].r[c] = -INFINITY;
        }
      }
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float best = -INFINITY;
#pragma unroll
      for (int j = 0; j < step / 8; ++j) {
        best = fmaxf(best,
                     fmaxf(scores[j].r[2 * half], scores[j].r[2 * half + 1]));
      }
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
      best = fmaxf(maximum[half], best * scale);
      const float correction = exp2_fast(maximum[half] - best);
      maximum[half] = best;
      sum[half] *= correction;
#pragma unroll
      for (int j = 0; j < step / 8; ++j) {
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c) {
          scores[j].r[c] = exp2_fast(fmaf(scores[j].r[c], scale, -best));
          sum[half] += scores[j].r[c];
        }
      }
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
        out[j].r[2 * half] *= correction;
        out[j].r[2 * half + 1] *= correction;
      }
    }
    add_product<D, step>(out, scores, v_stage(i));
    __syncthreads();  // this stage may be filled again
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
    const int query = row + 8 * half;
    if (lane % 4 == 0 && query < extents.q_tokens) {
      problem.lse[work.sequence * extents.q_tokens + query] =
          (maximum[half] + log2f(sum[half])) / log2_e;
    }
  }
  store_rows<D>(rows_of(problem.o, work.sequence, extents.heads),
                problem.o.token_stride, first_query + warp * 16,
                extents.q_tokens, head_dim, out, 1 / sum[0], 1 / sum[1]);
}

}  // namespace

template <class T>
void mma_forward(cudaStream_t stream, const Forward<T>& problem) {
  with_padded_head_dim(problem.extents.head_dim, [&](auto padded) {
    constexpr int D = padded;
    const int tiles = divide_up(problem.extents.q_tokens, own_tokens);
    allow_shared(mma_forward_kernel<T, D>, shared_bytes<T, D>);
    mma_forward_kernel<T, D><<<blocks_for(problem.extents, tiles), threads,
                               shared_bytes<T, D>, stream>>>(problem);
    check_launch("attention");
  });
}

template void mma_forward(cudaStream_t, const Forward<bf16>&);
template void mma_forward(cudaStream_t, const Forward<float>&);

}  // namespace lockstep::attention
