#include "cuda/attention/hopper.cuh"

// The backward pass of flash attention for Hopper (Dao 2023, algorithm 2; Shah
// et al. 2024). A block owns a tile of keys: dk and dv stay in registers while
// it goes over the queries that see them, from the last to the first. Each
// warpgroup has 64 of the keys and computes scores by keys, so that the
// probabilities and their gradient are left operands in registers of dv and dk.
// The gradients of a round (as many queries as the block has keys) also go
// through shared memory, from where each warpgroup multiplies 64 queries' by
// all of the block's keys for its part of dq.
//
// What blocks add to dq is summed up in device memory in the order of keys, so
// that every run has the same result: the first block of keys writes its part,
// later ones add theirs when a counter says that it is their turn, and the last
// takes the sum and writes dq. All go over queries in the same order, so that a
// block runs one round behind the one before it and hardly ever waits. It never
// waits for a block that starts later: grids start in order.
//   D            keys  queries a step  stages  shared memory  registers
//   64           128   64              4       131 KB         240
//   64, T ≥ 2048 192   64              4       188 KB         160
//   80, 96, 128  128   64              3       195 KB         240
// Moves q, k, v, dout in and dk, dv, dq out of device memory; q and dout are
// read again from L2 by each block, and sums of dq (fp32) are added to there.
namespace lockstep::attention {
namespace hopper {

constexpr int row_values_bytes = sizeof(float2);

constexpr int step = box_rows;  // queries of a stage

template <int head_dim, int groups_, int stages_>
struct BackwardShape {
  static constexpr int D = head_dim, groups = groups_, stages = stages_;
  static constexpr int panels = panels_of(D);
  static constexpr int keys = groups * box_rows;  // and queries of a round
  static constexpr int steps = keys / step;       // of a round
  static constexpr int threads = (groups + 1) * warpgroup;
  static constexpr int group_bytes = panels * box_bytes;  // 64 keys
  static constexpr int own_bytes = groups * group_bytes;
  static constexpr int tile_bytes = panels * step * row_bytes;
  static constexpr int panel_bytes = keys * row_bytes;  // of gradients
  static constexpr int gradient_bytes = groups * panel_bytes;
  static constexpr int values_bytes = step * row_values_bytes;
  static constexpr int barriers = 4 + 2 * stages;
  static constexpr int shared_bytes = 1024 + 2 * own_bytes + gradient_bytes +
                                      stages * (2 * tile_bytes + values_bytes) +
                                      8 * barriers;
};

namespace {

// fp32 sums of dq in scratch memory: of each round of each sequence, a part for
// each warpgroup with its threads' 4 floats side by side.
template <class Shape>
struct Sums {
  static constexpr int part = box_rows * Shape::D;
  static constexpr int round = Shape::groups * part;
};

struct BackwardTensors {
  CUtensorMap dk, dv, dout, q, k, v;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    backward_kernel(const __grid_constant__ BackwardTensors tensors,
                    const Backward<bf16> problem, const Order order) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int D = Shape::D, groups = Shape::groups;
  extern __shared__ char shared[];
  const std::uint32_t k_tile = (shared_address(shared) + 1023) & ~1023u;
  const std::uint32_t v_tile = k_tile + Shape::own_bytes;
  const std::uint32_t gradients = v_tile + Shape::own_bytes;
  const std::uint32_t q_tiles = gradients + Shape::gradient_bytes;
  const std::uint32_t dout_tiles = q_tiles + Shape::stages * Shape::tile_bytes;
  const std::uint32_t values = dout_tiles + Shape::stages * Shape::tile_bytes;
  const std::uint32_t own_full = values + Shape::stages * Shape::values_bytes;
  const std::uint32_t may_add = own_full + 8;      // to dq
  const std::uint32_t added = may_add + 8;         // to dq
  const std::uint32_t gradients_read = added + 8;  // by all warpgroups
  const std::uint32_t full = gradients_read + 8;
  const std::uint32_t empty = full + 8 * Shape::stages;

  const Extents& extents = problem.extents;
  const Item item = item_at(order, extents, static_cast<int>(blockIdx.x));
  const int first_key = item.tile * Shape::keys;
  const int rounds = divide_up(extents.q_tokens, Shape::keys);
  const int first_round = extents.causal ? item.tile : 0;
  const int group = threadIdx.x / warpgroup;
  const int lane = threadIdx.x % 32;
  const auto turn_of = [&](int round) {
    return Turn(problem.turns + std::int64_t{item.sequence} * rounds + round,
                item.tile,
                extents.causal ? min(round, order.tiles - 1) : order.tiles - 1);
  };

