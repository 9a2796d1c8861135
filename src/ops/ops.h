#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"

namespace lockstep {

// Heads of a batch of sequences inside any layout: element (b, t, h, i) is at
// data + b·batch_stride + t·token_stride + h·head_stride + i, in elements.
// Packed QKV [B, T, 3, H, D] and separate [B, H, T, D] tensors are both this.
struct Heads {
  void* data = nullptr;
  Dtype dtype = Dtype::f32;
  std::int64_t batch = 0, tokens = 0, heads = 0, head_dim = 0;
  std::int64_t batch_stride = 0, token_stride = 0, head_stride = 0;
};

// Part 0 (q), 1 (k) or 2 (v) of packed rows [B·T, 3·H·D].
Heads packed_heads(const Tensor& qkv, int part, std::int64_t batch,
                   std::int64_t heads);
// Rows [B·T, H·D] as heads.
Heads row_heads(const Tensor& rows, std::int64_t batch, std::int64_t heads);

enum class Pass { forward, backward };
// Whether a result is added to what is there or replaces it.
enum class Accumulate { no, yes };

// Whether a factor is used as it is or transposed.
enum class Transpose { no, yes };

// One AdamW update's numbers, in device memory as 8 fp32 values in this order,
// so that a captured step can be replayed with new ones.
struct AdamwScalars {
  float learning_rate = 0;
  float beta1 = 0;
  float beta2 = 0;
  float epsilon = 0;
  float bias_correction1 = 1;  // 1 − beta1^t
  float bias_correction2 = 1;  // 1 − beta2^t
  float reserved[2] = {};
};
constexpr int adamw_scalar_count = sizeof(AdamwScalars) / sizeof(float);

// A range of optimizer state, all [n].
struct AdamwRange {
  Tensor parameters;  // compute dtype, read and written
  Tensor remainder;   // i16, of bf16 parameters (SplitWeight): read and written
  Tensor gradients;   // g, read
  Tensor first_moment;  // f32, read and written
  Tensor second_moment;
  float weight_decay = 0;
};

// Every computation that a training step does, on one device.
//
// Contract, for all operations:
//  - They are issued on the device's compute lane and read no result back, so
//    none makes the host wait.
//  - Activations and weights ("a") are in the compute dtype of the precision
//    (f32 or bf16); statistics and losses are f32, norms and sums f64;
//    arithmetic is fp32 or wider inside.
//  - Gradients of weights ("g") are in the dtype of the tensor given: f32 or,
//    where "a" is bf16, bf16. Sums over tokens are fp32 all the same, with what
//    was there where they are added to it, and rounded to g once, at the end.
//  - N = B·T rows of tokens, d = d_model, F = d_ff, V = vocabulary size,
//    H heads of D = d/H.
//  - "=" overwrites, "+=" adds to what is there, "(+)=" does as Accumulate
//  says.
//  - The same inputs give the same bits every time: no atomics races.
//  - Wrong shapes or dtypes are Errors raised before anything is launched.
//  - Scratch memory is the implementation's own; it may be allocated in the
//    first step, never later for the same shapes.
class Ops {
 public:
  virtual ~Ops() = default;

  // --- embedding ---------------------------------------------------------
  // out[n] = weight[ids[n]]; out a[N, d], weight a[V, d], ids i32[N].
  virtual void embedding(const Tensor& out, const Tensor& weight,
                         const Tensor& ids) = 0;
  // dweight (+)= the sum of dout[n] in row ids[n], zero elsewhere;
  // dweight g[V, d], dout a[N, d].
  virtual void embedding_backward(const Tensor& dweight, const Tensor& dout,
                                  const Tensor& ids, Accumulate accumulate) = 0;

  // --- residual add + RMSNorm (Zhang & Sennrich 2019, eq. 4; eps 1e-5) ----
  // residual = x + add (or x where add is empty);
  // inverse_rms = 1/√(mean(residual²) + 1e-5); y = residual·inverse_rms·weight.
  // x, add, residual, y a[N, d] (residual may be x's memory); weight a[d];
  // inverse_rms f32[N].
  virtual void rmsnorm(const Tensor& y, const Tensor& residual,
                       const Tensor& inverse_rms, const Tensor& x,
                       const Tensor& add, const Tensor& weight) = 0;
  // dresidual += the norm's input gradient; dweight g[d] (+)= its own.
  // dresidual a[N, d] holds the gradient that bypasses the norm, dy a[N, d].
  virtual void rmsnorm_backward(const Tensor& dresidual, const Tensor& dweight,
                                const Tensor& dy, const Tensor& residual,
                                const Tensor& inverse_rms, const Tensor& weight,
                                Accumulate accumulate) = 0;

