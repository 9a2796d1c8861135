#include <type_traits>

#include "cuda/attention/rows.cuh"
#include "cuda/attention/turns.cuh"

// Flash attention in fp32 arithmetic, without tensor cores. A block of 16×16
// threads works on a tile of its own tokens, of R times 16, against tiles of
// the other side's, of C times 16. Of scores, thread (x, y) has rows y, y+16, …
// and columns x, x+16, …; of outputs, the same rows and every 16th group of
// columns. Rows in shared memory are 4 floats longer than they need to be, so
// that rows that are read at once are in different banks. What comes next
// travels while products are taken of what is there.
//             D    own tokens  other's  shared memory  registers
//   forward   64   128         64        86 KB         128, two blocks an SM
//             80   128         64       102 KB         255
//             96   128         64       118 KB         255
//             128  128         64       150 KB         255
//             256   64         32       139 KB         255
//   backward  64    64         64        85 KB         128, two blocks an SM
//             80    64         64       101 KB         255
//             96    64         64       117 KB         255
//             128   64         64       149 KB         255
//             256   32         32       135 KB         255
// Every sum runs in a fixed order.
namespace lockstep::attention {

constexpr int side = 16;  // of a block
constexpr int threads = side * side;

// Own tokens by those of the other side, R×C a thread; blocks of an SM.
template <int D_, int R_, int C_, int blocks_>
struct Tile {
  static constexpr int D = D_, R = R_, C = C_, blocks = blocks_;
  static constexpr int rows = R * side, columns = C * side;
  static constexpr int stride = D + 4;
  static constexpr int unrolled = blocks == 1 ? 2 : 1;  // takes registers
  static constexpr int width = D % 64 == 0 ? 4 : D % 32 == 0 ? 2 : 1;
  // Weights on their way from scores to a product, in the forward pass a half
  // of the columns at a time.
  static constexpr int half = columns > 32 ? columns / 2 : columns;
  static constexpr int half_stride = half + 4;
  static constexpr int weight_stride = columns + 4;

  static constexpr int forward_bytes =
      ((rows + 2 * columns) * stride + rows * half_stride) * 4;
  static constexpr int backward_bytes =
      (2 * (rows + columns) * stride + rows * weight_stride) * 4;
  // dq of a round, which is a tile of the other side's.
  static constexpr int round_floats = columns * D;
};

namespace {

// Up to `width` adjacent floats.
template <int width>
struct alignas(4 * width) Adjacent {
  float at[width];
};
template <int width>
__device__ Adjacent<width> load(const float* from) {
  return *reinterpret_cast<const Adjacent<width>*>(from);
}

// The column of a thread's c-th output.
template <class Tile>
__device__ int column_of(int c) {
  constexpr int width = Tile::width;
  return c / width * side * width + threadIdx.x % side * width + c % width;
}

// Starts to copy tokens [first, first + rows) as fp32; zeros beyond the last
// token and beyond the head dim.
template <class Tile, int rows, class T>
__device__ void start_load(float* to, const T* from, std::int64_t token_stride,
                           int first, int tokens, int head_dim) {
  constexpr int groups = Tile::D / 4;
  const bool by_four = reinterpret_cast<std::uintptr_t>(from) % 16 == 0 &&
                       token_stride % 4 == 0 && head_dim % 4 == 0;
#pragma unroll 2
  for (int i = threadIdx.x; i < rows * groups; i += threads) {
    const int row = i / groups, column = i % groups * 4;
    float* const at = to + row * Tile::stride + column;
    const T* const source = from + (first + row) * token_stride + column;
    const bool exists = first + row < tokens;
    if constexpr (std::is_same_v<T, float>) {
      if (by_four) {
        const bool inside = exists && column < head_dim;
        copy_async_16(at, inside ? source : from, inside);
      } else {
        for (int j = 0; j < 4; ++j) {
          const bool inside = exists && column + j < head_dim;
          copy_async_4(at + j, inside ? source + j : from, inside);
        }
      }
    } else {
      for (int j = 0; j < 4; ++j) {
        const bool inside = exists && column + j < head_dim;
        at[j] = inside ? to_float(source[j]) : 0.0f;
      }
    }
  }
}

// scores = a·bᵀ.
template <class Tile>
__device__ void multiply_columns(float (&scores)[Tile::R][Tile::C],
                                 const float* a, const float* b) {
  constexpr int stride = Tile::stride;
  const float* const a_rows = a + threadIdx.x / side * stride;
  const float* const b_rows = b + threadIdx.x % side * stride;
#pragma unroll
  for (int i = 0; i < Tile::R; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::C; ++j) scores[i][j] = 0;
  }
#pragma unroll(Tile::unrolled)
  for (int d = 0; d < Tile::D; d += 4) {
    Adjacent<4> right[Tile::C];
#pragma unroll
    for (int j = 0; j < Tile::C; ++j) {
      right[j] = load<4>(b_rows + j * side * stride + d);
    }
#pragma unroll
    for (int i = 0; i < Tile::R; ++i) {
      const Adjacent<4> left = load<4>(a_rows + i * side * stride + d);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int j = 0; j < Tile::C; ++j) {
          scores[i][j] = fmaf(left.at[k], right[j].at[k], scores[i][j]);
        }
      }
    }
  }
}

