#pragma once

// Turns that blocks take to add to sums in device memory, so that every run
// adds in the same order: blocks are numbered by the tile of keys they work on,
// and those of a round of queries add to its dq from the first tile to the
// last. A block only ever waits for blocks that the grid starts before it.
namespace lockstep::attention {

class Turn {
 public:
  // `counter` starts at 0 and counts the tiles up to `last` that have added.
  __device__ Turn(int* counter, int tile, int last)
      : counter_(counter), tile_(tile), last_(last) {}

  __device__ bool is_first() const { return tile_ == 0; }
  __device__ bool is_last() const { return tile_ == last_; }
  // Until the sums of the tiles before are seen by this thread.
  __device__ void wait() const {
    int added = tile_;
    if (is_first()) return;
    do {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                   : "=r"(added)
                   : "l"(counter_)
                   : "memory");
    } while (added != tile_);
  }
  // Once all that this thread knows to be added is seen by the next tile's.
  __device__ void pass() const {
    if (is_last()) return;
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(counter_),
                 "r"(tile_ + 1)
                 : "memory");
  }

 private:
  int* counter_;
  int tile_, last_;
};

}  // namespace lockstep::attention
