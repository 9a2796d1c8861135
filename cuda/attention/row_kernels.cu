#include "cuda/attention/rows.cuh"

// Attention's kernels of one pass over rows: the backward pass's delta, and
// sequences of a single token.
namespace lockstep::attention {
namespace {

constexpr int warps = 8;

constexpr int lanes_of_row = 8;

// `width` adjacent elements that move as one access.
template <class T, int width>
struct alignas(sizeof(T) * width) Pack {
  T at[width];
};

// 8 lanes a row. Neighbouring rows are those of neighbouring heads, as they
// mostly are in memory. Moves dout and o in.
template <class T, int width>
__global__ void __launch_bounds__(warps * 32)
    delta_kernel(const Backward<T> problem, std::int64_t rows,
                 std::int64_t turns) {
  allow_next_kernel();
  const std::int64_t thread =
      std::int64_t{blockIdx.x} * warps * 32 + threadIdx.x;
  if (thread < turns) problem.turns[thread] = 0;
  const Extents& extents = problem.extents;
  const std::int64_t row = thread / lanes_of_row;
  const std::int64_t head = row % extents.heads;
  const std::int64_t token = row / extents.heads % extents.q_tokens;
  const std::int64_t batch = row / extents.heads / extents.q_tokens;
  const auto row_of = [&](const View<const T>& view) {
    return view.data + batch * view.batch_stride + token * view.token_stride +
           head * view.head_stride;
  };
  float sum = 0;
  if (row < rows) {
    const T *const dout = row_of(problem.dout), *const o = row_of(problem.o);
    for (int i = threadIdx.x % lanes_of_row * width; i < extents.head_dim;
         i += lanes_of_row * width) {
      const auto x = *reinterpret_cast<const Pack<T, width>*>(dout + i);
      const auto y = *reinterpret_cast<const Pack<T, width>*>(o + i);
#pragma unroll
      for (int j = 0; j < width; ++j) {
        sum = fmaf(to_float(x.at[j]), to_float(y.at[j]), sum);
      }
    }
  }
#pragma unroll
  for (int offset = 1; offset < lanes_of_row; offset *= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  }
  if (row < rows && threadIdx.x % lanes_of_row == 0) {
    problem.delta[(batch * extents.heads + head) * extents.q_tokens + token] =
        sum;
  }
}

// Whether rows can be read 16 bytes at a time.
template <class T>
bool by_16_bytes(const View<const T>& view, int head_dim) {
  const auto divides = [](std::int64_t elements) {
    return elements * std::int64_t{sizeof(T)} % 16 == 0;
  };
  return reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 &&
         divides(head_dim) && divides(view.batch_stride) &&
         divides(view.token_stride) && divides(view.head_stride);
}

// One warp a sequence.
template <class T>
__global__ void single_token_kernel(const Forward<T> problem) {
  const Extents& extents = problem.extents;
  const std::int64_t sequence =
      std::int64_t{blockIdx.x} * warps + threadIdx.x / 32;
  if (sequence >= extents.batch * extents.heads) return;
  const T* q = rows_of(problem.q, sequence, extents.heads);
  const T* k = rows_of(problem.k, sequence, extents.heads);
  const T* v = rows_of(problem.v, sequence, extents.heads);
  T* o = rows_of(problem.o, sequence, extents.heads);
  float score = 0;
  for (int i = threadIdx.x % 32; i < extents.head_dim; i += 32) {
    score += to_float(q[i]) * to_float(k[i]);
    o[i] = v[i];
  }
  score = warp_sum(score);
  if (threadIdx.x % 32 == 0) problem.lse[sequence] = score * extents.scale;
}

template <class T>
__global__ void single_token_backward_kernel(const Backward<T> problem) {
  const Extents& extents = problem.extents;
  const std::int64_t sequence =
      std::int64_t{blockIdx.x} * warps + threadIdx.x / 32;
  if (sequence >= extents.batch * extents.heads) return;
  const T* dout = rows_of(problem.dout, sequence, extents.heads);
  T* dq = rows_of(problem.dq, sequence, extents.heads);
  T* dk = rows_of(problem.dk, sequence, extents.heads);
  T* dv = rows_of(problem.dv, sequence, extents.heads);
  for (int i = threadIdx.x % 32; i < extents.head_dim; i += 32) {
    dv[i] = dout[i];
    assign(dq[i], 0);
    assign(dk[i], 0);
  }
}

unsigned blocks_of_rows(std::int64_t rows) {
  return grid_blocks((rows + warps - 1) / warps, "attention");
}

}  // namespace

template <class T>
void compute_delta(cudaStream_t stream, const Backward<T>& problem,
                   std::int64_t turns) {
  const Extents& extents = problem.extents;
  const std::int64_t rows = extents.sequences() * extents.q_tokens;
  const bool wide = by_16_bytes(problem.dout, extents.head_dim) &&
                    by_16_bytes(problem.o, extents.head_dim);
  // There are fewer turns than rows.
  const unsigned blocks = blocks_of_rows((rows * lanes_of_row + 31) / 32);
  constexpr int width = 16 / sizeof(T);
  const auto kernel = wide ? delta_kernel<T, width> : delta_kernel<T, 1>;
  kernel<<<blocks, warps * 32, 0, stream>>>(problem, rows, turns);
  check_launch("attention delta");
}

template <class T>
void single_token_forward(cudaStream_t stream, const Forward<T>& problem) {
  single_token_kernel<<<blocks_of_rows(problem.extents.sequences()), warps * 32,
                        0, stream>>>(problem);
  check_launch("attention of one token");
}

template <class T>
void single_token_backward(cudaStream_t stream, const Backward<T>& problem) {
  single_token_backward_kernel<<<blocks_of_rows(problem.extents.sequences()),
                                 warps * 32, 0, stream>>>(problem);
  check_launch("attention of one token, backward");
}

template void compute_delta(cudaStream_t, const Backward<float>&, std::int64_t);
template void compute_delta(cudaStream_t, const Backward<bf16>&, std::int64_t);
template void single_token_forward(cudaStream_t, const Forward<float>&);
template void single_token_forward(cudaStream_t, const Forward<bf16>&);
template void single_token_backward(cudaStream_t, const Backward<float>&);
template void single_token_backward(cudaStream_t, const Backward<bf16>&);

}  // namespace lockstep::attention
