#include "cuda/cuda_ops.h"

#include "cuda/attention/attention.h"
#include "ops/checks.h"

namespace lockstep {
namespace {

using kernels::bf16;

// The memory of a tensor whose dtype has been checked; T may be const.
template <class T>
T* as(const Tensor& tensor) {
  return static_cast<T*>(tensor.data);
}

// A matrix as rows of its first `columns` columns.
template <class T>
kernels::Rows<T> rows_of(const Tensor& matrix, std::int64_t columns) {
  return {as<T>(matrix), matrix[0], columns, matrix[1]};
}
template <class T>
kernels::Rows<T> rows_of(const Tensor& matrix) {
  return rows_of<T>(matrix, matrix[1]);
}

// The first `columns` columns of a matrix as an operand of a product.
Operand operand(const Tensor& matrix, std::int64_t columns) {
  return {matrix.data, matrix.dtype, matrix[0], columns, matrix[1], false};
}
Operand operand(const Tensor& matrix) {
  return operand(matrix, matrix[1]);
}
Operand transposed(const Operand& matrix) {
  return {matrix.data, matrix.dtype,  matrix.columns,
          matrix.rows, matrix.stride, !matrix.transposed};
}

// body(T{}) with T the type of a tensor's elements.
template <class Body>
void with_type(const Tensor& tensor, const char* what, Body body) {
  switch (tensor.dtype) {
    case Dtype::f32:
      return body(float{});
    case Dtype::bf16:
      return body(bf16{});
    default:
      fail("{} is {}, wanted f32 or bf16", what, name_of(tensor.dtype));
  }
}

}  // namespace

CudaOps::CudaOps(CudaDevice& device, Precision precision,
                 const std::string& gemm_cache)
    : launch_{device.stream(), device.multiprocessors()},
      precision_(precision),
      dtype_(compute_dtype(precision)),
      gemm_(device, precision, gemm_cache),
      scratch_(device, "scratch of kernels") {}

template <class Body>
void CudaOps::with_storage(Body body) const {
  dtype_ == Dtype::bf16 ? body(bf16{}) : body(float{});
}

template <class Body>
void CudaOps::with_gradient(const Tensor& gradient, Body body) const {
  if (gradient.dtype == Dtype::bf16) return body(bf16{}, bf16{});
  with_storage([&](auto a) { body(a, float{}); });
}

void CudaOps::embedding(const Tensor& out, const Tensor& weight,
                        const Tensor& ids) {
  check_matrix(out, dtype_, "embedding: out");
  check_matrix(weight, dtype_, "embedding: weight");
  check(out, dtype_, {out[0], weight[1]}, "embedding: out");
  check(ids, Dtype::i32, {out[0]}, "embedding: ids");
  with_storage([&]<class T>(T) {
    kernels::embedding<T>(launch_, rows_of<T>(out), as<const T>(weight),
                          as<const std::int32_t>(ids));
  });
}

void CudaOps::embedding_backward(const Tensor& dweight, const Tensor& dout,
                                 const Tensor& ids, Accumulate accumulate) {
  check_matrix(dweight, gradient_dtype(dweight, dtype_),
               "embedding_backward: dweight");
  check_matrix(dout, dtype_, "embedding_backward: dout");
  check(dout, dtype_, {dout[0], dweight[1]}, "embedding_backward: dout");
  check(ids, Dtype::i32, {dout[0]}, "embedding_backward: ids");
  void* scratch = scratch_.at_least(
      kernels::embedding_backward_bytes(dout[0], dout[1], dweight[0]));
  with_gradient(dweight, [&]<class T, class G>(T, G) {
    kernels::embedding_backward<T, G>(launch_, as<G>(dweight),
                                      rows_of<const T>(dout),
                                      as<const std::int32_t>(ids), dweight[0],
                                      accumulate == Accumulate::yes, scratch);
  });
}

void CudaOps::rmsnorm(const Tensor& y, const Tensor& residual,
                      const Tensor& inverse_rms, const Tensor& x,
                      const Tensor& add, const Tensor& weight) {
  check_matrix(x, dtype_, "rmsnorm: x");
  require(x[1] <= kernels::widest_rmsnorm,
          "rmsnorm: rows of {} elements; GPUs take up to {}", x[1],
          kernels::widest_rmsnorm);
  check(y, dtype_, x.shape, "rmsnorm: y");
  check(residual, dtype_, x.shape, "rmsnorm: residual");
  check(inverse_rms, Dtype::f32, {x[0]}, "rmsnorm: inverse_rms");
  check(weight, dtype_, {x[1]}, "rmsnorm: weight");
  if (add) check(add, dtype_, x.shape, "rmsnorm: add");
  with_storage([&]<class T>(T) {
    kernels::rmsnorm<T>(
        launch_, {as<T>(y), as<T>(residual), as<float>(inverse_rms),
                  rows_of<const T>(x), as<const T>(add), as<const T>(weight)});
  });
}

void CudaOps::rmsnorm_backward(const Tensor& dresidual, const Tensor& dweight,
                               const Tensor& dy, const Tensor& residual,
                               const Tensor& inverse_rms, const Tensor& weight,
                               Accumulate accumulate) {
  check_matrix(dy, dtype_, "rmsnorm_backward: dy");
  require(dy[1] <= kernels::widest_rmsnorm,
          "rmsnorm_backward: rows of {} elements; GPUs take up to {}", dy[1],
          kernels::widest_rmsnorm);
  check(dresidual, dtype_, dy.shape, "rmsnorm_backward: dresidual");
  check(dweight, gradient_dtype(dweight, dtype_), {dy[1]},
        "rmsnorm_backward: dweight");
  check(residual, dtype_, dy.shape, "rmsnorm_backward: residual");
  check(inverse_rms, Dtype::f32, {dy[0]}, "rmsnorm_backward: inverse_rms");
  check(weight, dtype_, {dy[1]}, "rmsnorm_backward: weight");
  void* scratch =
      scratch_.at_least(kernels::rmsnorm_backward_bytes(launch_, dy[0], dy[1]));
  with_gradient(dweight, [&]<class T, class G>(T, G) {
    kernels::rmsnorm_backward<T, G>(
        launch_,
        {as<T>(dresidual), as<const T>(dy), rows_of<const T>(residual),
         as<const float>(inverse_rms), as<const T>(weight)},
        as<G>(dweight), accumulate == Accumulate::yes, scratch);
  });
}

void CudaOps::linear(const Tensor& y, const Tensor& x, const Tensor& weight) {
  check_matrix(weight, dtype_, "linear: weight");
  check_matrix(x, dtype_, "linear: x");
  check(x, dtype_, {x[0], weight[1]}, "linear: x");
  check_wide(y, dtype_, x[0], weight[0], "linear: y");
  gemm_.multiply(operand(x), transposed(operand(weight)), y.data, dtype_, y[1],
                 /*accumulate=*/false);
}

void CudaOps::linear_backward_input(const Tensor& dx, const Tensor& dy,
                                    const Tensor& weight) {
  check_matrix(weight, dtype_, "linear_backward_input: weight");
  check_matrix(dx, dtype_, "linear_backward_input: dx");
  check(dx, dtype_, {dx[0], weight[1]}, "linear_backward_input: dx");
  check_wide(dy, dtype_, dx[0], weight[0], "linear_backward_input: dy");
  gemm_.multiply(operand(dy, weight[0]), operand(weight), dx.data, dtype_,
                 dx[1], /*accumulate=*/false);
}

void CudaOps::linear_backward_weight(const Tensor& dweight, const Tensor& dy,
                                     const Tensor& x, Accumulate accumulate) {
  check_matrix(dweight, gradient_dtype(dweight, dtype_),
               "linear_backward_weight: dweight");
  check_matrix(x, dtype_, "linear_backward_weight: x");
  check(x, dtype_, {x[0], dweight[1]}, "linear_backward_weight: x");
  check_wide(dy, dtype_, x[0], dweight[0], "linear_backward_weight: dy");
  gemm_.multiply(transposed(operand(dy, dweight[0])), operand(x), dweight.data,
                 dweight.dtype, dweight[1], accumulate == Accumulate::yes);
}

void CudaOps::rope(const Heads& x, const Tensor& table, Pass pass) {
  check_heads(x, dtype_, "rope: x");
  require(x.head_dim % 2 == 0, "rope: heads of {}, wanted an even number",
          x.head_dim);
  require(table.shape.rank() == 3 && table[0] >= x.tokens,
          "rope: a table of shape {} for {} tokens", table.shape.text(),
          x.tokens);
  check(table, Dtype::f32, {table[0], x.head_dim / 2, 2}, "rope: table");
  with_storage([&]<class T>(T) {
    kernels::rope<T>(
        launch_,
        {static_cast<T*>(x.data), x.batch, x.tokens, x.heads, x.head_dim,
         x.batch_stride, x.token_stride, x.head_stride, as<const float>(table),
         pass == Pass::forward ? 1.0f : -1.0f});
  });
}

void CudaOps::attention(const Heads& o, const Tensor& lse, const Heads& q,
                        const Heads& k, const Heads& v, bool causal) {
  check_attention(lse, q, k, v, causal, dtype_);
  check_heads_like(o, q, "attention: o");
  attention::forward(launch_.stream, precision_, o, as<float>(lse), q, k, v,
                     causal);
}

void CudaOps::attention_backward(const Heads& dq, const Heads& dk,
                                 const Heads& dv, const Heads& dout,
                                 const Heads& o, const Tensor& lse,
                                 const Heads& q, const Heads& k, const Heads& v,
                                 bool causal) {
  check_attention_backward(dq, dk, dv, dout, o, lse, q, k, v, causal, dtype_);
  const attention::BackwardHeads heads{dq, dk, dv, dout, o, q, k, v};
  void* const scratch = scratch_.at_least(
      attention::backward_scratch_bytes(precision_, heads, causal));
  attention::backward(launch_.stream, precision_, heads, as<const float>(lse),
                      scratch, causal);
}

void CudaOps::matmul(const Heads& c, const Heads& a, Transpose op_a,
                     const Heads& b, Transpose op_b) {
  check_matmul(c, a, op_a, b, op_b, dtype_);
  const auto at = [](const Heads& x, std::int64_t sequence) {
    return static_cast<std::byte*>(x.data) +
           sequence * x.batch_stride * bytes_of(x.dtype);
  };
  // All heads of a sequence at once.
  const auto factor = [&](const Heads& x, Transpose op, std::int64_t sequence) {
    const Operand matrix{at(x, sequence), x.dtype,        x.tokens,
                         x.head_dim,      x.token_stride, false};
    return op == Transpose::yes ? transposed(matrix) : matrix;
  };
  for (std::int64_t sequence = 0; sequence < c.batch; ++sequence) {
    gemm_.multiply(factor(a, op_a, sequence), factor(b, op_b, sequence),
                   at(c, sequence), dtype_, c.token_stride,
                   /*accumulate=*/false,
                   {c.heads, a.head_stride, b.head_stride, c.head_stride});
  }
}

void CudaOps::softmax(const Tensor& scores, const Tensor& lse, float scale,
                      bool causal) {
  check_scores(scores, dtype_, causal, "softmax: scores");
  check(lse, Dtype::f32, {scores[0], scores[1], scores[2]}, "softmax: lse");
  with_storage([&]<class T>(T) {
    kernels::softmax<T>(launch_,
                        {as<T>(scores), lse.elements(), scores[2], scores[3]},
                        as<float>(lse), scale, causal);
  });
}

void CudaOps::softmax_backward(const Tensor& dp, const Tensor& p, float scale) {
  check_scores(p, dtype_, /*causal=*/false, "softmax_backward: p");
  check(dp, dtype_, p.shape, "softmax_backward: dp");
  with_storage([&]<class T>(T) {
    kernels::softmax_backward<T>(launch_,
                                 {as<T>(dp), p.elements() / p[3], p[2], p[3]},
                                 as<const T>(p), scale);
  });
}

void CudaOps::swiglu(const Tensor& y, const Tensor& gate_up) {
  check_matrix(y, dtype_, "swiglu: y");
  check(gate_up, dtype_, {y[0], 2 * y[1]}, "swiglu: gate_up");
  with_storage([&]<class T>(T) {
    kernels::swiglu<T>(launch_, rows_of<T>(y), as<const T>(gate_up));
  });
}

void CudaOps::swiglu_backward(const Tensor& dgate_up, const Tensor& dy,
                              const Tensor& gate_up) {
  check_matrix(dy, dtype_, "swiglu_backward: dy");
  check(gate_up, dtype_, {dy[0], 2 * dy[1]}, "swiglu_backward: gate_up");
  check(dgate_up, dtype_, {dy[0], 2 * dy[1]}, "swiglu_backward: dgate_up");
  with_storage([&]<class T>(T) {
    kernels::swiglu_backward<T>(launch_, rows_of<T>(dy), as<T>(dgate_up),
                                as<const T>(gate_up));
  });
}

void CudaOps::cross_entropy(const Tensor& losses, const Tensor& logits,
                            const Tensor& targets, std::int64_t vocabulary) {
  check_matrix(logits, dtype_, "cross_entropy: logits");
  check_wide(logits, dtype_, logits[0], vocabulary, "cross_entropy: logits");
  check(losses, Dtype::f32, {logits[0]}, "cross_entropy: losses");
  check(targets, Dtype::i32, {logits[0]}, "cross_entropy: targets");
  with_storage([&]<class T>(T) {
    kernels::cross_entropy<T>(launch_, as<float>(losses),
                              rows_of<const T>(logits, vocabulary),
                              as<const std::int32_t>(targets));
  });
}

void CudaOps::cross_entropy_backward(const Tensor& losses, const Tensor& logits,
                                     const Tensor& targets,
                                     std::int64_t vocabulary, float scale) {
  check_matrix(logits, dtype_, "cross_entropy_backward: logits");
  check_wide(logits, dtype_, logits[0], vocabulary,
             "cross_entropy_backward: logits");
  check(losses, Dtype::f32, {logits[0]}, "cross_entropy_backward: losses");
  check(targets, Dtype::i32, {logits[0]}, "cross_entropy_backward: targets");
  with_storage([&]<class T>(T) {
    kernels::cross_entropy_backward<T>(launch_, as<float>(losses),
                                       rows_of<T>(logits, vocabulary),
                                       as<const std::int32_t>(targets), scale);
  });
}

void CudaOps::add_sum(const Tensor& total, const Tensor& x, double scale) {
  check_count(total, Dtype::f64, 1, "add_sum: total");
  check_count(x, Dtype::f32, x.elements(), "add_sum: x");
  kernels::add_sum(launch_, as<double>(total), as<const float>(x), x.elements(),
                   scale, scratch_.at_least(kernels::reduction_bytes));
}

void CudaOps::add_sum_of_squares(const Tensor& total, const Tensor& x) {
  check_count(total, Dtype::f64, 1, "add_sum_of_squares: total");
  check_count(x, x.dtype, x.elements(), "add_sum_of_squares: x");
  void* scratch = scratch_.at_least(kernels::reduction_bytes);
  with_type(x, "add_sum_of_squares: x", [&]<class T>(T) {
    kernels::add_sum_of_squares(launch_, as<double>(total), as<const T>(x),
                                x.elements(), scratch);
  });
}

void CudaOps::clip_factor(const Tensor& factor, const Tensor& sum_of_squares,
                          double clip) {
  check_count(factor, Dtype::f32, 1, "clip_factor: factor");
  check_count(sum_of_squares, Dtype::f64, 1, "clip_factor: sum_of_squares");
  kernels::clip_factor(launch_, as<float>(factor),
                       as<const double>(sum_of_squares), clip);
}

void CudaOps::adamw(const AdamwRange& range, const Tensor& scalars,
                    const Tensor& factor) {
  check_adamw(range, scalars, factor, dtype_);
  const std::int64_t count = range.parameters.elements();
  if (count == 0) return;
  with_gradient(range.gradients, [&]<class T, class G>(T, G) {
    kernels::adamw<T, G>(
        launch_, {as<T>(range.parameters), as<std::int16_t>(range.remainder),
                  as<const G>(range.gradients), as<float>(range.first_moment),
                  as<float>(range.second_moment), count, range.weight_decay,
                  as<const float>(scalars), as<const float>(factor)});
  });
}

void CudaOps::add(const Tensor& sum, const Tensor& x) {
  const std::int64_t n = sum.elements();
  check_count(sum, sum.dtype, n, "add: sum");
  check_count(x, x.dtype, n, "add: x");
  with_type(sum, "add: sum", [&]<class To>(To) {
    with_type(x, "add: x", [&]<class From>(From) {
      if (n > 0) kernels::add(launch_, as<To>(sum), as<const From>(x), n);
    });
  });
}

void CudaOps::weighted_sum(const Tensor& y, const Tensor& x,
                           const Tensor& weight) {
  check_matrix(x, dtype_, "weighted_sum: x");
  check(y, dtype_, {x[0]}, "weighted_sum: y");
  check(weight, dtype_, {x[1]}, "weighted_sum: weight");
  with_storage([&]<class T>(T) {
    kernels::weighted_sum<T>(launch_, as<T>(y), rows_of<const T>(x),
                             as<const T>(weight));
  });
}

void CudaOps::weighted_sum_backward(const Tensor& dx, const Tensor& dweight,
                                    const Tensor& dy, const Tensor& x,
                                    const Tensor& weight) {
  check_weighted_sum_backward(dx, dweight, dy, x, weight, dtype_);
  void* scratch = scratch_.at_least(
      kernels::weighted_sum_backward_bytes(launch_, x[0], x[1]));
  with_storage([&]<class T>(T) {
    kernels::weighted_sum_backward<T>(
        launch_, rows_of<T>(dx), as<float>(dweight), as<const T>(dy),
        as<const T>(x), as<const T>(weight), scratch);
  });
}

void CudaOps::cast(const Tensor& out, const Tensor& x) {
  const std::int64_t n = x.elements();
  check_count(out, out.dtype, n, "cast: out");
  check_count(x, x.dtype, n, "cast: x");
  with_type(out, "cast: out", [&]<class To>(To) {
    with_type(x, "cast: x", [&]<class From>(From) {
      if (n > 0) kernels::cast(launch_, as<To>(out), as<const From>(x), n);
    });
  });
}

void CudaOps::split_weights(const Tensor& parameters, const Tensor& remainder,
                            const Tensor& values) {
  const std::int64_t n = values.elements();
  check_count(values, Dtype::f32, n, "split_weights: values");
  check_weights(parameters, remainder, n, /*remainder_needed=*/false,
                "split_weights: parameters");
  if (parameters.dtype == Dtype::f32) return cast(parameters, values);
  if (n == 0) return;
  kernels::split_weights(launch_, as<bf16>(parameters),
                         as<std::int16_t>(remainder), as<const float>(values),
                         n);
}

void CudaOps::join_weights(const Tensor& values, const Tensor& parameters,
                           const Tensor& remainder) {
  const std::int64_t n = values.elements();
  check_count(values, Dtype::f32, n, "join_weights: values");
  check_weights(parameters, remainder, n, /*remainder_needed=*/false,
                "join_weights: parameters");
  if (!remainder) return cast(values, parameters);
  kernels::join_weights(launch_, as<float>(values), as<const bf16>(parameters),
                        as<const std::int16_t>(remainder), n);
}

Backend make_cuda_backend(int ordinal, Precision precision,
                          const std::string& gemm_cache) {
  auto device = std::make_unique<CudaDevice>(ordinal);
  auto ops = std::make_unique<CudaOps>(*device, precision, gemm_cache);
  return {std::move(device), std::move(ops)};
}

}  // namespace lockstep
