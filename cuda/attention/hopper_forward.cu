#include <algorithm>

#include "cuda/attention/hopper.cuh"

// Flash attention for Hopper (Dao 2023, algorithm 1; Shah et al. 2024). A block
// has an SM to itself: one warpgroup copies tiles, the others own 64 queries
// each. A warpgroup multiplies its queries by the next tile of keys while the
// tile of values before it is still being multiplied, and takes the
// exponentials of the one while the other runs. It rescales what it has only
// where a maximum has grown by more than a factor of 2^8, which is rare and
// changes no result: sums and outputs are of the same scale. Keys go from the
// last to the first, so that masked tiles come first.
//
// Where tiles of queries take little time, there are only as many blocks as
// SMs, and each goes over several tiles: the next one's queries, keys and
// values are copied while the last one's products end and its result is stored.
// Else each has a block, and an SM that is done early starts the next.
//   D    queries  keys  stages  shared memory  registers
//   64   192      128   2       113 KB         160
//   80   128      128   2       193 KB         240
//   96   128      128   2       193 KB         240
//   128  128      128   2       193 KB         240
// Moves q, k, v in and o out of device memory; k and v are read again from L2
// by each tile of queries.
namespace lockstep::attention {
namespace hopper {
namespace {

template <int head_dim, int groups_, int keys_, int stages_>
struct ForwardShape {
  static constexpr int D = head_dim, groups = groups_, keys = keys_;
  static constexpr int stages = stages_;
  static constexpr int panels = panels_of(D);
  static constexpr int queries = groups * box_rows;
  static constexpr int threads = (groups + 1) * warpgroup;
  static constexpr int group_bytes = panels * box_bytes;
  static constexpr int tile_bytes = panels * keys * row_bytes;
  static constexpr int barriers = 2 + 4 * stages;
  static constexpr bool shares_blocks = D < 128;
  static constexpr int shared_bytes =
      1024 + 2 * groups * group_bytes + 2 * stages * tile_bytes + 8 * barriers;
};

// A tile of queries and the tiles of keys that it needs.
template <class Shape>
struct Queries : Item {
  int first_query, tiles;

  __device__ Queries(const Item& item, const Extents& extents) : Item(item) {
    // The first tile is the one that may be short: it may begin before token 0.
    first_query =
        round_up(extents.q_tokens, box_rows) - (tile + 1) * Shape::queries;
    const int key_end =
        extents.causal ? min(first_query + Shape::queries, extents.k_tokens)
                       : extents.k_tokens;
    tiles = divide_up(key_end, Shape::keys);
  }
};

struct ForwardTensors {
  CUtensorMap q, k, v, o;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    forward_kernel(const __grid_constant__ ForwardTensors tensors,
                   const Extents extents, const Order order, float* lse_out) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int D = Shape::D, keys = Shape::keys;
  extern __shared__ char shared[];
  const std::uint32_t q_tile = (shared_address(shared) + 1023) & ~1023u;
  const std::uint32_t o_tile = q_tile + Shape::groups * Shape::group_bytes;
  const std::uint32_t k_tiles = o_tile + Shape::groups * Shape::group_bytes;
  const std::uint32_t v_tiles = k_tiles + Shape::stages * Shape::tile_bytes;
  const std::uint32_t q_full = v_tiles + Shape::stages * Shape::tile_bytes;
  const std::uint32_t q_empty = q_full + 8;
  const std::uint32_t k_full = q_empty + 8;
  const std::uint32_t v_full = k_full + 8 * Shape::stages;
  const std::uint32_t k_empty = v_full + 8 * Shape::stages;
  const std::uint32_t v_empty = k_empty + 8 * Shape::stages;

  const int items = order.sequences * order.tiles;
  const auto has_turn = [&](int turn) {
    return Shape::shares_blocks ? index_of(turn) < items : turn == 0;
  };
  const int group = threadIdx.x / warpgroup;

  if (threadIdx.x == 0) {
    init_barrier(q_full, 1);
    init_barrier(q_empty, 4 * Shape::groups);
    for (int i = 0; i < Shape::stages; ++i) {
      init_barrier(k_full + 8 * i, 1);
      init_barrier(v_full + 8 * i, 1);
      init_barrier(k_empty + 8 * i, 4 * Shape::groups);
      init_barrier(v_empty + 8 * i, 4 * Shape::groups);
    }
    fence_barrier_init();
  }
  __syncthreads();

