#include "cuda/attention/hopper.cuh"

// The backward pass of flash attention for Hopper (Dao 2023, algorithm 2), as
// two kernels, each of which owns what it sums up, so that no atomics are
// needed and every sum has one order: the first goes over keys for dq of its
// queries, and computes delta; the second goes over queries for dk and dv of
// its keys. Both recompute the probabilities: 7 products of T×T×D instead of 5.
//
// In both, a warpgroup copies tiles and the others own 64 tokens each. Scores
// and their gradient are wgmma's of tiles in shared memory; what is summed up
// has the probabilities in registers as its left operand, for which the second
// kernel computes scores by keys. The products of one step are still running
// when the next step's scores are started.
//   D          tokens a block  shared memory  registers
//   64         192             115 KB         160
//   80, dq     192             195 KB         160
//   80, dk dv  128             195 KB         240
//   96, 128    128             195 KB         240
// Moves q, k, v, dout, o in and dq, dk, dv out of device memory; what a kernel
// passes over is read again from L2 by each of its blocks.
namespace lockstep::attention {
namespace hopper {
namespace {

constexpr int step = box_rows;  // tokens of a stage

template <int head_dim, int groups_, int stages_>
struct BackwardShape {
  static constexpr int D = head_dim, groups = groups_, stages = stages_;
  static constexpr int panels = panels_of(D);
  static constexpr int tokens = groups * box_rows;
  static constexpr int threads = (groups + 1) * warpgroup;
  static constexpr int tile_bytes = panels * box_bytes;  // of 64 tokens
  static constexpr int own_bytes = 2 * groups * tile_bytes;
  static constexpr int stage_bytes = 2 * tile_bytes;
  static constexpr int row_values_bytes = step * int{sizeof(float2)};
  static constexpr int shared_bytes =
      1024 + own_bytes + stages * (stage_bytes + row_values_bytes) +
      8 * (1 + 2 * stages);
};

struct BackwardTensors {
  CUtensorMap dq, dk, dv, dout, q, k, v;
};

// Where a block's tiles and barriers are.
template <class Shape>
struct Layout {
  std::uint32_t own[2], stages, row_values, own_full, full, empty;

