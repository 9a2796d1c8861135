#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

// The attention kernels' interface. What they compute is said in ops/ops.h.
// This header is read by the CUDA compiler too, so it stays free of the host
// side's.
namespace lockstep::attention {

using bf16 = __nv_bfloat16;

// Element (b, t, h, i) is at data + b·batch_stride + t·token_stride +
// h·head_stride + i.
template <class T>
struct View {
  T* data = nullptr;
  std::int64_t batch_stride = 0, token_stride = 0, head_stride = 0;
};

struct Extents {
  std::int64_t batch = 0, heads = 0;
  int head_dim = 0;
  int q_tokens = 0, k_tokens = 0;
  bool causal = false;
  float scale = 1;  // 1/√head_dim

  std::int64_t sequences() const { return batch * heads; }
};

template <class T>
struct Forward {
  Extents extents;
  View<T> o;
  float* lse = nullptr;  // [batch, heads, q_tokens]
  View<const T> q, k, v;
};

template <class T>
struct Backward {
  Extents extents;
  View<T> dq, dk, dv;
  View<const T> dout, o;
  const float* lse = nullptr;
  View<const T> q, k, v;
  // Scratch memory. The last two are for kernels that sum up dq in turns (see
  // turns.cuh).
  float* delta = nullptr;  // [batch, heads, q_tokens]: Σ_i dout·o
  int* turns = nullptr;    // [batch, heads, rounds]
  float* sums = nullptr;   // [batch, heads, rounds, round_floats]
};

// How a kernel sums up dq of a sequence.
struct DqSums {
  std::int64_t rounds = 0, round_floats = 0;
};

// delta[b, h, t] = Σ_i dout·o, which every backward pass needs first, and zeros
// in the first `turns` turns.
template <class T>
void compute_delta(cudaStream_t, const Backward<T>&, std::int64_t turns = 0);

// Fp32 arithmetic outside the tensor cores: head dims up to 256, T is float or
// bf16.
template <class T>
void fma_forward(cudaStream_t, const Forward<T>&);
DqSums fma_dq_sums(const Extents&);
template <class T>
void fma_backward(cudaStream_t, const Backward<T>&);

// Tensor cores by mma.sync: T is bf16, or float, which products round to TF32.
// Head dims that are multiples of 8 up to 128, all rows aligned to 16 bytes.
template <class T>
void mma_forward(cudaStream_t, const Forward<T>&);
template <class T>
void mma_backward(cudaStream_t, const Backward<T>&);

// The same, of bf16, for GPUs of compute capability 9.0 by wgmma and bulk
// tensor copies, for head dims of more than 32.
bool is_hopper();
void hopper_forward(cudaStream_t, const Forward<bf16>&);
DqSums hopper_dq_sums(const Extents&);
void hopper_backward(cudaStream_t, const Backward<bf16>&);

// One query and one key: o = v, dv = dout, dq = dk = 0, exactly.
template <class T>
void single_token_forward(cudaStream_t, const Forward<T>&);
template <class T>
void single_token_backward(cudaStream_t, const Backward<T>&);

}  // namespace lockstep::attention