// Columns [first, first + count) of weights to shared memory, where only the
// 16 threads that have the same rows read them: half a warp.
template <class Tile, int count, int stride>
__device__ void store_weights(float* to,
                              const float (&weights)[Tile::R][Tile::C],
                              int first) {
  const int x = threadIdx.x % side, y = threadIdx.x / side;
  __syncwarp();  // what was there has been read
#pragma unroll
  for (int i = 0; i < Tile::R; ++i) {
#pragma unroll
    for (int j = 0; j < count / side; ++j) {
      to[(y + i * side) * stride + x + j * side] = weights[i][first / side + j];
    }
  }
  __syncwarp();
}

// out += weights·values, where weights has `count` columns and values rows.
template <class Tile, int count, int stride>
__device__ void add_product(float (&out)[Tile::R][Tile::D / side],
                            const float* weights, const float* values) {
  constexpr int width = Tile::width;
  const float* const rows = weights + threadIdx.x / side * stride;
  const float* const columns = values + column_of<Tile>(0);
#pragma unroll(Tile::unrolled)
  for (int n = 0; n < count; n += 4) {
    Adjacent<4> weight[Tile::R];
#pragma unroll
    for (int i = 0; i < Tile::R; ++i) {
      weight[i] = load<4>(rows + i * side * stride + n);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int c = 0; c < Tile::D / side; c += width) {
        const Adjacent<width> value =
            load<width>(columns + (n + k) * Tile::stride + c * side);
#pragma unroll
        for (int i = 0; i < Tile::R; ++i) {
#pragma unroll
          for (int w = 0; w < width; ++w) {
            out[i][c + w] = fmaf(weight[i].at[k], value.at[w], out[i][c + w]);
          }
        }
      }
    }
  }
}

// A row of the thread's outputs, times factor, to device memory.
template <class Tile, class T>
__device__ void store_row(T* to, const float (&row)[Tile::D / side],
                          float factor, int head_dim) {
#pragma unroll
  for (int c = 0; c < Tile::D / side; ++c) {
    const int column = column_of<Tile>(c);
    if (column < head_dim) assign(to[column], row[c] * factor);
  }
}

