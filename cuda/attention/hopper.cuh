#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/attention/mma.cuh"
#include "cuda/attention/turns.cuh"

// What the attention kernels for Hopper (compute capability 9.0) are made of:
// PTX of bulk tensor copies, mbarriers and wgmma (PTX ISA, "Asynchronous
// warpgroup level matrix instructions"), and the tiles in shared memory that
// all of these agree on.
//
// A tile is made of panels of 64 columns (128 bytes a row, swizzled by 128
// bytes), each of so many rows. Copies move boxes of 64 rows of a panel. Panels
// begin at multiples of 1024 bytes. Columns beyond the head dim and rows
// beyond the last token read as zeros and are not written.
namespace lockstep::attention::hopper {

constexpr int warpgroup = 128;
constexpr int box_rows = 64;
constexpr int row_bytes = 128;
constexpr int box_bytes = box_rows * row_bytes;

constexpr int panels_of(int head_dim) {
  return divide_up(head_dim, 64);
}

constexpr int round_up(int a, int b) {
  return divide_up(a, b) * b;
}

// Tensor maps of [B, T, H, D] by boxes, made by the driver; dimensions are
// column, token, head, batch.
CUtensorMap tensor_map(const void* data, const Extents& extents, int tokens,
                       std::int64_t batch_stride, std::int64_t token_stride,
                       std::int64_t head_stride);
template <class T>
CUtensorMap tensor_map(const View<T>& view, const Extents& extents,
                       int tokens) {
  return tensor_map(view.data, extents, tokens, view.batch_stride,
                    view.token_stride, view.head_stride);
}

// Sequences are worked on in sections whose `row_bytes_of_section` fit the L2
// cache together. Within one, tiles vary slowest, so that the long tiles of a
// causal pass start first.
struct Order {
  int sequences = 0, tiles = 0, section = 0;
};
inline Order order_of(const Extents& extents, int tiles, int tokens) {
  constexpr std::int64_t cache = std::int64_t{40} << 20;
  const std::int64_t bytes =
      std::int64_t{tokens} * extents.head_dim * 2 * std::int64_t{sizeof(bf16)};
  const std::int64_t sequences = extents.sequences();
  const std::int64_t section = bytes * sequences <= cache ? sequences
                               : bytes < cache            ? cache / bytes
                                                          : 1;
  return {static_cast<int>(sequences), tiles, static_cast<int>(section)};
}
// A tile of tokens of a head.
struct Item {
  int sequence, batch, head, tile;
};
__device__ inline Item item_at(const Order& order, const Extents& extents,
                               int index) {
  const int per_section = order.section * order.tiles;
  const int section = index / per_section;
  const int first = section * order.section;
  const int size = min(order.section, order.sequences - first);
  index -= section * per_section;
  const int sequence = first + index % size;
  const int heads = static_cast<int>(extents.heads);
  return {sequence, sequence / heads, sequence % heads, index / size};
}

// Of a grid whose blocks work on several items each: the index of a block's
// item, for every turn. Turns go through the blocks forwards and backwards, so
// that the long tiles of a causal pass are followed by short ones.
__device__ inline int index_of(int turn) {
  const int blocks = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  return turn * blocks + (turn % 2 == 0 ? block : blocks - 1 - block);
}
unsigned multiprocessors();  // of the current device

// Barriers in shared memory.
__device__ inline void init_barrier(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier),
               "r"(arrivals));
}
__device__ inline void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void expect_bytes(std::uint32_t barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
      "r"(bytes)
      : "memory");
}
__device__ inline void arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}
// Once all lanes of a warp have done what the barrier waits for, one arrives
// for them. compute-sanitizer's racecheck orders a lane's accesses by its own
// arrivals only: built for it, all lanes arrive.
#if defined(LOCKSTEP_RACECHECK)
constexpr int arrivals_of_warp = 32;
#else
constexpr int arrivals_of_warp = 1;
#endif
__device__ inline void arrive_as_warp(std::uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 < arrivals_of_warp) arrive(barrier);
}
__device__ inline void wait(std::uint32_t barrier, int parity) {
  std::uint32_t done = 0;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
}

// Where a pipeline of `stages` stages stands. Consumers wait for `phase`,
// the producer for the other one.
template <int stages>
struct Stage {
  int index = 0, phase = 0;
  __device__ void next() {
    if (++index == stages) {
      index = 0;
      phase ^= 1;
    }
  }
};