  // --- linear layers (weight [out, in], no bias) ---------------------------
  // Rows of y, and of dy, may be wider than `out`: then y's second extent is
  // the row stride and the columns past `out` are left alone.
  // y = x·weightᵀ; y a[N, ≥out], x a[N, in], weight a[out, in].
  virtual void linear(const Tensor& y, const Tensor& x,
                      const Tensor& weight) = 0;
  // dx = dy·weight; dx a[N, in].
  virtual void linear_backward_input(const Tensor& dx, const Tensor& dy,
                                     const Tensor& weight) = 0;
  // dweight (+)= dyᵀ·x; dweight g[out, in].
  virtual void linear_backward_weight(const Tensor& dweight, const Tensor& dy,
                                      const Tensor& x,
                                      Accumulate accumulate) = 0;

  // --- RoPE (Su et al. 2021, eq. 34) -----------------------------------------
  // Rotates each pair (2i, 2i+1) of token t by table[t, i] = (cos, sin), in
  // place; Pass::backward rotates by the opposite angle, which is the gradient.
  // table f32[≥T, D/2, 2], see rope_table().
  virtual void rope(const Heads& x, const Tensor& table, Pass pass) = 0;

  // --- attention ----------------------------------------------------------
  // o = softmax(q·kᵀ/√D)·v per head, without a T×T matrix (online softmax:
  // Dao et al. 2022, algorithm 1); lse f32[B, H, Tq] = log-sum-exp of the
  // scaled scores. causal: token t sees keys 0…t, and needs Tq = Tk.
  virtual void attention(const Heads& o, const Tensor& lse, const Heads& q,
                         const Heads& k, const Heads& v, bool causal) = 0;
  // dq, dk, dv = gradients, recomputing the probabilities from lse
  // (Dao 2023, algorithm 2).
  virtual void attention_backward(const Heads& dq, const Heads& dk,
                                  const Heads& dv, const Heads& dout,
                                  const Heads& o, const Tensor& lse,
                                  const Heads& q, const Heads& k,
                                  const Heads& v, bool causal) = 0;

  // --- attention that keeps its scores, in parts (see ops/attention.h) -------
  // c = op(a)·op(b) for each batch and head, where heads are matrices
  // [tokens, head_dim]; all "a".
  virtual void matmul(const Heads& c, const Heads& a, Transpose op_a,
                      const Heads& b, Transpose op_b) = 0;
  // Rows of scores a[B, H, Tq, Tk] become softmax(scale·row); lse
  // f32[B, H, Tq] = log-sum-exp of scale·row. causal: row t has its first t + 1
  // elements, the rest become zero, and Tq = Tk.
  virtual void softmax(const Tensor& scores, const Tensor& lse, float scale,
                       bool causal) = 0;
  // dp becomes the gradient of scores: scale·p ⊙ (dp − Σ_j p ⊙ dp);
  // dp, p a[B, H, Tq, Tk].
  virtual void softmax_backward(const Tensor& dp, const Tensor& p,
                                float scale) = 0;

  // --- SwiGLU (Shazeer 2020, eq. 6) ----------------------------------------
  // y = silu(gate) ⊙ up; gate_up a[N, 2F] holds gate (w1 x) then up (w3 x).
  virtual void swiglu(const Tensor& y, const Tensor& gate_up) = 0;
  // dgate_up = gradient for that of y, dy a[N, F], which y itself replaces (the
  // next product's weight wants it). dgate_up may be gate_up's memory.
  virtual void swiglu_backward(const Tensor& dgate_up, const Tensor& dy,
                               const Tensor& gate_up) = 0;

  // --- loss -----------------------------------------------------------------
  // losses f32[N] = logsumexp(logits[n, :V]) − logits[n, targets[n]].
  // logits a[N, ≥V] (row stride = second extent); targets i32[N].
  virtual void cross_entropy(const Tensor& losses, const Tensor& logits,
                             const Tensor& targets,
                             std::int64_t vocabulary) = 0;
  // The same, and logits becomes its own gradient times `scale`; columns past
  // V become zero.
  virtual void cross_entropy_backward(const Tensor& losses,
                                      const Tensor& logits,
                                      const Tensor& targets,
                                      std::int64_t vocabulary, float scale) = 0;