  if (threadIdx.x == 0) {
    init_barrier(own_full, 1);
    init_barrier(may_add, 1);
    constexpr int arrivals = groups * warpgroup / 32 * arrivals_of_warp;
    init_barrier(added, arrivals);
    init_barrier(gradients_read, arrivals);
    for (int i = 0; i < Shape::stages; ++i) {
      init_barrier(full + 8 * i, 1 + arrivals_of_warp);
      init_barrier(empty + 8 * i, arrivals);
    }
    fence_barrier_init();
  }
  __syncthreads();

  if (group == groups) {
    lower_registers<producer_registers<groups>>();
    const int warp = threadIdx.x / 32 % 4;
    Stage<Shape::stages> stage;
    if (warp == 0 && lane == 0) {
      // Copies tiles.
      expect_bytes(own_full, 2 * Shape::own_bytes);
      for (int i = 0; i < groups; ++i) {
        const int to = i * Shape::group_bytes, key = first_key + i * box_rows;
        load_tile<D, box_rows>(k_tile + to, tensors.k, key, item, own_full);
        load_tile<D, box_rows>(v_tile + to, tensors.v, key, item, own_full);
      }
      for (int query = (rounds - 1) * Shape::keys;
           query >= first_round * Shape::keys; query -= Shape::keys) {
        for (int i = 0; i < Shape::keys; i += step) {
          const std::uint32_t barrier = full + 8 * stage.index;
          const std::uint32_t to = stage.index * Shape::tile_bytes;
          wait(empty + 8 * stage.index, stage.phase ^ 1);
          expect_bytes(barrier, 2 * Shape::tile_bytes);
          load_tile<D, step>(q_tiles + to, tensors.q, query + i, item, barrier);
          load_tile<D, step>(dout_tiles + to, tensors.dout, query + i, item,
                             barrier);
          stage.next();
        }
      }
    } else if (warp == 1) {
      // Copies lse and delta of queries; +∞ makes the probabilities of a query
      // that does not exist zero.
      wait_for_previous_kernel();
      const std::int64_t row = std::int64_t{item.sequence} * extents.q_tokens;
      for (int query = (rounds - 1) * Shape::keys + lane;
           query >= first_round * Shape::keys; query -= Shape::keys) {
        for (int i = 0; i < Shape::keys; i += step) {
          float2 value[step / 32];
#pragma unroll
          for (int j = 0; j < step / 32; ++j) {
            const int at = query + i + j * 32;
            value[j] = at < extents.q_tokens
                           ? make_float2(problem.lse[row + at] * log2_e,
                                         problem.delta[row + at])
                           : make_float2(INFINITY, 0);
          }
          wait(empty + 8 * stage.index, stage.phase ^ 1);
          const std::uint32_t to = values + stage.index * Shape::values_bytes +
                                   lane * row_values_bytes;
#pragma unroll
          for (int j = 0; j < step / 32; ++j) {
            store_pair(to + j * 32 * row_values_bytes, value[j]);
          }
          arrive_as_warp(full + 8 * stage.index);
          stage.next();
        }
      }
    } else if (warp == 2 && lane == 0) {
      // Tells the others when to add to dq, and the next block when they have.
      wait_for_previous_kernel();
      int phase = 0;
      for (int round = rounds - 1; round >= first_round; --round) {
        const Turn turn = turn_of(round);
        turn.wait();
        arrive(may_add);
        wait(added, phase);
        phase ^= 1;
        turn.pass();
      }
    }
    return;
  }
  raise_registers<consumer_registers<groups>>();

  const int warp = threadIdx.x / 32 % 4;
  const int group_key = first_key + group * box_rows;
  const int key = group_key + warp * 16 + lane / 4;
  const float scale = extents.scale * log2_e;
  const std::uint32_t own_k = k_tile + group * Shape::group_bytes;
  const std::uint32_t own_v = v_tile + group * Shape::group_bytes;
  const std::uint64_t k = descriptor(own_k, box_bytes);
  const std::uint64_t v = descriptor(own_v, box_bytes);
  const bool some_keys_missing = group_key + box_rows > extents.k_tokens;