// Copies a box to shared memory; `barrier` hears of its bytes.
__device__ inline void load_box(std::uint32_t to, const CUtensorMap& map,
                                int column, int token, int head, int batch,
                                std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile."
      "mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(
          to),
      "l"(&map), "r"(column), "r"(token), "r"(head), "r"(batch), "r"(barrier)
      : "memory");
}
// Copies `rows` tokens of an item's head to a tile.
template <int D, int rows>
__device__ void load_tile(std::uint32_t to, const CUtensorMap& map, int token,
                          const Item& item, std::uint32_t barrier) {
  for (int panel = 0; panel < panels_of(D); ++panel) {
    for (int row = 0; row < rows; row += box_rows) {
      load_box(to + (panel * rows + row) * row_bytes, map, panel * 64,
               token + row, item.head, item.batch, barrier);
    }
  }
}
// Copies a box from shared memory, in the issuing thread's bulk group.
__device__ inline void store_box(const CUtensorMap& map, std::uint32_t from,
                                 int column, int token, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group "
      "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
      "r"(from), "r"(column), "r"(token), "r"(head), "r"(batch)
      : "memory");
}
__device__ inline void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ inline void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
// Only until what is stored may be overwritten in shared memory.
__device__ inline void wait_for_store_reads() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Makes this thread's writes to shared memory visible to copies and wgmma.
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Barrier `index` of so many threads; 0 is __syncthreads's.
template <int threads>
__device__ void sync_threads(int index) {
  asm volatile("bar.sync %0, %1;" ::"r"(index), "n"(threads) : "memory");
}

// Registers of a thread, for blocks of so many warpgroups that multiply and one
// that copies.
template <int groups>
constexpr int consumer_registers = groups == 2 ? 240 : 160;
template <int groups>
constexpr int producer_registers = groups == 2 ? 24 : 32;
template <int registers>
__device__ void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

// Waits until the kernel before this one is done and its writes are seen.
__device__ inline void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ inline void store_pair(std::uint32_t to, float2 pair) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(pair.x),
               "f"(pair.y)
               : "memory");
}
__device__ inline float4 load_two_pairs(std::uint32_t from) {
  float4 pairs;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(pairs.x), "=f"(pairs.y), "=f"(pairs.z), "=f"(pairs.w)
               : "r"(from));
  return pairs;
}
// Four 8×8 matrices of the warp's fragments A (see mma.cuh): the rows of the
// i-th are at the addresses that lanes 8i … 8i + 7 give.
__device__ inline void store_matrices(std::uint32_t row,
                                      const std::uint32_t* fragments) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
          row),
      "r"(fragments[0]), "r"(fragments[1]), "r"(fragments[2]), "r"(fragments[3])
      : "memory");
}

// Sums in device memory that blocks add to in turns: kept in L2, where all
// see them.
__device__ inline void store_sum(float* to, float4 part) {
  asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to),
               "f"(part.x), "f"(part.y), "f"(part.z), "f"(part.w)
               : "memory");
}
__device__ inline float4 load_sum(const float* from) {
  float4 sum;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(sum.x), "=f"(sum.y), "=f"(sum.z), "=f"(sum.w)
               : "l"(from)
               : "memory");
  return sum;
}
__device__ inline void add_to_sum(float* to, float4 part) {
  asm volatile(
      "red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to),
      "f"(part.x), "f"(part.y), "f"(part.z), "f"(part.w)
      : "memory");
}
// Descriptor of a tile at `address` swizzled by 128 bytes. 8 rows of a panel
// are 1024 bytes; `panel_bytes` apart are the panels, which only an operand
// by rows (see below) is told of.
__device__ inline std::uint64_t descriptor(std::uint32_t address,
                                           int panel_bytes) {
  return std::uint64_t{(address & 0x3ffff) >> 4} |
         std::uint64_t(panel_bytes >> 4) << 16 |
         std::uint64_t{1024 >> 4} << 32 | std::uint64_t{1} << 62;
}

__device__ inline void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int pending>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
// Keeps the compiler from moving uses of registers over this point.
template <int n>
__device__ void pin(float (&r)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(r[i])::"memory");
}
template <int n>
__device__ void pin(std::uint32_t (&r)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+r"(r[i])::"memory");
}

