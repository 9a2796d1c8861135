#pragma once

#include "cuda/cuda_device.h"
#include "cuda/gemm.h"
#include "cuda/kernels/kernels.h"
#include "cuda/workspace.h"
#include "ops/ops.h"

namespace lockstep {

// Ops on one GPU: checks the arguments and launches on the device's compute
// stream. Products are cuBLASLt's (gemm.h), the rest are kernels of our own
// (kernels/, attention/). Token ids and targets are on the device, so unlike
// the CPU's these operations cannot look whether they are in the vocabulary.
class CudaOps final : public Ops {
 public:
  CudaOps(CudaDevice& device, Precision precision,
          const std::string& gemm_cache);

  void embedding(const Tensor& out, const Tensor& weight,
                 const Tensor& ids) override;
  void embedding_backward(const Tensor& dweight, const Tensor& dout,
                          const Tensor& ids, Accumulate accumulate) override;

  void rmsnorm(const Tensor& y, const Tensor& residual,
               const Tensor& inverse_rms, const Tensor& x, const Tensor& add,
               const Tensor& weight) override;
  void rmsnorm_backward(const Tensor& dresidual, const Tensor& dweight,
                        const Tensor& dy, const Tensor& residual,
                        const Tensor& inverse_rms, const Tensor& weight,
                        Accumulate accumulate) override;

  void linear(const Tensor& y, const Tensor& x, const Tensor& weight) override;
  void linear_backward_input(const Tensor& dx, const Tensor& dy,
                             const Tensor& weight) override;
  void linear_backward_weight(const Tensor& dweight, const Tensor& dy,
                              const Tensor& x, Accumulate accumulate) override;

  void rope(const Heads& x, const Tensor& table, Pass pass) override;

  void attention(const Heads& o, const Tensor& lse, const Heads& q,
                 const Heads& k, const Heads& v, bool causal) override;
  void attention_backward(const Heads& dq, const Heads& dk, const Heads& dv,
                          const Heads& dout, const Heads& o, const Tensor& lse,
                          const Heads& q, const Heads& k, const Heads& v,
                          bool causal) override;

  void matmul(const Heads& c, const Heads& a, Transpose op_a, const Heads& b,
              Transpose op_b) override;
  void softmax(const Tensor& scores, const Tensor& lse, float scale,
               bool causal) override;
  void softmax_backward(const Tensor& dp, const Tensor& p,
                        float scale) override;

  void swiglu(const Tensor& y, const Tensor& gate_up) override;
  void swiglu_backward(const Tensor& dgate_up, const Tensor& dy,
                       const Tensor& gate_up) override;

  void cross_entropy(const Tensor& losses, const Tensor& logits,
                     const Tensor& targets, std::int64_t vocabulary) override;
  void cross_entropy_backward(const Tensor& losses, const Tensor& logits,
                              const Tensor& targets, std::int64_t vocabulary,
                              float scale) override;

  void add_sum(const Tensor& total, const Tensor& x, double scale) override;
  void add_sum_of_squares(const Tensor& total, const Tensor& x) override;
  void clip_factor(const Tensor& factor, const Tensor& sum_of_squares,
                   double clip) override;
  void adamw(const AdamwRange& range, const Tensor& scalars,
             const Tensor& factor) override;

  void add(const Tensor& sum, const Tensor& x) override;
  void weighted_sum(const Tensor& y, const Tensor& x,
                    const Tensor& weight) override;
  void weighted_sum_backward(const Tensor& dx, const Tensor& dweight,
                             const Tensor& dy, const Tensor& x,
                             const Tensor& weight) override;
  void cast(const Tensor& out, const Tensor& x) override;
  void split_weights(const Tensor& parameters, const Tensor& remainder,
                     const Tensor& values) override;
  void join_weights(const Tensor& values, const Tensor& parameters,
                    const Tensor& remainder) override;

 private:
  // body(T{}) with T the storage type of activations and weights.
  template <class Body>
  void with_storage(Body body) const;
  // body(T{}, G{}) with G the type of a gradient of weights, whose dtype has
  // been checked.
  template <class Body>
  void with_gradient(const Tensor& gradient, Body body) const;

  kernels::Launch launch_;
  Precision precision_;
  Dtype dtype_;  // of activations and weights
  Gemm gemm_;
  Workspace scratch_;
};

}  // namespace lockstep
