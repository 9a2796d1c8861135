#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

// The launchers of all kernels but attention's. Each checks its launch and
// returns at once; what an operation computes is said in ops/ops.h. T is float
// or bf16, and so is G, the type of gradients of weights: bf16 only where T is.
// This header is read by the CUDA compiler too, so it stays free of the host
// side's.
namespace lockstep::kernels {

using bf16 = __nv_bfloat16;

// Where kernels run.
struct Launch {
  cudaStream_t stream = nullptr;
  int multiprocessors = 1;
};

// Rows of T with a stride of their own, in elements.
template <class T>
struct Rows {
  T* data = nullptr;
  std::int64_t count = 0;
  std::int64_t width = 0;
  std::int64_t stride = 0;
};

// --- embedding: out [count, width], ids [count] ------------------------------
template <class T>
void embedding(const Launch&, const Rows<T>& out, const T* weight,
               const std::int32_t* ids);
// Scratch bytes that embedding_backward needs.
std::int64_t embedding_backward_bytes(std::int64_t count, std::int64_t width,
                                      std::int64_t vocabulary);
template <class T, class G>
void embedding_backward(const Launch&, G* dweight, const Rows<const T>& dout,
                        const std::int32_t* ids, std::int64_t vocabulary,
                        bool accumulate, void* scratch);

// --- residual add + RMSNorm: x [count, width] --------------------------------
constexpr int widest_rmsnorm = 16384;  // elements a row
template <class T>
struct RmsNorm {
  T* y;
  T* residual;
  float* inverse_rms;
  Rows<const T> x;
  const T* add;  // or null
  const T* weight;
};
template <class T>
void rmsnorm(const Launch&, const RmsNorm<T>&);

template <class T>
struct RmsNormBackward {
  T* dresidual;
  const T* dy;
  Rows<const T> residual;
  const float* inverse_rms;
  const T* weight;
};
std::int64_t rmsnorm_backward_bytes(const Launch&, std::int64_t count,
                                    std::int64_t width);
template <class T, class G>
void rmsnorm_backward(const Launch&, const RmsNormBackward<T>&, G* dweight,
                      bool accumulate, void* scratch);

// --- RoPE on heads of any layout ---------------------------------------------
template <class T>
struct Rope {
  T* x;
  std::int64_t batch, tokens, heads, head_dim;
  std::int64_t batch_stride, token_stride, head_stride;
  const float* table;  // [tokens, head_dim/2, 2]
  float direction;     // +1 forward, -1 backward
};
template <class T>
void rope(const Launch&, const Rope<T>&);

// --- SwiGLU: gate_up [count, 2·width] ----------------------------------------
template <class T>
void swiglu(const Launch&, const Rows<T>& y, const T* gate_up);
template <class T>
void swiglu_backward(const Launch&, const Rows<T>& dy, T* dgate_up,
                     const T* gate_up);

// --- cross-entropy: logits of `width` classes, rows `stride` apart -----------
template <class T>
void cross_entropy(const Launch&, float* losses, const Rows<const T>& logits,
                   const std::int32_t* targets);
template <class T>
void cross_entropy_backward(const Launch&, float* losses, const Rows<T>& logits,
                            const std::int32_t* targets, float scale);

// --- softmax of scores [rows, keys], `queries` rows a head -------------------
template <class T>
struct Scores {
  T* data;
  std::int64_t rows, queries, keys;
};
template <class T>
void softmax(const Launch&, const Scores<T>&, float* lse, float scale,
             bool causal);
template <class T>
void softmax_backward(const Launch&, const Scores<T>& dp, const T* p,
                      float scale);

// --- reductions into f64 -----------------------------------------------------
constexpr std::int64_t reduction_bytes = 1024 * sizeof(double);
void add_sum(const Launch&, double* total, const float* x, std::int64_t n,
             double scale, void* scratch);
template <class T>
void add_sum_of_squares(const Launch&, double* total, const T* x,
                        std::int64_t n, void* scratch);
void clip_factor(const Launch&, float* factor, const double* sum_of_squares,
                 double clip);

// --- AdamW -------------------------------------------------------------------
template <class T, class G>
struct AdamwUpdate {
  T* parameters;
  std::int16_t* remainder;  // of bf16 parameters (SplitWeight)
  const G* gradients;
  float* first_moment;
  float* second_moment;
  std::int64_t n;
  float weight_decay;
  const float* scalars;  // AdamwScalars
  const float* factor;
};
template <class T, class G>
void adamw(const Launch&, const AdamwUpdate<T, G>&);

// --- weighted sum: x [count, width] ------------------------------------------
template <class T>
void weighted_sum(const Launch&, T* y, const Rows<const T>& x, const T* weight);
std::int64_t weighted_sum_backward_bytes(const Launch&, std::int64_t count,
                                         std::int64_t width);
template <class T>
void weighted_sum_backward(const Launch&, const Rows<T>& dx, float* dweight,
                           const T* dy, const T* x, const T* weight,
                           void* scratch);

// --- elementwise -------------------------------------------------------------
template <class To, class From>
void add(const Launch&, To* sum, const From* x, std::int64_t n);
template <class To, class From>
void cast(const Launch&, To* out, const From* x, std::int64_t n);
// fp32 values as bf16 parameters and, unless null, their remainder; and back.
void split_weights(const Launch&, bf16* parameters, std::int16_t* remainder,
                   const float* values, std::int64_t n);
void join_weights(const Launch&, float* values, const bf16* parameters,
                  const std::int16_t* remainder, std::int64_t n);

}  // namespace lockstep::kernels