// wgmma of 64×N×16: of_columns is d (+)= A·Bᵀ of two tiles in shared memory,
// the product running over columns; of_rows is d (+)= a·B, or Aᵀ·B of two
// tiles, the product running over the rows of tiles. An accumulator holds, for
// lane l of warp w, rows 16w
// + l/4 and + 8 as the fragments C of mma.cuh, one for 8 columns.
template <int N>
struct Wgmma;

#define LOCKSTEP_WGMMA(N, REGISTERS, ACCUMULATORS, X0, X1, X2, X3, X4, X5)    \
  template <>                                                                 \
  struct Wgmma<N> {                                                           \
    static __device__ void of_columns(float (&d)[N / 2], std::uint64_t a,     \
                                      std::uint64_t b, bool add) {            \
      asm volatile(                                                           \
          "{\n"                                                               \
          ".reg .pred p;\n"                                                   \
          "setp.ne.b32 p, " X2                                                \
          ", 0;\n"                                                            \
          "wgmma.mma_async.sync.aligned.m64n" #N                              \
          "k16.f32.bf16.bf16 {" REGISTERS "}, " X0 ", " X1                    \
          ", p, 1, 1, 0, 0;\n"                                                \
          "}"                                                                 \
          : ACCUMULATORS                                                      \
          : "l"(a), "l"(b), "r"(static_cast<int>(add)));                      \
    }                                                                         \
    static __device__ void of_rows(float (&d)[N / 2], const std::uint32_t* a, \
                                   std::uint64_t b, bool add) {               \
      asm volatile(                                                           \
          "{\n"                                                               \
          ".reg .pred p;\n"                                                   \
          "setp.ne.b32 p, " X5                                                \
          ", 0;\n"                                                            \
          "wgmma.mma_async.sync.aligned.m64n" #N                              \
          "k16.f32.bf16.bf16 {" REGISTERS "}, {" X0 ", " X1 ", " X2 ", " X3   \
          "}, " X4                                                            \
          ", p, 1, 1, 1;\n"                                                   \
          "}"                                                                 \
          : ACCUMULATORS                                                      \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),               \
            "r"(static_cast<int>(add)));                                      \
    }                                                                         \
    static __device__ void of_rows(float (&d)[N / 2], std::uint64_t a,        \
                                   std::uint64_t b, bool add) {               \
      asm volatile(                                                           \
          "{\n"                                                               \
          ".reg .pred p;\n"                                                   \
          "setp.ne.b32 p, " X2                                                \
          ", 0;\n"                                                            \
          "wgmma.mma_async.sync.aligned.m64n" #N                              \
          "k16.f32.bf16.bf16 {" REGISTERS "}, " X0 ", " X1                    \
          ", p, 1, 1, 1, 1;\n"                                                \
          "}"                                                                 \
          : ACCUMULATORS                                                      \
          : "l"(a), "l"(b), "r"(static_cast<int>(add)));                      \
    }                                                                         \
  };
#define LOCKSTEP_ACC8(i)                                                      \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), \
      "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define LOCKSTEP_REGISTERS_32                \
  "%0, %1, %2, %3, %4, %5, %6, %7, "         \
  "%8, %9, %10, %11, %12, %13, %14, %15, "   \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define LOCKSTEP_ACCUMULATORS_32 \
  LOCKSTEP_ACC8(0), LOCKSTEP_ACC8(8), LOCKSTEP_ACC8(16), LOCKSTEP_ACC8(24)
#define LOCKSTEP_REGISTERS_40 \
  LOCKSTEP_REGISTERS_32       \
  ", "                        \
  "%32, %33, %34, %35, %36, %37, %38, %39"
#define LOCKSTEP_ACCUMULATORS_40 LOCKSTEP_ACCUMULATORS_32, LOCKSTEP_ACC8(32)
#define LOCKSTEP_REGISTERS_48 \
  LOCKSTEP_REGISTERS_40       \
  ", "                        \
  "%40, %41, %42, %43, %44, %45, %46, %47"
#define LOCKSTEP_ACCUMULATORS_48 LOCKSTEP_ACCUMULATORS_40, LOCKSTEP_ACC8(40)
#define LOCKSTEP_REGISTERS_64                \
  LOCKSTEP_REGISTERS_48                      \
  ", "                                       \
  "%48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define LOCKSTEP_ACCUMULATORS_64 \
  LOCKSTEP_ACCUMULATORS_48, LOCKSTEP_ACC8(48), LOCKSTEP_ACC8(56)