  __device__ explicit Layout(const char* shared) {
    own[0] = (shared_address(shared) + 1023) & ~1023u;
    own[1] = own[0] + Shape::groups * Shape::tile_bytes;
    stages = own[1] + Shape::groups * Shape::tile_bytes;
    row_values = stages + Shape::stages * Shape::stage_bytes;
    own_full = row_values + Shape::stages * Shape::row_values_bytes;
    full = own_full + 8;
    empty = full + 8 * Shape::stages;
  }
  __device__ std::uint32_t tile(int stage, int which) const {
    return stages + stage * Shape::stage_bytes + which * Shape::tile_bytes;
  }
  __device__ std::uint32_t values(int stage) const {
    return row_values + stage * Shape::row_values_bytes;
  }
  // One thread does this; all wait for it.
  __device__ void init_barriers(int full_arrivals) const {
    init_barrier(own_full, 1);
    for (int i = 0; i < Shape::stages; ++i) {
      init_barrier(full + 8 * i, full_arrivals);
      init_barrier(empty + 8 * i, 4 * Shape::groups);
    }
    fence_barrier_init();
  }
};

// 64 tokens of a head.
template <class Shape>
__device__ void load_tile(std::uint32_t to, const CUtensorMap& map, int token,
                          int head, int batch, std::uint32_t barrier) {
#pragma unroll
  for (int panel = 0; panel < Shape::panels; ++panel) {
    load_box(to + panel * box_bytes, map, panel * 64, token, head, batch,
             barrier);
  }
}
// A block's own tiles, of `groups` warpgroups.
template <class Shape>
__device__ void load_own(const Layout<Shape>& at, const CUtensorMap& first,
                         const CUtensorMap& second, int token, int head,
                         int batch) {
  expect_bytes(at.own_full, Shape::own_bytes);
  for (int i = 0; i < Shape::groups; ++i) {
    load_tile<Shape>(at.own[0] + i * Shape::tile_bytes, first,
                     token + i * box_rows, head, batch, at.own_full);
    load_tile<Shape>(at.own[1] + i * Shape::tile_bytes, second,
                     token + i * box_rows, head, batch, at.own_full);
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    query_gradient_kernel(const __grid_constant__ BackwardTensors tensors,
                          const Backward<bf16> problem, const Order order) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int D = Shape::D;
  extern __shared__ char shared[];
  const Layout<Shape> at(shared);
  const Extents& extents = problem.extents;
  const Work work = work_of_block(order);
  const int batch = work.sequence / static_cast<int>(extents.heads);
  const int head = work.sequence % static_cast<int>(extents.heads);
  // The first tile is the one that may be short: it may begin before token 0.
  const int first_query =
      round_up(extents.q_tokens, box_rows) - (work.tile + 1) * Shape::tokens;
  const int key_end = extents.causal
                          ? min(first_query + Shape::tokens, extents.k_tokens)
                          : extents.k_tokens;
  const int tiles = divide_up(key_end, step);
  const int group = threadIdx.x / warpgroup;

  if (threadIdx.x == 0) at.init_barriers(1);
  __syncthreads();
  allow_next_kernel();

  if (group == Shape::groups) {
    lower_registers<producer_registers<Shape::groups>>();
    if (threadIdx.x == Shape::groups * warpgroup) {
      load_own(at, tensors.q, tensors.dout, first_query, head, batch);
      Stage<Shape::stages> stage;
      for (int tile = 0; tile < tiles; ++tile) {
        const std::uint32_t full = at.full + 8 * stage.index;
        wait(at.empty + 8 * stage.index, stage.phase ^ 1);
        expect_bytes(full, Shape::stage_bytes);
        load_tile<Shape>(at.tile(stage.index, 0), tensors.k, tile * step, head,
                         batch, full);
        load_tile<Shape>(at.tile(stage.index, 1), tensors.v, tile * step, head,
                         batch, full);
        stage.next();
      }
    }
    return;
  }
  raise_registers<consumer_registers<Shape::groups>>();

  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const bool leader = lane == 0;  // of a warp
  const int group_query = first_query + group * box_rows;
  const int row = group_query + warp * 16 + lane / 4;
  const int own_end = extents.causal
                          ? min(group_query + box_rows, extents.k_tokens)
                          : extents.k_tokens;
  const int own_tiles = group_query < 0 ? 0 : divide_up(own_end, step);
  const float scale = extents.scale * log2_e;
  const std::uint32_t own_q = at.own[0] + group * Shape::tile_bytes;
  const std::uint64_t q = descriptor(own_q, box_bytes);
  const std::uint64_t dout =
      descriptor(at.own[1] + group * Shape::tile_bytes, box_bytes);

  // Of the thread's two rows; +∞ makes the probabilities of a query that does
  // not exist zero.
  float lse[2] = {INFINITY, INFINITY}, delta[2] = {0, 0};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = row + 8 * half;
    const bool exists = query >= 0 && query < extents.q_tokens;
    const std::int64_t index =
        std::int64_t{work.sequence} * extents.q_tokens + query;
    if (exists) {
      lse[half] = problem.lse[index] * log2_e;
      delta[half] = dot_rows(problem.dout, problem.o, query, head, batch,
                             extents.head_dim);
    }
    delta[half] = sum_of_quad(delta[half]);
    if (exists && lane % 4 == 0) problem.delta[index] = delta[half];
  }

  float p[step / 2], ds[step / 2], dq[D / 2];
  std::uint32_t weights[step / 4];
  Stage<Shape::stages> stage, before;
  const auto release = [&](int index) {
    if (leader) arrive(at.empty + 8 * index);
  };
  wait(at.own_full, 0);
  for (int tile = 0; tile < own_tiles; ++tile) {
    wait(at.full + 8 * stage.index, stage.phase);
    const std::uint64_t k = descriptor(at.tile(stage.index, 0), box_bytes);
    const std::uint64_t v = descriptor(at.tile(stage.index, 1), box_bytes);
    pin(p);
    pin(ds);
    wgmma_fence();
    multiply_columns<D, step>(p, q, k);
    wgmma_commit();
    multiply_columns<D, step>(ds, dout, v);
    wgmma_commit();
    wgmma_wait<1>();
    pin(p);
    pin(dq);
    pin(weights);
    if (tile > 0) release(before.index);
#pragma unroll
    for (int i = 0; i < step / 2; ++i) {
      p[i] = exp2_fast(fmaf(p[i], scale, -lse[i / 2 % 2]));
    }
    const int first_key = tile * step;
    if (extents.causal ? first_key + step > group_query
                       : first_key + step > extents.k_tokens) {
#pragma unroll
      for (int i = 0; i < step / 2; ++i) {
        const int limit =
            (extents.causal ? row + i / 2 % 2 * 8 + 1 : extents.k_tokens) -
            first_key - lane % 4 * 2;
        if (i / 4 * 8 + i % 2 >= limit) p[i] = 0;
      }
    }
    wgmma_wait<0>();
    pin(ds);
#pragma unroll
    for (int i = 0; i < step / 2; ++i) {
      ds[i] = p[i] * (ds[i] - delta[i / 2 % 2]);
    }
    pack_all(weights, ds);
    pin(weights);
    pin(dq);
    wgmma_fence();
    multiply_rows<D, step>(dq, weights, k, tile > 0);
    wgmma_commit();
    before = stage;
    stage.next();
  }
  wgmma_wait<0>();
  pin(dq);
  if (own_tiles > 0) release(before.index);
  // Tiles that only the block's later queries see.
  for (int tile = own_tiles; tile < tiles; ++tile) {
    wait(at.full + 8 * stage.index, stage.phase);
    release(stage.index);
    stage.next();
  }
  if (own_tiles > 0) {
    store_result<D>(tensors.dq, own_q, dq, extents.scale, extents.scale, group,
                    group_query, head, batch);
  }
#endif
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    key_gradient_kernel(const __grid_constant__ BackwardTensors tensors,
                        const Backward<bf16> problem, const Order order) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int D = Shape::D;
  extern __shared__ char shared[];
  const Layout<Shape> at(shared);
  const Extents& extents = problem.extents;
  const Work work = work_of_block(order);
  const int batch = work.sequence / static_cast<int>(extents.heads);
  const int head = work.sequence % static_cast<int>(extents.heads);
  const int first_key = work.tile * Shape::tokens;
  const int first_tile = extents.causal ? first_key / step : 0;
  const int tiles_end = divide_up(extents.q_tokens, step);
  const int group = threadIdx.x / warpgroup;

  if (threadIdx.x == 0) at.init_barriers(2);
  __syncthreads();

  if (group == Shape::groups) {
    lower_registers<producer_registers<Shape::groups>>();
    const int lane = threadIdx.x % 32;
    if (threadIdx.x / 32 % 4 == 0) {
      if (lane == 0) {
        load_own(at, tensors.k, tensors.v, first_key, head, batch);
      }
      wait_for_previous_kernel();
      const std::int64_t values =
          std::int64_t{work.sequence} * extents.q_tokens;
      Stage<Shape::stages> stage;
      for (int tile = first_tile; tile < tiles_end; ++tile) {
        const std::uint32_t full = at.full + 8 * stage.index;
        // Queries that do not exist have no probabilities.
        float2 value[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int query = tile * step + i * 32 + lane;
          value[i] = query < extents.q_tokens
                         ? make_float2(problem.lse[values + query] * log2_e,
                                       problem.delta[values + query])
                         : make_float2(INFINITY, 0);
        }
        wait(at.empty + 8 * stage.index, stage.phase ^ 1);
        if (lane == 0) {
          expect_bytes(full, Shape::stage_bytes);
          load_tile<Shape>(at.tile(stage.index, 0), tensors.q, tile * step,
                           head, batch, full);
          load_tile<Shape>(at.tile(stage.index, 1), tensors.dout, tile * step,
                           head, batch, full);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const std::uint32_t to = at.values(stage.index) + (i * 32 + lane) * 4;
          asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value[i].x)
                       : "memory");
          asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + step * 4),
                       "f"(value[i].y)
                       : "memory");
        }
        __syncwarp();
        if (lane == 0) arrive(full);
        stage.next();
      }
    }
    return;
  }
  raise_registers<consumer_registers<Shape::groups>>();

  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const bool leader = lane == 0;  // of a warp
  const int group_key = first_key + group * box_rows;
  const int row = group_key + warp * 16 + lane / 4;
  const float scale = extents.scale * log2_e;
  const std::uint32_t own_k = at.own[0] + group * Shape::tile_bytes;
  const std::uint32_t own_v = at.own[1] + group * Shape::tile_bytes;
  const std::uint64_t k = descriptor(own_k, box_bytes);
  const std::uint64_t v = descriptor(own_v, box_bytes);

  // Three warpgroups do not have the registers to keep a step's last product
  // running while the next step's scores are started.
  constexpr bool overlaps = Shape::groups < 3;
  // Rows are keys, columns queries.
  float p[step / 2], ds[step / 2], dk[D / 2], dv[D / 2];
  std::uint32_t weights[step / 4], gradients[step / 4];
  Stage<Shape::stages> stage, before;
  const auto release = [&](int index) {
    if (leader) arrive(at.empty + 8 * index);
  };
  // Queries before all of this warpgroup's keys.
  const int own_first = extents.causal ? min(group_key / step, tiles_end) : 0;
  for (int tile = first_tile; tile < own_first; ++tile) {
    wait(at.full + 8 * stage.index, stage.phase);
    release(stage.index);
    stage.next();
  }
  if (own_first == tiles_end) return;

  wait(at.own_full, 0);
  for (int tile = own_first; tile < tiles_end; ++tile) {
    wait(at.full + 8 * stage.index, stage.phase);
    const std::uint64_t q = descriptor(at.tile(stage.index, 0), box_bytes);
    const std::uint64_t dout = descriptor(at.tile(stage.index, 1), box_bytes);
    pin(p);
    pin(ds);
    wgmma_fence();
    multiply_columns<D, step>(p, k, q);
    wgmma_commit();
    multiply_columns<D, step>(ds, v, dout);
    wgmma_commit();
    wgmma_wait<1>();
    pin(p);
    pin(dk);
    pin(gradients);
    if (overlaps && tile > own_first) release(before.index);
    const std::uint32_t values = at.values(stage.index) + lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < step / 8; ++i) {
      float lse[2];
      load_pair(lse, values + i * 32);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        p[4 * i + c] = exp2_fast(fmaf(p[4 * i + c], scale, -lse[c % 2]));
      }
    }
    if (extents.causal && tile == own_first) {
#pragma unroll
      for (int i = 0; i < step / 2; ++i) {
        const int query = tile * step + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (row + i / 2 % 2 * 8 > query) p[i] = 0;
      }
    }
    pack_all(weights, p);
    pin(weights);
    pin(dv);
    wgmma_fence();
    multiply_rows<D, step>(dv, weights, dout, tile > own_first);
    wgmma_commit();
    wgmma_wait<1>();
    pin(ds);