  // Rows are keys, columns queries; of dq, rows are queries.
  float p[step / 2], ds[step / 2], dk[D / 2], dv[D / 2], dq[D / 2];
  std::uint32_t p_packed[step / 4], ds_packed[step / 4];
#pragma unroll
  for (int i = 0; i < D / 2; ++i) dk[i] = dv[i] = 0;
  Stage<Shape::stages> stage;
  int phase = 0;  // of the barriers of a round's dq

  const auto take_dq = [&](int round) {
    arrive_as_warp(gradients_read);
    wait(may_add, phase);
    phase ^= 1;
    float* const sum =
        problem.sums +
        (std::int64_t{item.sequence} * rounds + round) * Sums<Shape>::round +
        group * Sums<Shape>::part + threadIdx.x % warpgroup * 4;
    const Turn turn = turn_of(round);
    if (turn.is_last()) {
      if (!turn.is_first()) {
#pragma unroll
        for (int i = 0; i < D / 8; ++i) {
          const float4 others = load_sum(sum + i * warpgroup * 4);
          dq[4 * i] += others.x;
          dq[4 * i + 1] += others.y;
          dq[4 * i + 2] += others.z;
          dq[4 * i + 3] += others.w;
        }
      }
      bf16* const head_rows = problem.dq.data +
                              item.batch * problem.dq.batch_stride +
                              item.head * problem.dq.head_stride;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = round * Shape::keys + group * box_rows + warp * 16 +
                          lane / 4 + 8 * half;
        bf16* const to =
            head_rows + query * problem.dq.token_stride + lane % 4 * 2;
        if (query < extents.q_tokens) {
#pragma unroll
          for (int i = 0; i < D / 8; ++i) {
            if (8 * i < extents.head_dim) {
              *reinterpret_cast<std::uint32_t*>(to + 8 * i) =
                  pack(dq[4 * i + 2 * half] * extents.scale,
                       dq[4 * i + 2 * half + 1] * extents.scale);
            }
          }
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < D / 8; ++i) {
        const float4 part =
            make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
        turn.is_first() ? store_sum(sum + i * warpgroup * 4, part)
                        : add_to_sum(sum + i * warpgroup * 4, part);
      }
    }
    arrive_as_warp(added);
  };

  // dq of the round whose gradients are the newest, once all warpgroups' are
  // there.
  const auto multiply_gradients = [&] {
    sync_threads<groups * warpgroup>(1);
    pin(dq);
    wgmma_fence();
    const std::uint64_t a =
        descriptor(gradients + group * Shape::panel_bytes, Shape::panel_bytes);
    const std::uint64_t all_keys = descriptor(k_tile, box_bytes);
#pragma unroll
    for (int i = 0; i < Shape::keys / 16; ++i) {
      Wgmma<D>::of_rows(
          dq, a + i * 16 * row_bytes / 16,
          all_keys + (i / 4 * Shape::group_bytes + i % 4 * 16 * row_bytes) / 16,
          i > 0);
    }
    wgmma_commit();
  };
  const auto run_round = [&](int round) {
#pragma unroll 1
    for (int i = 0; i < Shape::steps; ++i) {
      const int first_query = round * Shape::keys + i * step;
      wait(full + 8 * stage.index, stage.phase);
      const std::uint64_t q = descriptor(
          q_tiles + stage.index * Shape::tile_bytes, step * row_bytes);
      const std::uint64_t dout = descriptor(
          dout_tiles + stage.index * Shape::tile_bytes, step * row_bytes);
      pin(p);
      pin(ds);
      wgmma_fence();
      multiply_columns<D, step>(p, k, q);
      wgmma_commit();
      multiply_columns<D, step>(ds, v, dout);
      wgmma_commit();
      wgmma_wait<1>();
      pin(p);
      const std::uint32_t row_values = values +
                                       stage.index * Shape::values_bytes +
                                       lane % 4 * 2 * row_values_bytes;
#pragma unroll
      for (int j = 0; j < step / 8; ++j) {
        // lse and delta of two queries
        const float4 value =
            load_two_pairs(row_values + j * 8 * row_values_bytes);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          p[4 * j + c] = exp2_fast(
              fmaf(p[4 * j + c], scale, c % 2 == 0 ? -value.x : -value.z));
        }
      }
      if (extents.causal ? first_query < group_key + box_rows
                         : some_keys_missing) {
#pragma unroll
        for (int j = 0; j < step / 2; ++j) {
          const int query = first_query + j / 4 * 8 + lane % 4 * 2 + j % 2;
          const int own = key + j / 2 % 2 * 8;
          if (own > (extents.causal ? query : extents.k_tokens - 1)) p[j] = 0;
        }
      }
      pack_all(p_packed, p);
      pin(p_packed);
      pin(dv);
      wgmma_fence();
      multiply_rows<D, step>(dv, p_packed, dout, true);
      wgmma_commit();
      wgmma_wait<1>();
      pin(ds);
#pragma unroll
      for (int j = 0; j < step / 8; ++j) {
        const float4 value =
            load_two_pairs(row_values + j * 8 * row_values_bytes);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          // Three warpgroups have no registers to keep p unrounded.
          const float weight = Shape::groups == 3
                                   ? element_of(p_packed[2 * j + c / 2], c % 2)
                                   : p[4 * j + c];
          ds[4 * j + c] =
              weight * (ds[4 * j + c] - (c % 2 == 0 ? value.y : value.w));
        }
      }
      pack_all(ds_packed, ds);
      pin(ds_packed);
      pin(dk);
      wgmma_fence();
      multiply_rows<D, step>(dk, ds_packed, q, true);
      wgmma_commit();
      // The other warpgroups have read the gradients of the round before.
      if (i == 0) wait(gradients_read, phase ^ 1);
      const std::uint32_t panel =
          gradients + i * step / 64 * Shape::panel_bytes + group * box_bytes +
          (warp * 16 + lane % 16) * row_bytes;
#pragma unroll
      for (int j = 0; j < step / 8; j += 2) {
        store_matrices(panel + j / 8 * Shape::panel_bytes +
                           ((j % 8 + lane / 16) ^ (lane % 8)) * 16,
                       ds_packed + 2 * j);
      }
      wgmma_wait<0>();
      pin(dk);
      pin(dv);
      pin(p_packed);
      pin(ds_packed);
      arrive_as_warp(empty + 8 * stage.index);
      stage.next();
    }
    fence_async_proxy();
    multiply_gradients();
    wgmma_wait<0>();
    pin(dq);
    take_dq(round);
  };

