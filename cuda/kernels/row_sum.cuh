#pragma once

#include "cuda/kernels/common.cuh"

// What softmax and cross-entropy share: a block has a row of elements.
namespace lockstep::kernels {

// Σ exp(x − maximum) over what has been seen so far of elements T (Milakov &
// Gimelshein 2018, algorithm 3), a few at a time.
template <class T>
struct OnlineSum {
  float maximum = -INFINITY;
  float sum = 0;

  template <int width>
  __device__ void add(const float (&x)[width]) {
    float best = maximum;
#pragma unroll
    for (int w = 0; w < width; ++w) best = fmaxf(best, x[w]);
    // While there is nothing but masked elements (−∞), their sum stays 0.
    const float from = best == -INFINITY ? 0.0f : best;
    if (best > maximum) sum *= exponential<T>(maximum, best);
    maximum = best;
#pragma unroll
    for (int w = 0; w < width; ++w) sum += exponential<T>(x[w], from);
  }
};

// What a block's threads have of rows of one length: packs of `width` elements,
// a few of them in registers. What longer rows have more is read at each visit.
constexpr int packs_in_registers = 4;

template <int width, class T, int rows = 1>
class BlockRows {
 public:
  template <class... Row>
  __device__ BlockRows(int count, const Row*... row)
      : rows_{row...}, count_(count) {
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      if (start(p) < whole()) load_packs(held_[p], start(p));
    }
  }

  // Calls visit(index, values[rows][width]) over all elements, those in
  // registers first: packs of `width`, then single elements.
  template <class Visit>
  __device__ void visit(Visit visit) {
    pin();
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      if (start(p) < whole()) visit_packs(start(p), held_[p], visit);
    }
#pragma unroll 4
    for (int i = start(packs); i < whole(); i += int(blockDim.x) * width) {
      Kept kept[rows];
      load_packs(kept, i);
      visit_packs(i, kept, visit);
    }
#pragma unroll 1
    for (int i = whole() + int(threadIdx.x); i < count_; i += blockDim.x) {
      float x[rows][1];
#pragma unroll
      for (int r = 0; r < rows; ++r) load(x[r], rows_[r] + i);
      visit(i, x);
    }
  }

 private:
  static constexpr int packs = packs_in_registers / rows;
  // Kept as words: the compiler gives each bf16 of a pack a register.
  using Kept = std::conditional_t<width == full_width<T>, uint4, T>;

  __device__ int whole() const {
    return count_ / width * width;
  }
  __device__ int start(int pack) const {
    return int(threadIdx.x + pack * blockDim.x) * width;
  }

  __device__ void load_packs(Kept (&kept)[rows], int first) const {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      kept[r] = *reinterpret_cast<const Kept*>(rows_[r] + first);
    }
  }

  template <class Visit>
  static __device__ void visit_packs(int first, const Kept (&kept)[rows],
                                     Visit visit) {
    float x[rows][width];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      to_float(x[r], __builtin_bit_cast(Pack<T, width>, kept[r]));
    }
    visit(first, x);
  }

  // Hides that values were made into fp32 before, or the compiler keeps those,
  // in twice as many registers.
  __device__ void pin() {
    if constexpr (std::is_same_v<T, bf16> && width == full_width<T>) {
#pragma unroll
      for (auto& kept : held_) {
#pragma unroll
        for (uint4& words : kept) {
          asm volatile(""
                       : "+r"(words.x), "+r"(words.y), "+r"(words.z),
                         "+r"(words.w));
        }
      }
    }
  }

  const T* rows_[rows];
  int count_;
  Kept held_[packs][rows];
};

// What the block's threads have seen together, the same on all of them.
template <class T>
__device__ OnlineSum<T> block_total(const OnlineSum<T>& mine) {
  __shared__ float of_warp[32];
  float maximum = mine.maximum;
  for (int offset = 16; offset > 0; offset /= 2) {
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, offset));
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = maximum;
  __syncthreads();
  for (int warp = 0; warp < blockDim.x / 32; ++warp) {
    maximum = fmaxf(maximum, of_warp[warp]);
  }
  const float scaled =
      mine.sum == 0 ? 0.0f : mine.sum * exponential<T>(mine.maximum, maximum);
  return {maximum, block_sum(scaled)};
}

// Threads that have `rows` rows of `count` elements in registers, if a block
// can.
constexpr int most_row_threads = 576;
inline unsigned threads_for(std::int64_t count, int width, int rows = 1) {
  return row_threads(divide_up(count, width * packs_in_registers / rows),
                     most_row_threads);
}

}  // namespace lockstep::kernels
