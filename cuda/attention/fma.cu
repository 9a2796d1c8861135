#include "cuda/attention/rows.cuh"

// Flash attention in fp32 arithmetic, without tensor cores. A block of 16×16
// threads works on a tile of its own tokens against one tile of the other
// side's tokens after the other. Tiles get shorter as heads get wider, so that
// each matrix takes 16 KiB of shared memory (17 with padding): three and the
// probabilities forward (up to 70 KB), four and the probabilities backward (up
// to 87 KB). Thread (x, y) has rows y·R…y·R+R-1 and columns x, x+16, … of the
// scores, and columns 4x…4x+3, 4x+64…, … of outputs. Every sum runs in a fixed
// order.
namespace lockstep::attention {
namespace {

constexpr int threads = 256;

// Sizes for head dims up to D.
template <int D>
struct Tile {
  static constexpr int tokens = 4096 / D;
  static constexpr int R = tokens / 16;  // rows, and columns, of a thread
  static constexpr int stride = D + 4;   // of a row of a matrix
  static constexpr int score_stride = tokens + 4;
  static constexpr int matrix = tokens * stride;        // floats
  static constexpr int scores = tokens * score_stride;  // floats
};

// Tokens [first, first + tile) as fp32; zeros beyond the last token and beyond
// the head dim.
template <int D, class T>
__device__ void load_tile(float* to, const T* from, std::int64_t token_stride,
                          int first, int tokens, int head_dim) {
#pragma unroll 4
  for (int i = threadIdx.x; i < Tile<D>::tokens * D; i += threads) {
    const int row = i / D, column = i % D;
    const bool inside = first + row < tokens && column < head_dim;
    to[row * Tile<D>::stride + column] =
        inside ? to_float(from[(first + row) * token_stride + column]) : 0.0f;
  }
}

template <int D>
using Scores = float[Tile<D>::R][Tile<D>::R];
template <int D>
using Outputs = float[Tile<D>::R][D / 16];

// scores = a·bᵀ for the thread's rows of a and columns (rows of b).
template <int D>
__device__ void dot_rows(Scores<D>& scores, const float* a, const float* b) {
  constexpr int R = Tile<D>::R, stride = Tile<D>::stride;
  const float* a_rows = a + threadIdx.x / 16 * R * stride;
  const float* b_rows = b + threadIdx.x % 16 * stride;
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int j = 0; j < R; ++j) scores[i][j] = 0;
  }
#pragma unroll 1
  for (int d = 0; d < D; d += 4) {
    float4 left[R], right[R];
#pragma unroll
    for (int i = 0; i < R; ++i) {
      left[i] = *reinterpret_cast<const float4*>(a_rows + i * stride + d);
      right[i] = *reinterpret_cast<const float4*>(b_rows + i * 16 * stride + d);
    }
#pragma unroll
    for (int i = 0; i < R; ++i) {
#pragma unroll
      for (int j = 0; j < R; ++j) {
        float sum = scores[i][j];
        sum = fmaf(left[i].x, right[j].x, sum);
        sum = fmaf(left[i].y, right[j].y, sum);
        sum = fmaf(left[i].z, right[j].z, sum);
        scores[i][j] = fmaf(left[i].w, right[j].w, sum);
      }
    }
  }
}

// out += scores·b, with the scores passing through shared memory. Only the 16
// threads of the same y share rows of them, which are half a warp.
template <int D>
__device__ void add_product(Outputs<D>& out, const Scores<D>& scores,
                            float* shared_scores, const float* b) {
  constexpr int R = Tile<D>::R;
  constexpr int score_stride = Tile<D>::score_stride;
  const int x = threadIdx.x % 16;
  float* rows = shared_scores + threadIdx.x / 16 * R * score_stride;
  __syncwarp();  // the last product's readers are done
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int j = 0; j < R; ++j) {
      rows[i * score_stride + x + 16 * j] = scores[i][j];
    }
  }
  __syncwarp();