  // --- reductions and the optimizer ---------------------------------------
  // total f64[1] += scale · Σ x; x f32[n].
  virtual void add_sum(const Tensor& total, const Tensor& x, double scale) = 0;
  // total f64[1] += Σ x², accumulated in fp64; x f32 or bf16 [n].
  virtual void add_sum_of_squares(const Tensor& total, const Tensor& x) = 0;
  // factor f32[1] = min(1, clip / (√sum_of_squares + 1e-6)); 1 where clip = 0;
  // NaN where sum_of_squares is not finite.
  virtual void clip_factor(const Tensor& factor, const Tensor& sum_of_squares,
                           double clip) = 0;
  // AdamW with decoupled decay (Loshchilov & Hutter 2019, algorithm 2):
  //   p ← p(1 − lr·wd); m, v ← moments of factor · gradients;
  //   p ← p − lr·m̂/(√v̂ + eps)
  // scalars f32[8] in device memory (AdamwScalars), factor f32[1]. Where factor
  // is NaN, nothing changes.
  virtual void adamw(const AdamwRange& range, const Tensor& scalars,
                     const Tensor& factor) = 0;

  // sum += x, each f32 or bf16 [n].
  virtual void add(const Tensor& sum, const Tensor& x) = 0;

  // --- weighted sum, an operation bound by memory for benchmarks ------------
  // y[n] = Σ_d weight[d]·x[n, d]; x a[N, D], weight a[D], y a[N].
  virtual void weighted_sum(const Tensor& y, const Tensor& x,
                            const Tensor& weight) = 0;
  // dx[n, d] = dy[n]·weight[d], dx a[N, D]; dweight[d] = Σ_n dy[n]·x[n, d],
  // dweight f32[D].
  virtual void weighted_sum_backward(const Tensor& dx, const Tensor& dweight,
                                     const Tensor& dy, const Tensor& x,
                                     const Tensor& weight) = 0;

  // --- dtypes ---------------------------------------------------------------
  // out[i] = x[i], each f32 or bf16 (rounded to nearest even).
  virtual void cast(const Tensor& out, const Tensor& x) = 0;

  // --- weights and their fp32 values -----------------------------------------
  // A weight in bf16 and its remainder (SplitWeight) hold an fp32 value between
  // them; one in f32 holds it alone, and has an empty remainder. values f32[n],
  // parameters f32 or bf16 [n], remainder i16[n] or empty. parameters and
  // remainder = values; an empty remainder is let go of.
  virtual void split_weights(const Tensor& parameters, const Tensor& remainder,
                             const Tensor& values) = 0;
  // values = what parameters and remainder hold.
  virtual void join_weights(const Tensor& values, const Tensor& parameters,
                            const Tensor& remainder) = 0;
};

// cos and sin of t·theta^(−2i/D) for Ops::rope, computed in fp64 and rounded
// once: f32[tokens, head_dim/2, 2] in host memory order.
std::vector<float> rope_table(std::int64_t tokens, std::int64_t head_dim,
                              double theta);

// A device and the operations on it. The device outlives everything allocated
// on it, so it is the first member.
struct Backend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
};

// CPUs: BLAS and OpenMP with `threads` threads of this process.
Backend make_cpu_backend(int threads, Precision precision);
// CUDA device `ordinal` of those visible, with the file of its GEMM cache (see
// cuda/gemm_cache.h), if any. In a build without CUDA: an Error.
Backend make_cuda_backend(int ordinal, Precision precision,
                          const std::string& gemm_cache = "");

struct CudaDeviceInfo {
  std::string name;
  std::string uuid;    // tells whether two ranks mean the same GPU
  std::string bus_id;  // "0000:01:00.0"
  // Bus ids of those it sees but cannot copy to directly.
  std::vector<std::string> not_peers;
};
bool built_with_cuda();
// The GPUs this process can use; empty without a driver or in a build without
// CUDA.
std::vector<CudaDeviceInfo> cuda_devices();
// "13.0", or "" in a build without CUDA.
std::string cuda_version();

}  // namespace lockstep