// Over the 16 threads that share rows.
__device__ float row_max(float x) {
  for (int offset = side / 2; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  }
  return x;
}
__device__ float row_sum(float x) {
  for (int offset = side / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  return x;
}

template <class T, class Tile>
__global__ void __launch_bounds__(threads, Tile::blocks)
    forward_kernel(const Forward<T> problem) {
  constexpr int D = Tile::D, R = Tile::R, C = Tile::C;
  constexpr int queries = Tile::rows, keys = Tile::columns;
  extern __shared__ __align__(16) float shared[];
  float* const q_tile = shared;
  float* const k_tile = q_tile + queries * Tile::stride;
  float* const v_tile = k_tile + keys * Tile::stride;
  float* const weights = v_tile + keys * Tile::stride;

  const Extents& extents = problem.extents;
  const Work work = work_of_block(extents.batch * extents.heads);
  const int last_tile = (extents.q_tokens - 1) / queries;
  const int first_query = (last_tile - work.tile) * queries;  // long rows first
  const int x = threadIdx.x % side, y = threadIdx.x / side;
  const T* const k = rows_of(problem.k, work.sequence, extents.heads);
  const T* const v = rows_of(problem.v, work.sequence, extents.heads);
  const auto start_keys = [&](int first_key) {
    start_load<Tile, keys>(k_tile, k, problem.k.token_stride, first_key,
                           extents.k_tokens, extents.head_dim);
    commit_copies();
  };
  start_load<Tile, queries>(
      q_tile, rows_of(problem.q, work.sequence, extents.heads),
      problem.q.token_stride, first_query, extents.q_tokens, extents.head_dim);
  start_keys(0);

  float out[R][D / side] = {};
  // Maxima in units of log2, sums of the thread's own columns.
  float maximum[R], sum[R];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    maximum[i] = -INFINITY;
    sum[i] = 0;
  }
  const float scale = extents.scale * log2_e;
  const int end = extents.causal ? min(first_query + queries, extents.k_tokens)
                                 : extents.k_tokens;
  for (int first_key = 0; first_key < end; first_key += keys) {
    wait_for_copies<0>();
    __syncthreads();  // the last tile's values have been read
    start_load<Tile, keys>(v_tile, v, problem.v.token_stride, first_key,
                           extents.k_tokens, extents.head_dim);
    commit_copies();
    float s[R][C];
    multiply_columns<Tile>(s, q_tile, k_tile);
    wait_for_copies<0>();
    __syncthreads();  // the keys have been read
    if (first_key + keys < end) start_keys(first_key + keys);

    if (extents.causal ? first_key + keys > first_query + 1
                       : first_key + keys > extents.k_tokens) {
#pragma unroll
      for (int i = 0; i < R; ++i) {
        const int limit = (extents.causal ? first_query + y + i * side + 1
                                          : extents.k_tokens) -
                          first_key - x;
#pragma unroll
        for (int j = 0; j < C; ++j) {
          if (j * side >= limit) s[i][j] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < R; ++i) {
      float best = s[i][0];
#pragma unroll
      for (int j = 1; j < C; ++j) best = fmaxf(best, s[i][j]);
      best = fmaxf(maximum[i], row_max(best) * scale);
      const float correction = exp2_fast(maximum[i] - best);
      maximum[i] = best;
      sum[i] *= correction;
#pragma unroll
      for (int j = 0; j < C; ++j) {
        s[i][j] = exp2_fast(fmaf(s[i][j], scale, -best));
        sum[i] += s[i][j];
      }
#pragma unroll
      for (int c = 0; c < D / side; ++c) out[i][c] *= correction;
    }
#pragma unroll
    for (int first = 0; first < keys; first += Tile::half) {
      store_weights<Tile, Tile::half, Tile::half_stride>(weights, s, first);
      add_product<Tile, Tile::half, Tile::half_stride>(
          out, weights, v_tile + first * Tile::stride);
    }
  }

  T* const o = rows_of(problem.o, work.sequence, extents.heads);
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int query = first_query + y + i * side;
    const float total = row_sum(sum[i]);
    if (query >= extents.q_tokens) continue;
    store_row<Tile>(o + query * problem.o.token_stride, out[i], 1 / total,
                    extents.head_dim);
    if (x == 0) {
      problem.lse[work.sequence * extents.q_tokens + query] =
          (maximum[i] + log2f(total)) / log2_e;
    }
  }
}

// dq += gradientsᵀ·k for `columns` queries, of which a thread has C neighbours.
template <class Tile>
__device__ void multiply_gradients(float (&dq)[Tile::C][Tile::D / side],
                                   const float* gradients, const float* k) {
  constexpr int C = Tile::C, width = Tile::width;
  const float* const rows = gradients + threadIdx.x / side * C;
  const float* const columns = k + column_of<Tile>(0);
#pragma unroll
  for (int i = 0; i < C; ++i) {
#pragma unroll
    for (int c = 0; c < Tile::D / side; ++c) dq[i][c] = 0;
  }
#pragma unroll 4
  for (int n = 0; n < Tile::rows; ++n) {
    const Adjacent<C> weight = load<C>(rows + n * Tile::weight_stride);
#pragma unroll
    for (int c = 0; c < Tile::D / side; c += width) {
      const Adjacent<width> value =
          load<width>(columns + n * Tile::stride + c * side);
#pragma unroll
      for (int i = 0; i < C; ++i) {
#pragma unroll
        for (int w = 0; w < width; ++w) {
          dq[i][c + w] = fmaf(weight.at[i], value.at[w], dq[i][c + w]);
        }
      }
    }
  }
}

// The backward pass (Dao 2023, algorithm 2): a block has a tile of keys and
// goes through the queries that see them, from the last to the first. dq is
// summed up in turns (see turns.cuh).
template <class T, class Tile>
__global__ void __launch_bounds__(threads, Tile::blocks)
    backward_kernel(const Backward<T> problem) {
  constexpr int D = Tile::D, R = Tile::R, C = Tile::C;
  constexpr int keys = Tile::rows, queries = Tile::columns;
  extern __shared__ __align__(16) float shared[];
  float* const k_tile = shared;
  float* const v_tile = k_tile + keys * Tile::stride;
  float* const q_tile = v_tile + keys * Tile::stride;
  float* const dout_tile = q_tile + queries * Tile::stride;
  float* const weights = dout_tile + queries * Tile::stride;

  const Extents& extents = problem.extents;
  const Work work = work_of_block(extents.batch * extents.heads);
  const int first_key = work.tile * keys;
  const int tiles = divide_up(extents.k_tokens, keys);
  const int rounds = divide_up(extents.q_tokens, queries);
  const int first_round = extents.causal ? first_key / queries : 0;
  const int x = threadIdx.x % side, y = threadIdx.x / side;
  const auto start_queries = [&](float* to, const View<const T>& view,
                                 int round) {
    start_load<Tile, queries>(to, rows_of(view, work.sequence, extents.heads),
                              view.token_stride, round * queries,
                              extents.q_tokens, extents.head_dim);
    commit_copies();
  };
  start_load<Tile, keys>(
      k_tile, rows_of(problem.k, work.sequence, extents.heads),
      problem.k.token_stride, first_key, extents.k_tokens, extents.head_dim);
  start_load<Tile, keys>(
      v_tile, rows_of(problem.v, work.sequence, extents.heads),
      problem.v.token_stride, first_key, extents.k_tokens, extents.head_dim);
  start_queries(dout_tile, problem.dout, rounds - 1);
  start_queries(q_tile, problem.q, rounds - 1);

  const float* const lse = problem.lse + work.sequence * extents.q_tokens;
  const float* const delta = problem.delta + work.sequence * extents.q_tokens;
  int* const turns = problem.turns + work.sequence * rounds;
  float* const sums =
      problem.sums + work.sequence * rounds * Tile::round_floats + threadIdx.x;
  T* const dq_rows = rows_of(problem.dq, work.sequence, extents.heads);
  const float scale = extents.scale * log2_e;
  float dk[R][D / side] = {}, dv[R][D / side] = {};
  for (int round = rounds - 1; round >= first_round; --round) {
    const int first_query = round * queries;
    float lse_of[C], delta_of[C];
#pragma unroll
    for (int j = 0; j < C; ++j) {
      const int query = first_query + x + j * side;
      // +∞ makes the probabilities of a query that does not exist zero.
      const bool exists = query < extents.q_tokens;
      lse_of[j] = exists ? lse[query] * log2_e : INFINITY;
      delta_of[j] = exists ? delta[query] : 0;
    }
    float p[R][C], ds[R][C];
    wait_for_copies<1>();
    __syncthreads();
    multiply_columns<Tile>(ds, v_tile, dout_tile);
    wait_for_copies<0>();
    __syncthreads();
    multiply_columns<Tile>(p, k_tile, q_tile);
    const bool masked = extents.causal ? first_key + keys > first_query + 1
                                       : first_key + keys > extents.k_tokens;
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const int key = first_key + y + i * side;
#pragma unroll
      for (int j = 0; j < C; ++j) {
        const int last =
            extents.causal ? first_query + x + j * side : extents.k_tokens - 1;
        p[i][j] = masked && key > last
                      ? 0
                      : exp2_fast(fmaf(p[i][j], scale, -lse_of[j]));
        ds[i][j] = p[i][j] * (ds[i][j] - delta_of[j]);
      }
    }
    store_weights<Tile, queries, Tile::weight_stride>(weights, p, 0);
    add_product<Tile, queries, Tile::weight_stride>(dv, weights, dout_tile);
    __syncthreads();  // dout has been read
    if (round > first_round) {
      start_queries(dout_tile, problem.dout, round - 1);
    }
    store_weights<Tile, queries, Tile::weight_stride>(weights, ds, 0);
    add_product<Tile, queries, Tile::weight_stride>(dk, weights, q_tile);
    __syncthreads();  // q has been read, and all gradients are there
    if (round > first_round) start_queries(q_tile, problem.q, round - 1);

    float dq[C][D / side];
    multiply_gradients<Tile>(dq, weights, k_tile);
    const int last_query = first_query + queries - 1;
    const Turn turn(
        turns + round, work.tile,
        extents.causal ? min(last_query / keys, tiles - 1) : tiles - 1);
    if (threadIdx.x == 0) turn.wait();
    __syncthreads();
    float* const sum = sums + std::int64_t{round} * Tile::round_floats;
#pragma unroll
    for (int i = 0; i < C; ++i) {
#pragma unroll
      for (int c = 0; c < D / side; ++c) {
        float* const to = sum + (i * (D / side) + c) * threads;
        if (turn.is_last()) {
          if (!turn.is_first()) dq[i][c] += __ldcg(to);
        } else if (turn.is_first()) {
          __stcg(to, dq[i][c]);
        } else {
          atomicAdd(to, dq[i][c]);
        }
      }
      const int query = first_query + y * C + i;
      if (turn.is_last() && query < extents.q_tokens) {
        store_row<Tile>(dq_rows + query * problem.dq.token_stride, dq[i],
                        extents.scale, extents.head_dim);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) turn.pass();
  }

  T* const dk_rows = rows_of(problem.dk, work.sequence, extents.heads);
  T* const dv_rows = rows_of(problem.dv, work.sequence, extents.heads);
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const int key = first_key + y + i * side;
    if (key >= extents.k_tokens) continue;
    store_row<Tile>(dk_rows + key * problem.dk.token_stride, dk[i],
                    extents.scale, extents.head_dim);
    store_row<Tile>(dv_rows + key * problem.dv.token_stride, dv[i], 1.0f,
                    extents.head_dim);
  }
}