#pragma unroll 4
  for (int n = 0; n < Tile<D>::tokens; ++n) {
    float weight[R];
#pragma unroll
    for (int i = 0; i < R; ++i) weight[i] = rows[i * score_stride + n];
#pragma unroll
    for (int c = 0; c < D / 64; ++c) {
      const float4 value = *reinterpret_cast<const float4*>(
          b + n * Tile<D>::stride + 4 * x + 64 * c);
#pragma unroll
      for (int i = 0; i < R; ++i) {
        out[i][4 * c] = fmaf(weight[i], value.x, out[i][4 * c]);
        out[i][4 * c + 1] = fmaf(weight[i], value.y, out[i][4 * c + 1]);
        out[i][4 * c + 2] = fmaf(weight[i], value.z, out[i][4 * c + 2]);
        out[i][4 * c + 3] = fmaf(weight[i], value.w, out[i][4 * c + 3]);
      }
    }
  }
}

// Row i of the thread's outputs, times factor, to a row in device memory.
template <int D, class T>
__device__ void store_row(T* to, const float (&row)[D / 16], float factor,
                          int head_dim) {
#pragma unroll
  for (int c = 0; c < D / 16; ++c) {
    const int column = threadIdx.x % 16 * 4 + c / 4 * 64 + c % 4;
    if (column < head_dim) assign(to[column], row[c] * factor);
  }
}

// Over the 16 threads that share rows.
__device__ float row_max(float x) {
  for (int offset = 8; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  }
  return x;
}
__device__ float row_sum(float x) {
  for (int offset = 8; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  return x;
}

// The number of keys that a query sees.
__device__ int keys_of(int query, const Extents& extents) {
  return extents.causal ? min(query + 1, extents.k_tokens) : extents.k_tokens;
}

template <class T, int D>
__global__ void __launch_bounds__(threads)
    forward_kernel(const Forward<T> problem) {
  constexpr int R = Tile<D>::R, tile = Tile<D>::tokens;
  extern __shared__ float shared[];
  float* q = shared;
  float* k = q + Tile<D>::matrix;
  float* v = k + Tile<D>::matrix;
  float* scores = v + Tile<D>::matrix;

  const Extents& extents = problem.extents;
  const Work work = work_of_block(extents.batch * extents.heads);
  const int last_tile = (extents.q_tokens - 1) / tile;
  const int first_query = (last_tile - work.tile) * tile;  // long rows first
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  load_tile<D>(q, rows_of(problem.q, work.sequence, extents.heads),
               problem.q.token_stride, first_query, extents.q_tokens,
               extents.head_dim);

  Outputs<D> out = {};
  float maximum[R], sum[R];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    maximum[i] = -INFINITY;
    sum[i] = 0;
  }
  const int keys = keys_of(first_query + tile - 1, extents);
  for (int first_key = 0; first_key < keys; first_key += tile) {
    __syncthreads();
    load_tile<D>(k, rows_of(problem.k, work.sequence, extents.heads),
                 problem.k.token_stride, first_key, extents.k_tokens,
                 extents.head_dim);
    load_tile<D>(v, rows_of(problem.v, work.sequence, extents.heads),
                 problem.v.token_stride, first_key, extents.k_tokens,
                 extents.head_dim);
    __syncthreads();
    Scores<D> s;
    dot_rows<D>(s, q, k);
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const int limit = keys_of(first_query + y * R + i, extents) - first_key;
      float best = maximum[i];
#pragma unroll
      for (int j = 0; j < R; ++j) {
        s[i][j] = x + 16 * j < limit ? s[i][j] * extents.scale : -INFINITY;
        best = fmaxf(best, s[i][j]);
      }
      best = row_max(best);
      const float correction = expf(maximum[i] - best);
      maximum[i] = best;
      sum[i] *= correction;
#pragma unroll
      for (int j = 0; j < R; ++j) {
        s[i][j] = expf(s[i][j] - best);
        sum[i] += s[i][j];
      }
#pragma unroll
      for (int c = 0; c < D / 16; ++c) out[i][c] *= correction;
    }
    add_product<D>(out, s, scores, v);
  }

  T* o = rows_of(problem.o, work.sequence, extents.heads);
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int query = first_query + y * R + i;
    const float total = row_sum(sum[i]);
    if (query >= extents.q_tokens) continue;
    store_row<D>(o + query * problem.o.token_stride, out[i], 1 / total,
                 extents.head_dim);
    if (x == 0) {
      problem.lse[work.sequence * extents.q_tokens + query] =
          maximum[i] + logf(total);
    }
  }
}