#pragma unroll
    for (int i = 0; i < step / 8; ++i) {
      float delta[2];
      load_pair(delta, values + step * 4 + i * 32);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const std::uint32_t pair = weights[2 * i + c / 2];
        const float weight =
            __uint_as_float(c % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
        ds[4 * i + c] = weight * (ds[4 * i + c] - delta[c % 2]);
      }
    }
    pack_all(gradients, ds);
    pin(gradients);
    pin(dk);
    wgmma_fence();
    multiply_rows<D, step>(dk, gradients, q, tile > own_first);
    wgmma_commit();
    // The registers of the weights are needed.
    wgmma_wait<overlaps ? 1 : 0>();
    pin(weights);
    pin(dv);
    if constexpr (!overlaps) {
      pin(dk);
      pin(gradients);
      release(stage.index);
    }
    before = stage;
    stage.next();
  }
  wgmma_wait<0>();
  pin(dv);
  pin(dk);
  store_result<D>(tensors.dv, own_v, dv, 1, 1, group, group_key, head, batch);
  store_result<D>(tensors.dk, own_k, dk, extents.scale, extents.scale, group,
                  group_key, head, batch);
#endif
}

template <class Keys, class Queries>
void launch_backward(cudaStream_t stream, const Backward<bf16>& problem) {
  const Extents& extents = problem.extents;
  const int queries = extents.q_tokens, keys = extents.k_tokens;
  const BackwardTensors tensors{tensor_map(problem.dq, extents, queries),
                                tensor_map(problem.dk, extents, keys),
                                tensor_map(problem.dv, extents, keys),
                                tensor_map(problem.dout, extents, queries),
                                tensor_map(problem.q, extents, queries),
                                tensor_map(problem.k, extents, keys),
                                tensor_map(problem.v, extents, keys)};

  const Order by_queries =
      order_of(extents, divide_up(queries, Queries::tokens), keys);
  allow_shared(query_gradient_kernel<Queries>, Queries::shared_bytes);
  query_gradient_kernel<Queries>
      <<<blocks_for(extents, by_queries.tiles), Queries::threads,
         Queries::shared_bytes, stream>>>(tensors, problem, by_queries);
  check_launch("attention backward of queries");

  const Order by_keys =
      order_of(extents, divide_up(keys, Keys::tokens), queries);
  allow_shared(key_gradient_kernel<Keys>, Keys::shared_bytes);
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks_for(extents, by_keys.tiles);
  config.blockDim = Keys::threads;
  config.dynamicSmemBytes = Keys::shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, key_gradient_kernel<Keys>, tensors,
                                problem, by_keys),
             "attention backward of keys");
}

}  // namespace
}  // namespace hopper

void hopper_backward(cudaStream_t stream, const Backward<bf16>& problem) {
  using namespace hopper;
  const int head_dim = problem.extents.head_dim;
  if (head_dim <= 64) {
    launch_backward<BackwardShape<64, 3, 4>, BackwardShape<64, 3, 4>>(stream,
                                                                      problem);
  } else if (head_dim <= 80) {
    launch_backward<BackwardShape<80, 2, 4>, BackwardShape<80, 3, 3>>(stream,
                                                                      problem);
  } else if (head_dim <= 96) {
    launch_backward<BackwardShape<96, 2, 4>, BackwardShape<96, 2, 4>>(stream,
                                                                      problem);
  } else {
    launch_backward<BackwardShape<128, 2, 4>, BackwardShape<128, 2, 4>>(
        stream, problem);
  }
}

}  // namespace lockstep::attention
