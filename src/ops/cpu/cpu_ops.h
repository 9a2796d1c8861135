#pragma once

#include <array>
#include <cstdint>

#include "core/device.h"
#include "ops/ops.h"

namespace lockstep {

// Ops on CPUs: matrix products by BLAS, OpenMP loops that vectorise for the
// rest. Everything is computed in fp32 (sums over tensors in fp64), and bf16
// is a storage format that is widened on reading and rounded once on writing.
// Results don't depend on how threads are scheduled.
class CpuOps final : public Ops {
 public:
  CpuOps(Device& device, int threads, Precision precision);

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
  void add(const Tensor& sum, const Tensor& x) override;

 private:
  // Scratch memory, one buffer a purpose, that grows to the largest request.
  enum class Scratch { wide_a, wide_b, wide_c, partial_sums, attention };
  float* scratch(Scratch purpose, std::int64_t floats);
  // A matrix's first `columns` columns in fp32: the tensor itself, or a
  // widened copy in scratch.
  struct WideMatrix {
    const float* data;
    std::int64_t stride;
  };
  WideMatrix widen(const Tensor& matrix, std::int64_t columns, Scratch purpose);
  // to's first `columns` columns = from's first `inner` ones times the weight
  // or its transpose.
  void multiply_rows(const Tensor& to, std::int64_t columns, const Tensor& from,
                     std::int64_t inner, const Tensor& weight, Transpose op);

  // body(sums) with the elements of a gradient in fp32: its own memory, or
  // scratch that is rounded into it afterwards. They are what was there where
  // they shall be added to, anything otherwise.
  template <class Body>
  void sum_in_fp32(const Tensor& gradient, Accumulate accumulate, Body body) {
    if (gradient.dtype == Dtype::f32) return body(gradient.as<float>());
    float* sums = scratch(Scratch::wide_c, gradient.elements());
    const Tensor wide(sums, Dtype::f32, gradient.shape);
    if (accumulate == Accumulate::yes) cast(wide, gradient);
    body(sums);
    cast(gradient, wide);
  }

  // body(T{}) with T the storage type of activations and weights.
  template <class Body>
  void with_storage(Body&& body) {
    if (dtype_ == Dtype::bf16) {
      body(bfloat16{});
    } else {
      body(float{});
    }
  }

  Device& device_;
  Dtype dtype_;  // of activations and weights
  std::array<Buffer, 5> scratch_;
};

}  // namespace lockstep