// dk and dv of a tile of keys, going through the queries that see them.
template <class T, int D>
__global__ void __launch_bounds__(threads)
    key_gradient_kernel(const Backward<T> problem) {
  constexpr int R = Tile<D>::R, tile = Tile<D>::tokens;
  extern __shared__ float shared[];
  float* k = shared;
  float* v = k + Tile<D>::matrix;
  float* q = v + Tile<D>::matrix;
  float* dout = q + Tile<D>::matrix;
  float* scores = dout + Tile<D>::matrix;

  const Extents& extents = problem.extents;
  const Work work = work_of_block(extents.batch * extents.heads);
  const int first_key = work.tile * tile;
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  load_tile<D>(k, rows_of(problem.k, work.sequence, extents.heads),
               problem.k.token_stride, first_key, extents.k_tokens,
               extents.head_dim);
  load_tile<D>(v, rows_of(problem.v, work.sequence, extents.heads),
               problem.v.token_stride, first_key, extents.k_tokens,
               extents.head_dim);
  const float* lse = problem.lse + work.sequence * extents.q_tokens;
  const float* delta = problem.delta + work.sequence * extents.q_tokens;

  Outputs<D> dk = {}, dv = {};
  const int start = extents.causal ? first_key : 0;
  for (int first_query = start; first_query < extents.q_tokens;
       first_query += tile) {
    __syncthreads();
    load_tile<D>(q, rows_of(problem.q, work.sequence, extents.heads),
                 problem.q.token_stride, first_query, extents.q_tokens,
                 extents.head_dim);
    load_tile<D>(dout, rows_of(problem.dout, work.sequence, extents.heads),
                 problem.dout.token_stride, first_query, extents.q_tokens,
                 extents.head_dim);
    __syncthreads();
    Scores<D> p, ds;
    dot_rows<D>(p, k, q);
    dot_rows<D>(ds, v, dout);
#pragma unroll
    for (int j = 0; j < R; ++j) {
      const int query = first_query + x + 16 * j;
      const bool inside = query < extents.q_tokens;
      const float lse_of_query = inside ? lse[query] : INFINITY;
      const float delta_of_query = inside ? delta[query] : 0.0f;
      const int limit = keys_of(query, extents) - first_key;
#pragma unroll
      for (int i = 0; i < R; ++i) {
        const bool seen = inside && y * R + i < limit;
        p[i][j] = seen ? expf(p[i][j] * extents.scale - lse_of_query) : 0.0f;
        ds[i][j] = seen ? p[i][j] * (ds[i][j] - delta_of_query) : 0.0f;
      }
    }
    add_product<D>(dv, p, scores, dout);
    add_product<D>(dk, ds, scores, q);
  }

  T* dk_rows = rows_of(problem.dk, work.sequence, extents.heads);
  T* dv_rows = rows_of(problem.dv, work.sequence, extents.heads);
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int key = first_key + y * R + i;
    if (key >= extents.k_tokens) continue;
    store_row<D>(dk_rows + key * problem.dk.token_stride, dk[i], extents.scale,
                 extents.head_dim);
    store_row<D>(dv_rows + key * problem.dv.token_stride, dv[i], 1.0f,
                 extents.head_dim);
  }
}

