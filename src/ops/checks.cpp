#include "ops/checks.h"

namespace lockstep {
namespace {

void check_dtype(Dtype dtype, Dtype wanted, const char* what) {
  if (dtype != wanted) {
    fail("{} is {}, wanted {}", what, name_of(dtype), name_of(wanted));
  }
}

}  // namespace

void check(const Tensor& tensor, Dtype dtype, Shape shape, const char* what) {
  check_dtype(tensor.dtype, dtype, what);
  if (tensor.shape != shape) {
    fail("{} has the shape {}, wanted {}", what, tensor.shape.text(),
         shape.text());
  }
  if (tensor.data == nullptr) fail("{} has no memory", what);
}

Dtype gradient_dtype(const Tensor& gradient, Dtype activations) {
  return gradient.dtype == Dtype::bf16 ? activations : Dtype::f32;
}

void check_count(const Tensor& tensor, Dtype dtype, std::int64_t elements,
                 const char* what) {
  check_dtype(tensor.dtype, dtype, what);
  if (tensor.elements() != elements) {
    fail("{} has {} elements, wanted {}", what, tensor.elements(), elements);
  }
  if (tensor.data == nullptr && elements != 0) fail("{} has no memory", what);
}

void check_weights(const Tensor& parameters, const Tensor& remainder,
                   std::int64_t count, bool remainder_needed,
                   const char* what) {
  if (parameters.dtype == Dtype::f32) {
    check_count(parameters, Dtype::f32, count, what);
    if (remainder) fail("{} are f32 and have a remainder", what);
    return;
  }
  check_count(parameters, Dtype::bf16, count, what);
  if (remainder || (remainder_needed && count > 0)) {
    check_count(remainder, Dtype::i16, count, what);
  }
}

void check_matrix(const Tensor& tensor, Dtype dtype, const char* what) {
  check_dtype(tensor.dtype, dtype, what);
  if (tensor.shape.rank() != 2 || tensor[0] < 1 || tensor[1] < 1) {
    fail("{} has the shape {}, wanted a matrix", what, tensor.shape.text());
  }
  if (tensor.data == nullptr) fail("{} has no memory", what);
}

void check_wide(const Tensor& tensor, Dtype dtype, std::int64_t rows,
                std::int64_t columns, const char* what) {
  check_matrix(tensor, dtype, what);
  if (tensor[0] != rows || tensor[1] < columns) {
    fail("{} has the shape {}, wanted [{}, {} or more]", what,
         tensor.shape.text(), rows, columns);
  }
}

void check_ids(const Tensor& ids, std::int64_t count, std::int64_t vocabulary,
               const char* what) {
  check(ids, Dtype::i32, {count}, what);
  const auto* values = ids.as<std::int32_t>();
  for (std::int64_t n = 0; n < count; ++n) {
    if (values[n] < 0 || values[n] >= vocabulary) {
      fail("{}: id {} at position {} is outside a vocabulary of {}", what,
           values[n], n, vocabulary);
    }
  }
}

void check_heads(const Heads& heads, Dtype dtype, const char* what) {
  check_dtype(heads.dtype, dtype, what);
  if (heads.batch < 1 || heads.tokens < 1 || heads.heads < 1 ||
      heads.head_dim < 1) {
    fail("{} is empty: {} sequences of {} tokens, {} heads of {}", what,
         heads.batch, heads.tokens, heads.heads, heads.head_dim);
  }
  if (heads.data == nullptr) fail("{} has no memory", what);
}

void check_heads_like(const Heads& heads, const Heads& like, const char* what) {
  check_heads(heads, like.dtype, what);
  if (heads.batch != like.batch || heads.tokens != like.tokens ||
      heads.heads != like.heads || heads.head_dim != like.head_dim) {
    fail(
        "{} has {} sequences of {} tokens, {} heads of {}; wanted {} of {}, "
        "{} of {}",
        what, heads.batch, heads.tokens, heads.heads, heads.head_dim,
        like.batch, like.tokens, like.heads, like.head_dim);
  }
}

void check_attention(const Tensor& lse, const Heads& q, const Heads& k,
                     const Heads& v, bool causal, Dtype dtype) {
  check_heads(q, dtype, "attention: q");
  check_heads(k, dtype, "attention: k");
  check_heads_like(v, k, "attention: v");
  require(q.batch == k.batch && q.heads == k.heads && q.head_dim == k.head_dim,
          "attention: q of {} sequences, {} heads of {} against k of {}, {} of "
          "{}",
          q.batch, q.heads, q.head_dim, k.batch, k.heads, k.head_dim);
  require(!causal || q.tokens == k.tokens,
          "attention: causal with {} queries and {} keys; they must be as many",
          q.tokens, k.tokens);
  check(lse, Dtype::f32, {q.batch, q.heads, q.tokens}, "attention: lse");
}

void check_attention_backward(const Heads& dq, const Heads& dk, const Heads& dv,
                              const Heads& dout, const Heads& o,
                              const Tensor& lse, const Heads& q, const Heads& k,
                              const Heads& v, bool causal, Dtype dtype) {
  check_attention(lse, q, k, v, causal, dtype);
  check_heads_like(o, q, "attention_backward: o");
  check_heads_like(dout, q, "attention_backward: dout");
  check_heads_like(dq, q, "attention_backward: dq");
  check_heads_like(dk, k, "attention_backward: dk");
  check_heads_like(dv, k, "attention_backward: dv");
}

void check_weighted_sum_backward(const Tensor& dx, const Tensor& dweight,
                                 const Tensor& dy, const Tensor& x,
                                 const Tensor& weight, Dtype dtype) {
  check_matrix(x, dtype, "weighted_sum_backward: x");
  check(dx, dtype, x.shape, "weighted_sum_backward: dx");
  check(dy, dtype, {x[0]}, "weighted_sum_backward: dy");
  check(weight, dtype, {x[1]}, "weighted_sum_backward: weight");
  check(dweight, Dtype::f32, {x[1]}, "weighted_sum_backward: dweight");
}

void check_adamw(const AdamwRange& range, const Tensor& scalars,
                 const Tensor& factor, Dtype dtype) {
  const std::int64_t count = range.parameters.elements();
  check_count(range.parameters, dtype, count, "adamw: parameters");
  check_weights(range.parameters, range.remainder, count,
                /*remainder_needed=*/true, "adamw: parameters");
  check_count(range.gradients, gradient_dtype(range.gradients, dtype), count,
              "adamw: gradients");
  check_count(range.first_moment, Dtype::f32, count, "adamw: first_moment");
  check_count(range.second_moment, Dtype::f32, count, "adamw: second_moment");
  check_count(scalars, Dtype::f32, adamw_scalar_count, "adamw: scalars");
  check_count(factor, Dtype::f32, 1, "adamw: factor");
}

void check_scores(const Tensor& scores, Dtype dtype, bool causal,
                  const char* what) {
  require(scores.shape.rank() == 4 && scores.elements() > 0,
          "{} has shape {}, wanted [B, H, Tq, Tk]", what, scores.shape.text());
  check(scores, dtype, scores.shape, what);
  require(!causal || scores[2] == scores[3],
          "{}: causal with {} queries and {} keys; they must be as many", what,
          scores[2], scores[3]);
}

void check_matmul(const Heads& c, const Heads& a, Transpose op_a,
                  const Heads& b, Transpose op_b, Dtype dtype) {
  check_heads(a, dtype, "matmul: a");
  check_heads(b, dtype, "matmul: b");
  const bool ta = op_a == Transpose::yes, tb = op_b == Transpose::yes;
  require((ta ? a.tokens : a.head_dim) == (tb ? b.head_dim : b.tokens) &&
              a.batch == b.batch && a.heads == b.heads,
          "matmul: {} × {} × [{}, {}]{} by {} × {} × [{}, {}]{}", a.batch,
          a.heads, a.tokens, a.head_dim, ta ? "ᵀ" : "", b.batch, b.heads,
          b.tokens, b.head_dim, tb ? "ᵀ" : "");
  Heads wanted = c;
  wanted.dtype = dtype;
  wanted.batch = a.batch;
  wanted.heads = a.heads;
  wanted.tokens = ta ? a.head_dim : a.tokens;
  wanted.head_dim = tb ? b.tokens : b.head_dim;
  check_heads_like(c, wanted, "matmul: c");
}

}  // namespace lockstep