  if (group == Shape::groups) {
    lower_registers<producer_registers<Shape::groups>>();
    if (threadIdx.x == Shape::groups * warpgroup) {
      Stage<Shape::stages> stage;
      for (int turn = 0; has_turn(turn); ++turn) {
        const Queries<Shape> at(item_at(order, extents, index_of(turn)),
                                extents);
        const auto load_keys = [&](std::uint32_t to, const CUtensorMap& map,
                                   int tile, std::uint32_t barrier) {
          expect_bytes(barrier, Shape::tile_bytes);
          load_tile<D, keys>(to, map, tile * keys, at, barrier);
        };
        const auto load_queries = [&] {
          wait(q_empty, turn % 2 ^ 1);
          expect_bytes(q_full, Shape::groups * Shape::group_bytes);
          for (int i = 0; i < Shape::groups; ++i) {
            load_tile<D, box_rows>(q_tile + i * Shape::group_bytes, tensors.q,
                                   at.first_query + i * box_rows, at, q_full);
          }
        };
        for (int tile = at.tiles - 1; tile >= 0; --tile) {
          const bool is_first = tile == at.tiles - 1;
          wait(k_empty + 8 * stage.index, stage.phase ^ 1);
          load_keys(k_tiles + stage.index * Shape::tile_bytes, tensors.k, tile,
                    k_full + 8 * stage.index);
          if (is_first && turn == 0) load_queries();
          wait(v_empty + 8 * stage.index, stage.phase ^ 1);
          load_keys(v_tiles + stage.index * Shape::tile_bytes, tensors.v, tile,
                    v_full + 8 * stage.index);
          // Later, those of the item before are still in use for a while.
          if (is_first && turn > 0) load_queries();
          stage.next();
        }
      }
    }
    return;
  }
  raise_registers<consumer_registers<Shape::groups>>();

  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const bool leader = lane == 0;  // of a warp
  const float scale = extents.scale * log2_e;
  const std::uint64_t q =
      descriptor(q_tile + group * Shape::group_bytes, box_bytes);

  float scores[keys / 2], out[D / 2];
  std::uint32_t weights[keys / 4];
  // Of the thread's two rows: (nearly) maxima in units of log2, sums of its own
  // columns.
  float maximum[2] = {}, sum[2] = {}, correction[2];
  int group_query = 0, row = 0;

