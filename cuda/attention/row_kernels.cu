#include "cuda/attention/rows.cuh"

// Attention's kernels of one pass over rows: the backward pass's delta, and
// sequences of a single token.
namespace lockstep::attention {
namespace {

constexpr int warps = 8;

// One warp a row (b, h, t). Moves dout and o in.
template <class T>
__global__ void delta_kernel(const Backward<T> problem, std::int64_t rows) {
  const Extents& extents = problem.extents;
  const std::int64_t row = std::int64_t{blockIdx.x} * warps + threadIdx.x / 32;
  if (row >= rows) return;
  const std::int64_t sequence = row / extents.q_tokens;
  const std::int64_t token = row % extents.q_tokens;
  const T* dout = rows_of(problem.dout, sequence, extents.heads) +
                  token * problem.dout.token_stride;
  const T* o = rows_of(problem.o, sequence, extents.heads) +
               token * problem.o.token_stride;
  float sum = 0;
  for (int i = threadIdx.x % 32; i < extents.head_dim; i += 32) {
    sum += to_float(dout[i]) * to_float(o[i]);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) problem.delta[row] = sum;
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
void compute_delta(cudaStream_t stream, const Backward<T>& problem) {
  const std::int64_t rows =
      problem.extents.sequences() * problem.extents.q_tokens;
  delta_kernel<<<blocks_of_rows(rows), warps * 32, 0, stream>>>(problem, rows);
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

template void compute_delta(cudaStream_t, const Backward<float>&);
template void compute_delta(cudaStream_t, const Backward<bf16>&);
template void single_token_forward(cudaStream_t, const Forward<float>&);
template void single_token_forward(cudaStream_t, const Forward<bf16>&);
template void single_token_backward(cudaStream_t, const Backward<float>&);
template void single_token_backward(cudaStream_t, const Backward<bf16>&);

}  // namespace lockstep::attention