LOCKSTEP_WGMMA(64, LOCKSTEP_REGISTERS_32, LOCKSTEP_ACCUMULATORS_32, "%32",
               "%33", "%34", "%35", "%36", "%37")
LOCKSTEP_WGMMA(80, LOCKSTEP_REGISTERS_40, LOCKSTEP_ACCUMULATORS_40, "%40",
               "%41", "%42", "%43", "%44", "%45")
LOCKSTEP_WGMMA(96, LOCKSTEP_REGISTERS_48, LOCKSTEP_ACCUMULATORS_48, "%48",
               "%49", "%50", "%51", "%52", "%53")
LOCKSTEP_WGMMA(128, LOCKSTEP_REGISTERS_64, LOCKSTEP_ACCUMULATORS_64, "%64",
               "%65", "%66", "%67", "%68", "%69")
#undef LOCKSTEP_WGMMA

// d = (64 rows at a) · (N rows at b)ᵀ over D columns.
template <int D, int N>
__device__ void multiply_columns(float (&d)[N / 2], std::uint64_t a,
                                 std::uint64_t b) {
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    Wgmma<N>::of_columns(d, a + (k / 4 * box_bytes + k % 4 * 32) / 16,
                         b + (k / 4 * N * row_bytes + k % 4 * 32) / 16, k > 0);
  }
}

// d (+)= weights · (rows at b); weights are 64×rows.
template <int D, int rows>
__device__ void multiply_rows(float (&d)[D / 2],
                              const std::uint32_t (&weights)[rows / 4],
                              std::uint64_t b, bool add) {
#pragma unroll
  for (int k = 0; k < rows / 16; ++k) {
    Wgmma<D>::of_rows(d, weights + 4 * k, b + k * (16 * row_bytes / 16),
                      add || k > 0);
  }
}

// Neighbouring elements of an accumulator as bf16 pairs: the left operand of
// multiply_rows.
template <int n>
__device__ void pack_all(std::uint32_t (&packed)[n / 2], const float (&d)[n]) {
#pragma unroll
  for (int i = 0; i < n / 2; ++i) packed[i] = pack(d[2 * i], d[2 * i + 1]);
}

// The first (0) or second (1) of a pair.
__device__ inline float element_of(std::uint32_t pair, int index) {
  return __uint_as_float(index == 0 ? pair << 16 : pair & 0xffff0000u);
}

// Starts to write a warpgroup's 64×D result, each of a thread's two rows times
// its factor, through its boxes in shared memory to tokens [token, token + 64).
// `group` is the warpgroup's index in the block.
template <int D>
__device__ void start_to_store_result(const CUtensorMap& map,
                                      std::uint32_t boxes,
                                      const float (&d)[D / 2], float upper,
                                      float lower, int group, int token,
                                      const Item& item) {
  const int thread = threadIdx.x % warpgroup;
  const int warp = thread / 32, lane = thread % 32;
  const int row = warp * 16 + lane / 4;
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    const std::uint32_t at = boxes + j / 8 * box_bytes + row * row_bytes +
                             ((j % 8) ^ (row % 8)) * 16 + lane % 4 * 4;
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at),
                 "r"(pack(d[4 * j] * upper, d[4 * j + 1] * upper))
                 : "memory");
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at + 8 * row_bytes),
                 "r"(pack(d[4 * j + 2] * lower, d[4 * j + 3] * lower))
                 : "memory");
  }
  fence_async_proxy();
  sync_threads<warpgroup>(1 + group);
  if (thread == 0) {
#pragma unroll
    for (int panel = 0; panel < panels_of(D); ++panel) {
      store_box(map, boxes + panel * box_bytes, panel * 64, token, item.head,
                item.batch);
    }
    commit_stores();
  }
}
template <int D>
__device__ void store_result(const CUtensorMap& map, std::uint32_t boxes,
                             const float (&d)[D / 2], float upper, float lower,
                             int group, int token, const Item& item) {
  start_to_store_result<D>(map, boxes, d, upper, lower, group, token, item);
  if (threadIdx.x % warpgroup == 0) wait_for_stores();
}

}  // namespace lockstep::attention::hopper