  Stage<Shape::stages> stage;
  const auto multiply_keys = [&](int index) {
    multiply_columns<D, keys>(
        scores, q,
        descriptor(k_tiles + index * Shape::tile_bytes, keys * row_bytes));
    wgmma_commit();
  };
  const auto multiply_values = [&](int index, bool add) {
    multiply_rows<D, keys>(
        out, weights,
        descriptor(v_tiles + index * Shape::tile_bytes, keys * row_bytes), add);
    wgmma_commit();
  };
  // Scores to exponentials; whether any row of the warp has to be corrected.
  const auto exponentiate = [&](int tile) {
    const int first_key = tile * keys;
    if (extents.causal ? first_key + keys > group_query
                       : first_key + keys > extents.k_tokens) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int limit =
            (extents.causal ? row + 8 * half + 1 : extents.k_tokens) -
            first_key - lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < keys / 4; ++i) {
          float& score = scores[i / 2 * 4 + 2 * half + i % 2];
          if (i / 2 * 8 + i % 2 >= limit) score = -INFINITY;
        }
      }
    }
    bool corrects = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float best = scores[2 * half];
#pragma unroll
      for (int i = 1; i < keys / 4; ++i) {
        best = fmaxf(best, scores[i / 2 * 4 + 2 * half + i % 2]);
      }
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
      best *= scale;
      correction[half] = 1;
      if (best > maximum[half] + 8) {
        correction[half] = exp2_fast(maximum[half] - best);
        maximum[half] = best;
        corrects = true;
      }
    }
    corrects = __any_sync(0xffffffffu, corrects);
    if (corrects) {
      sum[0] *= correction[0];
      sum[1] *= correction[1];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < keys / 4; ++i) {
        float& score = scores[i / 2 * 4 + 2 * half + i % 2];
        score = exp2_fast(fmaf(score, scale, -maximum[half]));
        sum[half] += score;
      }
    }
    return corrects;
  };
  const auto release = [&](std::uint32_t barrier, int index) {
    if (leader) arrive(barrier + 8 * index);
  };

  for (int turn = 0; has_turn(turn); ++turn) {
    const Queries<Shape> at(item_at(order, extents, index_of(turn)), extents);
    group_query = at.first_query + group * box_rows;
    row = group_query + warp * 16 + lane / 4;
    const int own_end = extents.causal
                            ? min(group_query + box_rows, extents.k_tokens)
                            : extents.k_tokens;
    const int own_tiles = group_query < 0 ? 0 : divide_up(own_end, keys);
    maximum[0] = maximum[1] = -INFINITY;
    sum[0] = sum[1] = 0;

    // Tiles that only the block's later queries see.
    for (int tile = at.tiles - 1; tile >= own_tiles; --tile) {
      wait(k_full + 8 * stage.index, stage.phase);
      release(k_empty, stage.index);
      wait(v_full + 8 * stage.index, stage.phase);
      release(v_empty, stage.index);
      stage.next();
    }

    wait(q_full, turn % 2);
    if (own_tiles == 0) {
      release(q_empty, 0);
      continue;
    }
    wait(k_full + 8 * stage.index, stage.phase);
    wgmma_fence();
    multiply_keys(stage.index);
    wgmma_wait<0>();
    pin(scores);
    release(k_empty, stage.index);
    if (Shape::shares_blocks && own_tiles == 1) release(q_empty, 0);
    exponentiate(own_tiles - 1);
    pack_all(weights, scores);

    for (int tile = own_tiles - 2; tile >= 0; --tile) {
      const Stage<Shape::stages> before = stage;
      stage.next();
      wait(k_full + 8 * stage.index, stage.phase);
      pin(scores);
      pin(out);
      pin(weights);
      wgmma_fence();
      multiply_keys(stage.index);
      wait(v_full + 8 * before.index, before.phase);
      wgmma_fence();
      multiply_values(before.index, tile < own_tiles - 2);
      wgmma_wait<1>();
      pin(scores);
      release(k_empty, stage.index);
      if (Shape::shares_blocks && tile == 0) release(q_empty, 0);
      const bool corrects = exponentiate(tile);
      wgmma_wait<0>();
      pin(out);
      pin(weights);
      release(v_empty, before.index);
      pack_all(weights, scores);
      if (corrects) {
#pragma unroll
        for (int i = 0; i < D / 2; ++i) out[i] *= correction[i / 2 % 2];
      }
    }
    wait(v_full + 8 * stage.index, stage.phase);
    pin(out);
    pin(weights);
    wgmma_fence();
    multiply_values(stage.index, own_tiles > 1);

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
      sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
      const int query = row + 8 * half;
      if (lane % 4 == 0 && query < extents.q_tokens) {
        lse_out[std::int64_t{at.sequence} * extents.q_tokens + query] =
            (maximum[half] + log2f(sum[half])) / log2_e;
      }
    }
    wgmma_wait<0>();
    pin(out);
    release(v_empty, stage.index);
    stage.next();
    if (threadIdx.x % warpgroup == 0) wait_for_store_reads();
    sync_threads<warpgroup>(1 + group);
    start_to_store_result<D>(tensors.o, o_tile + group * Shape::group_bytes,
                             out, 1 / sum[0], 1 / sum[1], group, group_query,
                             at);
  }
  if (threadIdx.x % warpgroup == 0) wait_for_stores();
#endif
}

template <class Shape>
void launch_forward(cudaStream_t stream, const Forward<bf16>& problem) {
  const Extents& extents = problem.extents;
  const Order order = order_of(
      extents, divide_up(extents.q_tokens, Shape::queries), extents.k_tokens);
  const ForwardTensors tensors{
      tensor_map(problem.q, extents, extents.q_tokens),
      tensor_map(problem.k, extents, extents.k_tokens),
      tensor_map(problem.v, extents, extents.k_tokens),
      tensor_map(problem.o, extents, extents.q_tokens)};
  const unsigned items = blocks_for(extents, order.tiles);
  const unsigned blocks = Shape::shares_blocks && extents.k_tokens <= 2048
                              ? std::min(items, multiprocessors())
                              : items;
  allow_shared(forward_kernel<Shape>, Shape::shared_bytes);
  forward_kernel<Shape>
      <<<blocks, Shape::threads, Shape::shared_bytes, stream>>>(
          tensors, extents, order, problem.lse);
  check_launch("attention");
}

}  // namespace
}  // namespace hopper

void hopper_forward(cudaStream_t stream, const Forward<bf16>& problem) {
  using namespace hopper;
  const int head_dim = problem.extents.head_dim;
  if (head_dim <= 64) {
    launch_forward<ForwardShape<64, 3, 128, 2>>(stream, problem);
  } else if (head_dim <= 80) {
    launch_forward<ForwardShape<80, 2, 128, 2>>(stream, problem);
  } else if (head_dim <= 96) {
    launch_forward<ForwardShape<96, 2, 128, 2>>(stream, problem);
  } else {
    launch_forward<ForwardShape<128, 2, 128, 2>>(stream, problem);
  }
}

}  // namespace lockstep::attention
