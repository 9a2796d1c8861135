#include "cuda/kernels/common.cuh"

namespace lockstep::kernels {
namespace {

constexpr int threads = 256;

// Each thread takes `width` columns of one row; a row is cut over
// `blocks_of_row` blocks.
struct Place {
  std::int64_t row, column;
};
template <int width>
__device__ Place place_of_thread(unsigned blocks_of_row) {
  return {blockIdx.x / blocks_of_row,
          (std::int64_t{blockIdx.x % blocks_of_row} * threads + threadIdx.x) *
              width};
}

template <class T>
__device__ float sigmoid(float x) {
  const float below = 1 + exponential<T>(-x);
  if constexpr (sizeof(T) == 4) return 1 / below;
  return __fdividef(1, below);
}

// Moves 3·N·F elements, gate and up in, y out, at 109% of a copy's speed on an
// H200, 116% in bf16.
template <class T, int width>
__global__ void swiglu_kernel(T* y, const T* gate_up, std::int64_t f,
                              unsigned blocks_of_row) {
  const auto [row, column] = place_of_thread<width>(blocks_of_row);
  if (column >= f) return;
  float gate[width], up[width];
  load(gate, gate_up + row * 2 * f + column);
  load(up, gate_up + row * 2 * f + f + column);
#pragma unroll
  for (int w = 0; w < width; ++w) up[w] *= gate[w] * sigmoid<T>(gate[w]);
  store(y + row * f + column, up);
}

// Moves 6·N·F elements, gate, up and dy in, dgate, dup and y out, at 106% of a
// copy's speed on an H200, 115% in bf16. A thread reads all of its places
// before it writes them, so dgate_up may be gate_up.
template <class T, int width>
__global__ void swiglu_backward_kernel(T* dgate_up, T* dy_rows,
                                       const T* gate_up, std::int64_t f,
                                       unsigned blocks_of_row) {
  const auto [row, column] = place_of_thread<width>(blocks_of_row);
  if (column >= f) return;
  const std::int64_t at = row * 2 * f + column;
  float gate[width], up[width], dy[width];
  load(gate, gate_up + at);
  load(up, gate_up + at + f);
  load(dy, dy_rows + row * f + column);
#pragma unroll
  for (int w = 0; w < width; ++w) {
    const float s = sigmoid<T>(gate[w]);
    const float y = gate[w] * s * up[w];
    const float dgate = dy[w] * up[w] * s * (1 + gate[w] * (1 - s));
    up[w] = dy[w] * gate[w] * s;
    gate[w] = dgate;
    dy[w] = y;
  }
  store(dgate_up + at, gate);
  store(dgate_up + at + f, up);
  store(dy_rows + row * f + column, dy);
}

unsigned row_blocks(std::int64_t f, int width) {
  return grid_blocks(divide_up(f, std::int64_t{threads} * width), "SwiGLU");
}

}  // namespace

template <class T>
void swiglu(const Launch& launch, const Rows<T>& y, const T* gate_up) {
  constexpr int width = full_width<T>;
  if (rows_are_aligned<T>(y.width, y.data, gate_up)) {
    const unsigned of_row = row_blocks(y.width, width);
    swiglu_kernel<T, width>
        <<<grid_blocks(y.count * of_row, "SwiGLU"), threads, 0,
           launch.stream>>>(y.data, gate_up, y.width, of_row);
  } else {
    const unsigned of_row = row_blocks(y.width, 1);
    swiglu_kernel<T, 1><<<grid_blocks(y.count * of_row, "SwiGLU"), threads, 0,
                          launch.stream>>>(y.data, gate_up, y.width, of_row);
  }
  check_launch("SwiGLU");
}

template <class T>
void swiglu_backward(const Launch& launch, const Rows<T>& dy, T* dgate_up,
                     const T* gate_up) {
  constexpr int width = full_width<T>;
  if (rows_are_aligned<T>(dy.width, dy.data, dgate_up, gate_up)) {
    const unsigned of_row = row_blocks(dy.width, width);
    swiglu_backward_kernel<T, width>
        <<<grid_blocks(dy.count * of_row, "SwiGLU backward"), threads, 0,
           launch.stream>>>(dgate_up, dy.data, gate_up, dy.width, of_row);
  } else {
    const unsigned of_row = row_blocks(dy.width, 1);
    swiglu_backward_kernel<T, 1>
        <<<grid_blocks(dy.count * of_row, "SwiGLU backward"), threads, 0,
           launch.stream>>>(dgate_up, dy.data, gate_up, dy.width, of_row);
  }
  check_launch("SwiGLU backward");
}

template void swiglu(const Launch&, const Rows<float>&, const float*);
template void swiglu(const Launch&, const Rows<bf16>&, const bf16*);
template void swiglu_backward(const Launch&, const Rows<float>&, float*,
                              const float*);
template void swiglu_backward(const Launch&, const Rows<bf16>&, bf16*,
                              const bf16*);

}  // namespace lockstep::kernels