// dq of a tile of queries, going through the keys that they see.
template <class T, int D>
__global__ void __launch_bounds__(threads)
    query_gradient_kernel(const Backward<T> problem) {
  constexpr int R = Tile<D>::R, tile = Tile<D>::tokens;
  extern __shared__ float shared[];
  float* q = shared;
  float* dout = q + Tile<D>::matrix;
  float* k = dout + Tile<D>::matrix;
  float* v = k + Tile<D>::matrix;
  float* scores = v + Tile<D>::matrix;

  const Extents& extents = problem.extents;
  const Work work = work_of_block(extents.batch * extents.heads);
  const int last_tile = (extents.q_tokens - 1) / tile;
  const int first_query = (last_tile - work.tile) * tile;
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  load_tile<D>(q, rows_of(problem.q, work.sequence, extents.heads),
               problem.q.token_stride, first_query, extents.q_tokens,
               extents.head_dim);
  load_tile<D>(dout, rows_of(problem.dout, work.sequence, extents.heads),
               problem.dout.token_stride, first_query, extents.q_tokens,
               extents.head_dim);
  float lse[R], delta[R];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int query = first_query + y * R + i;
    const bool inside = query < extents.q_tokens;
    const std::int64_t at = work.sequence * extents.q_tokens + query;
    lse[i] = inside ? problem.lse[at] : INFINITY;
    delta[i] = inside ? problem.delta[at] : 0.0f;
  }

  Outputs<D> dq = {};
  const int keys = keys_of(first_query + tile - 1, extents);
  for (int first_key = 0; first_key < keys; first_key += tile) {
    __syncthreads();
    load_tile<D>(k, rows_of(problem.k, work.sequence, extents.heads),
                 problem.k.token_stride, first_key, extents.k_tokens,
                 extents.head_dim);
    load_tile<D>(v, rows_of(problem.v, work.sequence, extents.heads),
                 problem.v.token_stride, first_key, extents.k_tokens,
                 extents.head_dim);
    __syncthreads();
    Scores<D> s, ds;
    dot_rows<D>(s, q, k);
    dot_rows<D>(ds, dout, v);
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const int limit = keys_of(first_query + y * R + i, extents) - first_key;
#pragma unroll
      for (int j = 0; j < R; ++j) {
        const float p = expf(s[i][j] * extents.scale - lse[i]);
        ds[i][j] = x + 16 * j < limit ? p * (ds[i][j] - delta[i]) : 0.0f;
      }
    }
    add_product<D>(dq, ds, scores, k);
  }

  T* rows = rows_of(problem.dq, work.sequence, extents.heads);
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int query = first_query + y * R + i;
    if (query >= extents.q_tokens) continue;
    store_row<D>(rows + query * problem.dq.token_stride, dq[i], extents.scale,
                 extents.head_dim);
  }
}

template <int D>
constexpr int shared_bytes(int matrices) {
  return (matrices * Tile<D>::matrix + Tile<D>::scores) *
         static_cast<int>(sizeof(float));
}

template <int D, class T>
void forward(cudaStream_t stream, const Forward<T>& problem) {
  constexpr int bytes = shared_bytes<D>(3);
  const int tiles = divide_up(problem.extents.q_tokens, Tile<D>::tokens);
  allow_shared(forward_kernel<T, D>, bytes);
  forward_kernel<T, D>
      <<<blocks_for(problem.extents, tiles), threads, bytes, stream>>>(problem);
  check_launch("attention");
}

template <int D, class T>
void backward(cudaStream_t stream, const Backward<T>& problem) {
  constexpr int bytes = shared_bytes<D>(4);
  const Extents& extents = problem.extents;
  allow_shared(key_gradient_kernel<T, D>, bytes);
  key_gradient_kernel<T, D>
      <<<blocks_for(extents, divide_up(extents.k_tokens, Tile<D>::tokens)),
         threads, bytes, stream>>>(problem);
  check_launch("attention backward of keys");
  allow_shared(query_gradient_kernel<T, D>, bytes);
  query_gradient_kernel<T, D>
      <<<blocks_for(extents, divide_up(extents.q_tokens, Tile<D>::tokens)),
         threads, bytes, stream>>>(problem);
  check_launch("attention backward of queries");
}

}  // namespace

template <class T>
void fma_forward(cudaStream_t stream, const Forward<T>& problem) {
  const int head_dim = problem.extents.head_dim;
  if (head_dim <= 64) return forward<64>(stream, problem);
  if (head_dim <= 128) return forward<128>(stream, problem);
  forward<256>(stream, problem);
}

template <class T>
void fma_backward(cudaStream_t stream, const Backward<T>& problem) {
  const int head_dim = problem.extents.head_dim;
  if (head_dim <= 64) return backward<64>(stream, problem);
  if (head_dim <= 128) return backward<128>(stream, problem);
  backward<256>(stream, problem);
}

template void fma_forward(cudaStream_t, const Forward<float>&);
template void fma_forward(cudaStream_t, const Forward<bf16>&);
template void fma_backward(cudaStream_t, const Backward<float>&);
template void fma_backward(cudaStream_t, const Backward<bf16>&);

}  // namespace lockstep::attention