// run(Tile{}) for the head dim.
template <class Run>
void with_forward_tile(int head_dim, Run run) {
  if (head_dim <= 64) return run(Tile<64, 8, 4, 2>{});
  if (head_dim <= 80) return run(Tile<80, 8, 4, 1>{});
  if (head_dim <= 96) return run(Tile<96, 8, 4, 1>{});
  if (head_dim <= 128) return run(Tile<128, 8, 4, 1>{});
  run(Tile<256, 4, 2, 1>{});
}
template <class Run>
void with_backward_tile(int head_dim, Run run) {
  if (head_dim <= 64) return run(Tile<64, 4, 4, 2>{});
  if (head_dim <= 80) return run(Tile<80, 4, 4, 1>{});
  if (head_dim <= 96) return run(Tile<96, 4, 4, 1>{});
  if (head_dim <= 128) return run(Tile<128, 4, 4, 1>{});
  run(Tile<256, 2, 2, 1>{});
}

}  // namespace

template <class T>
void fma_forward(cudaStream_t stream, const Forward<T>& problem) {
  with_forward_tile(problem.extents.head_dim, [&](auto tile) {
    using Tile = decltype(tile);
    constexpr int bytes = Tile::forward_bytes;
    allow_shared(forward_kernel<T, Tile>, bytes);
    const int tiles = divide_up(problem.extents.q_tokens, Tile::rows);
    forward_kernel<T, Tile>
        <<<blocks_for(problem.extents, tiles), threads, bytes, stream>>>(
            problem);
    check_launch("attention");
  });
}

DqSums fma_dq_sums(const Extents& extents) {
  DqSums sums;
  with_backward_tile(extents.head_dim, [&](auto tile) {
    using Tile = decltype(tile);
    sums = {divide_up(extents.q_tokens, Tile::columns), Tile::round_floats};
  });
  return sums;
}

template <class T>
void fma_backward(cudaStream_t stream, const Backward<T>& problem) {
  with_backward_tile(problem.extents.head_dim, [&](auto tile) {
    using Tile = decltype(tile);
    constexpr int bytes = Tile::backward_bytes;
    allow_shared(backward_kernel<T, Tile>, bytes);
    const int tiles = divide_up(problem.extents.k_tokens, Tile::rows);
    backward_kernel<T, Tile>
        <<<blocks_for(problem.extents, tiles), threads, bytes, stream>>>(
            problem);
    check_launch("attention backward");
  });
}

template void fma_forward(cudaStream_t, const Forward<float>&);
template void fma_forward(cudaStream_t, const Forward<bf16>&);
template void fma_backward(cudaStream_t, const Backward<float>&);
template void fma_backward(cudaStream_t, const Backward<bf16>&);

}  // namespace lockstep::attention
