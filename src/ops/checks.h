#pragma once

#include <cstdint>

#include "core/tensor.h"
#include "ops/ops.h"

namespace lockstep {

// What an operation demands of an argument; `what` names both in the Error.

// Exactly this dtype and shape, and memory behind it.
void check(const Tensor& tensor, Dtype dtype, Shape shape, const char* what);
// `count` weights: f32 alone, or bf16 with an i16 remainder, which may be empty
// where `remainder_needed` is false.
void check_weights(const Tensor& parameters, const Tensor& remainder,
                   std::int64_t count, bool remainder_needed, const char* what);
// The dtype that a gradient of weights has to have beside activations of this
// one: its own if it is bf16 and they are, or else f32.
Dtype gradient_dtype(const Tensor& gradient, Dtype activations);
// This many elements of a dtype, in any shape; none at all is fine.
void check_count(const Tensor& tensor, Dtype dtype, std::int64_t elements,
                 const char* what);
// A matrix of this dtype with at least one row and one column.
void check_matrix(const Tensor& tensor, Dtype dtype, const char* what);
// A matrix whose rows hold `columns` elements and may be wider than that.
void check_wide(const Tensor& tensor, Dtype dtype, std::int64_t rows,
                std::int64_t columns, const char* what);
// Ids or targets i32[count] in host memory, each in [0, vocabulary).
void check_ids(const Tensor& ids, std::int64_t count, std::int64_t vocabulary,
               const char* what);
// Heads with no extent of zero.
void check_heads(const Heads& heads, Dtype dtype, const char* what);
// Heads of the same batch, heads, tokens and head_dim as `like`.
void check_heads_like(const Heads& heads, const Heads& like, const char* what);
// What both passes of attention demand of their inputs.
void check_attention(const Tensor& lse, const Heads& q, const Heads& k,
                     const Heads& v, bool causal, Dtype dtype);

// Of the gradient besides those.
void check_attention_backward(const Heads& dq, const Heads& dk, const Heads& dv,
                              const Heads& dout, const Heads& o,
                              const Tensor& lse, const Heads& q, const Heads& k,
                              const Heads& v, bool causal, Dtype dtype);
void check_weighted_sum_backward(const Tensor& dx, const Tensor& dweight,
                                 const Tensor& dy, const Tensor& x,
                                 const Tensor& weight, Dtype dtype);
void check_adamw(const AdamwRange& range, const Tensor& scalars,
                 const Tensor& factor, Dtype dtype);

// Scores [B, H, Tq, Tk] with no extent of zero; causal: Tq = Tk.
void check_scores(const Tensor& scores, Dtype dtype, bool causal,
                  const char* what);
// Heads that are factors and product of Ops::matmul.
void check_matmul(const Heads& c, const Heads& a, Transpose op_a,
                  const Heads& b, Transpose op_b, Dtype dtype);

}  // namespace lockstep