  wait(own_full, 0);
  for (int round = rounds - 1; round >= first_round; --round) {
    run_round(round);
  }
  sync_threads<groups * warpgroup>(1);  // keys are no longer read
  store_result<D>(tensors.dv, own_v, dv, 1, 1, 1 + group, group_key, item);
  store_result<D>(tensors.dk, own_k, dk, extents.scale, extents.scale,
                  1 + group, group_key, item);
#endif
}

template <class Shape>
void launch_backward(cudaStream_t stream, const Backward<bf16>& problem) {
  const Extents& extents = problem.extents;
  const int queries = extents.q_tokens, keys = extents.k_tokens;
  const BackwardTensors tensors{tensor_map(problem.dk, extents, keys),
                                tensor_map(problem.dv, extents, keys),
                                tensor_map(problem.dout, extents, queries),
                                tensor_map(problem.q, extents, queries),
                                tensor_map(problem.k, extents, keys),
                                tensor_map(problem.v, extents, keys)};
  const Order order = order_of(extents, divide_up(keys, Shape::keys), queries);
  allow_shared(backward_kernel<Shape>, Shape::shared_bytes);
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks_for(extents, order.tiles);
  config.blockDim = Shape::threads;
  config.dynamicSmemBytes = Shape::shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, backward_kernel<Shape>, tensors,
                                problem, order),
             "attention backward");
}

}  // namespace

// run(Shape{}) for the head dim and the length.
template <class Run>
void with_backward_shape(const Extents& extents, Run run) {
  if (extents.head_dim > 96) return run(BackwardShape<128, 2, 3>{});
  if (extents.head_dim > 80) return run(BackwardShape<96, 2, 3>{});
  if (extents.head_dim > 64) return run(BackwardShape<80, 2, 3>{});
  if (extents.q_tokens < 2048) return run(BackwardShape<64, 2, 4>{});
  run(BackwardShape<64, 3, 4>{});
}

}  // namespace hopper

DqSums hopper_dq_sums(const Extents& extents) {
  DqSums sums;
  hopper::with_backward_shape(extents, [&](auto shape) {
    using Shape = decltype(shape);
    sums = {divide_up(extents.q_tokens, Shape::keys),
            hopper::Sums<Shape>::round};
  });
  return sums;
}

void hopper_backward(cudaStream_t stream, const Backward<bf16>& problem) {
  hopper::with_backward_shape(problem.extents, [&](auto shape) {
    hopper::launch_backward<decltype(shape)>(stream, problem);
  });
}

}  // namespace lockstep::attention
