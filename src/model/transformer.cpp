#include "model/transformer.h"

#include <algorithm>

namespace lockstep {
namespace {

// Members of a block's unit, in their order there.
enum Member { ln1, q_proj, k_proj, v_proj, output_proj, ln2, w1, w3, w2 };
// Members of the head's unit.
enum HeadMember { ln_final, lm_head };

// Members first…last of a unit, which are adjacent, as one matrix.
Tensor stacked(const Unit& unit, const Tensor& flat, Member first,
               Member last) {
  const Parameter& top = unit.members[first];
  std::int64_t rows = 0;
  for (int i = first; i <= last; ++i) rows += unit.members[i].shape[0];
  return flat.range(top.offset, rows * top.shape[1])
      .reshaped({rows, top.shape[1]});
}

// q and k of packed rows [N, 3·H·D], which are adjacent, as one set of heads:
// both are rotated.
Heads query_and_key(const Tensor& qkv, std::int64_t batch, std::int64_t heads) {
  Heads both = packed_heads(qkv, 0, batch, heads);
  both.heads *= 2;
  return both;
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, Dtype compute_dtype,
                         Backend& backend, ParameterStore& store,
                         ParameterHooks& hooks, std::int64_t batch, bool trains,
                         const Execution& execution)
    : config_(config),
      device_(*backend.device),
      ops_(*backend.ops),
      attention_(make_attention(execution.attention, backend)),
      store_(store),
      hooks_(hooks),
      trains_(trains),
      recompute_(trains ? execution.recompute : Recompute{}),
      dtype_(compute_dtype),
      rows_(batch * config.context_length) {
  const std::int64_t n = rows_;
  const std::int64_t d = config_.d_model;

  const std::vector<float> angles = rope_table(
      config_.context_length, config_.head_dim(), config_.rope_theta);
  rope_table_ = keep(
      Dtype::f32, {config_.context_length, config_.head_dim() / 2, 2}, "RoPE");
  upload(device_, rope_table_, angles);

  const std::int64_t kept = trains_ ? config_.num_layers : 1;
  shared_.resize(recompute_.blocks);
  for (std::int64_t i = 0; i < kept; ++i) blocks_.push_back(make_block(i));
  branch_ = keep(dtype_, {n, d}, "branch");
  wide_ = keep(dtype_, {n, std::max(3 * d, config_.d_ff)},
               "a wide activation or its gradient");
  final_residual_ = keep(dtype_, {n, d}, "final residual");
  final_inverse_rms_ = keep(Dtype::f32, {n}, "final inverse rms");
  final_norm_ = keep(dtype_, {n, d}, "final norm");

  const std::int64_t padded_vocabulary = round_up(config_.vocab_size, 8);
  chunk_ = std::clamp<std::int64_t>(
      execution.logits_bytes / (padded_vocabulary * bytes_of(dtype_)), 1, n);
  logits_ = keep(dtype_, {chunk_, padded_vocabulary}, "logits of a chunk");
  losses_ = keep(Dtype::f32, {n}, "losses");

  if (trains_) {
    dresidual_ = keep(dtype_, {n, d}, "gradient of the residual stream");
    dbranch_ = keep(dtype_, {n, d}, "gradient of a branch");
  }
}

Tensor Transformer::keep(Dtype dtype, Shape shape, const char* name) {
  memory_.push_back(
      device_.allocate(dtype, shape, Category::activations, name));
  return memory_.back().tensor(dtype, shape);
}

Transformer::Block Transformer::make_block(std::int64_t layer) {
  const std::int64_t n = rows_;
  const std::int64_t d = config_.d_model;
  const std::int64_t ff = config_.d_ff;
  const std::int64_t t = config_.context_length;
  const RecomputeLevel level = recompute_.level;
  const bool all = level == RecomputeLevel::block;
  const bool norms = all || level == RecomputeLevel::norms;
  const bool attention = all || level == RecomputeLevel::attention;
  const bool feed_forward = all || level == RecomputeLevel::ffn;
  const bool inside = all && layer % recompute_.blocks != 0;

  Block& shared = shared_[layer % recompute_.blocks];
  Block block;
  const auto part = [&](Tensor Block::*member, bool again, Dtype dtype,
                        Shape shape, const char* name) {
    Tensor& place = again ? shared.*member : block.*member;
    if (!place) place = keep(dtype, shape, name);
    block.*member = place;
  };
  part(&Block::residual1, inside, dtype_, {n, d}, "residual before ln1");
  part(&Block::inverse_rms1, all, Dtype::f32, {n}, "inverse rms of ln1");
  part(&Block::norm1, norms || attention, dtype_, {n, d}, "ln1");
  part(&Block::qkv, attention, dtype_, {n, 3 * d}, "q, k, v");
  part(&Block::attention, attention, dtype_, {n, d}, "attention");
  part(&Block::lse, attention, Dtype::f32, {n / t, config_.num_heads, t},
       "log-sum-exp");
  part(&Block::residual2, all, dtype_, {n, d}, "residual before ln2");
  part(&Block::inverse_rms2, all, Dtype::f32, {n}, "inverse rms of ln2");
  part(&Block::norm2, norms || feed_forward, dtype_, {n, d}, "ln2");
  part(&Block::gate_up, feed_forward, dtype_, {n, 2 * ff}, "gate and up");
  return block;
}

void Transformer::forward(const Tensor& inputs) {
  rows_ = inputs.elements();
  Unit& embedding = store_.embedding();
  Stream stream{rows(block(0).residual1), {}};
  hooks_.acquire(embedding, Pass::forward);
  ops_.embedding(stream.x, embedding.members[0].value(), inputs);
  hooks_.release(embedding, Pass::forward);
  for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
    stream = forward_block(layer, stream);
  }
}

Transformer::Stream Transformer::forward_block(std::int64_t layer,
                                               const Stream& in) {
  Unit& unit = store_.block(layer);
  const ScopedRange range(device_, unit.name.c_str());
  const Block& at = block(layer);
  const Tensor branch = rows(branch_);
  hooks_.acquire(unit, Pass::forward);
  compute_block(unit, at, in);
  const Tensor hidden = wide(config_.d_ff);
  ops_.swiglu(hidden, rows(at.gate_up));
  ops_.linear(branch, hidden, unit.members[w2].value());
  hooks_.release(unit, Pass::forward);
  return {rows(at.residual2), branch};
}

void Transformer::compute_block(const Unit& unit, const Block& at,
                                const Stream& in) {
  const Tensor branch = rows(branch_);
  compute_norm1(unit, at, in);
  compute_attention(unit, at);
  ops_.linear(branch, rows(at.attention), unit.members[output_proj].value());
  compute_norm2(unit, at, {rows(at.residual1), branch});
  compute_gate_up(unit, at);
}

void Transformer::compute_norm1(const Unit& unit, const Block& at,
                                const Stream& in) {
  ops_.rmsnorm(rows(at.norm1), rows(at.residual1), rows(at.inverse_rms1), in.x,
               in.add, unit.members[ln1].value());
}

void Transformer::compute_attention(const Unit& unit, const Block& at) {
  const ScopedRange range(device_, "attention");
  const std::int64_t heads = config_.num_heads;
  const std::int64_t batch = rows_ / config_.context_length;
  const Tensor qkv = rows(at.qkv);
  ops_.linear(qkv, rows(at.norm1),
              stacked(unit, unit.parameters, q_proj, v_proj));
  ops_.rope(query_and_key(qkv, batch, heads), rope_table_, Pass::forward);
  attention_->forward(saved_attention(at), /*causal=*/true);
}

Attention::Saved Transformer::saved_attention(const Block& at) const {
  const std::int64_t heads = config_.num_heads;
  const std::int64_t batch = rows_ / config_.context_length;
  const Tensor qkv = rows(at.qkv);
  return {packed_heads(qkv, 0, batch, heads),
          packed_heads(qkv, 1, batch, heads),
          packed_heads(qkv, 2, batch, heads),
          row_heads(rows(at.attention), batch, heads), at.lse.rows(0, batch)};
}

void Transformer::compute_norm2(const Unit& unit, const Block& at,
                                const Stream& in) {
  ops_.rmsnorm(rows(at.norm2), rows(at.residual2), rows(at.inverse_rms2), in.x,
               in.add, unit.members[ln2].value());
}

void Transformer::compute_gate_up(const Unit& unit, const Block& at) {
  const ScopedRange range(device_, "feed-forward");
  ops_.linear(rows(at.gate_up), rows(at.norm2),
              stacked(unit, unit.parameters, w1, w3));
}

void Transformer::compute_again(const Unit& unit, const Block& at,
                                const Stream& in) {
  // Norms from sums that were kept: the input and nothing to add.
  const Stream kept1{rows(at.residual1), {}}, kept2{rows(at.residual2), {}};
  switch (recompute_.level) {
    case RecomputeLevel::none:
      return;
    case RecomputeLevel::norms:
      compute_norm1(unit, at, kept1);
      compute_norm2(unit, at, kept2);
      return;
    case RecomputeLevel::ffn:
      compute_norm2(unit, at, kept2);
      compute_gate_up(unit, at);
      return;
    case RecomputeLevel::attention:
      compute_norm1(unit, at, kept1);
      compute_attention(unit, at);
      return;
    case RecomputeLevel::block:
      compute_block(unit, at, in);
      return;
  }
}

void Transformer::final_norm() {
  ops_.rmsnorm(rows(final_norm_), rows(final_residual_),
               rows(final_inverse_rms_),
               rows(block(config_.num_layers - 1).residual2), rows(branch_),
               store_.head().members[ln_final].value());
}

void Transformer::loss(const Tensor& targets, const Tensor& total,
                       double weight, Gradient gradient) {
  Unit& unit = store_.head();
  const bool backward = gradient == Gradient::yes;
  const Pass pass = backward ? Pass::backward : Pass::forward;
  const double scale = weight / double(rows_);
  const std::int64_t vocabulary = config_.vocab_size;
  hooks_.acquire(unit, pass);
  final_norm();

  const Tensor head = unit.members[lm_head].value();
  for (std::int64_t row = 0; row < rows_; row += chunk_) {
    const std::int64_t count = std::min(chunk_, rows_ - row);
    const Tensor x = final_norm_.rows(row, count);
    const Tensor logits = logits_.rows(0, count);
    const Tensor losses = losses_.range(row, count);
    const Tensor wanted = targets.range(row, count);
    ops_.linear(logits, x, head);
    if (!backward) {
      ops_.cross_entropy(losses, logits, wanted, vocabulary);
      continue;
    }
    ops_.cross_entropy_backward(losses, logits, wanted, vocabulary,
                                static_cast<float>(scale));
    ops_.linear_backward_weight(unit.members[lm_head].gradient(), logits, x,
                                row > 0 ? Accumulate::yes : unit.accumulate);
    ops_.linear_backward_input(dbranch_.rows(row, count), logits, head);
  }
  ops_.add_sum(total, losses_.range(0, rows_), scale);

  if (backward) {
    hooks_.gradient_ready(unit.members[lm_head]);
    const Tensor dresidual = dresidual_.rows(0, rows_);
    device_.zero(dresidual);
    ops_.rmsnorm_backward(
        dresidual, unit.members[ln_final].gradient(), dbranch_.rows(0, rows_),
        final_residual_.rows(0, rows_), final_inverse_rms_.range(0, rows_),
        unit.members[ln_final].value(), unit.accumulate);
    hooks_.gradient_ready(unit.members[ln_final]);
  }
  hooks_.release(unit, pass);
}

void Transformer::backward(const Tensor& inputs) {
  // Blocks from one whose input was kept to the next such, the last of them
  // first. All but that one go through a forward pass of their own again.
  for (std::int64_t last = config_.num_layers - 1; last >= 0;) {
    const std::int64_t first = last / recompute_.blocks * recompute_.blocks;
    Stream stream{rows(block(first).residual1), {}};
    for (std::int64_t layer = first; layer < last; ++layer) {
      stream = forward_block(layer, stream);
    }
    backward_block(last, stream, /*again=*/true);
    while (--last >= first) backward_block(last, {}, /*again=*/false);
  }
  Unit& embedding = store_.embedding();
  hooks_.acquire(embedding, Pass::backward);
  ops_.embedding_backward(embedding.members[0].gradient(),
                          dresidual_.rows(0, rows_), inputs,
                          embedding.accumulate);
  hooks_.gradient_ready(embedding.members[0]);
  hooks_.release(embedding, Pass::backward);
}

void Transformer::backward_block(std::int64_t layer, const Stream& in,
                                 bool again) {
  Unit& unit = store_.block(layer);
  const ScopedRange range(device_, unit.name.c_str());
  const Block& at = block(layer);
  const std::int64_t d = config_.d_model;
  const std::int64_t heads = config_.num_heads;
  const std::int64_t batch = rows_ / config_.context_length;
  const auto weight = [&](Member member) {
    return unit.members[member].value();
  };
  const auto gradient = [&](Member member) {
    return unit.members[member].gradient();
  };
  // Says that the gradients of members first…last are complete.
  const auto ready = [&](Member first, Member last) {
    for (int i = last; i >= first; --i) hooks_.gradient_ready(unit.members[i]);
  };
  hooks_.acquire(unit, Pass::backward);
  if (again) compute_again(unit, at, in);
  const Tensor dresidual = rows(dresidual_), dbranch = rows(dbranch_);

  // The feed-forward half: residual + w2·swiglu(w1, w3 of ln2).
  // SwiGLU's product wasn't kept: its backward pass gives it once more.
  const Tensor hidden = wide(config_.d_ff), dgate_up = rows(at.gate_up);
  const Tensor norm2 = rows(at.norm2);
  ops_.linear_backward_input(hidden, dresidual, weight(w2));
  ops_.swiglu_backward(dgate_up, hidden, rows(at.gate_up));
  ops_.linear_backward_weight(gradient(w2), dresidual, hidden, unit.accumulate);
  ready(w2, w2);
  ops_.linear_backward_weight(stacked(unit, unit.gradients, w1, w3), dgate_up,
                              norm2, unit.accumulate);
  ready(w1, w3);
  ops_.linear_backward_input(dbranch, dgate_up,
                             stacked(unit, unit.parameters, w1, w3));
  ops_.rmsnorm_backward(dresidual, gradient(ln2), dbranch, rows(at.residual2),
                        rows(at.inverse_rms2), weight(ln2), unit.accumulate);
  ready(ln2, ln2);

  // The attention half: residual + output_proj·attention(q, k, v of ln1).
  const Tensor attention = rows(at.attention);
  const Tensor dqkv = wide(3 * d), norm1 = rows(at.norm1);
  ops_.linear_backward_weight(gradient(output_proj), dresidual, attention,
                              unit.accumulate);
  ready(output_proj, output_proj);
  ops_.linear_backward_input(dbranch, dresidual, weight(output_proj));
  attention_->backward(
      {packed_heads(dqkv, 0, batch, heads), packed_heads(dqkv, 1, batch, heads),
       packed_heads(dqkv, 2, batch, heads), row_heads(dbranch, batch, heads)},
      saved_attention(at), /*causal=*/true);
  ops_.rope(query_and_key(dqkv, batch, heads), rope_table_, Pass::backward);
  ops_.linear_backward_weight(stacked(unit, unit.gradients, q_proj, v_proj),
                              dqkv, norm1, unit.accumulate);
  ready(q_proj, v_proj);
  ops_.linear_backward_input(dbranch, dqkv,
                             stacked(unit, unit.parameters, q_proj, v_proj));
  ops_.rmsnorm_backward(dresidual, gradient(ln1), dbranch, rows(at.residual1),
                        rows(at.inverse_rms1), weight(ln1), unit.accumulate);
  ready(ln1, ln1);

  hooks_.release(unit, Pass::backward);
}

Tensor Transformer::logits(std::int64_t row) {
  Unit& unit = store_.head();
  hooks_.acquire(unit, Pass::forward);
  final_norm();
  const Tensor out = logits_.rows(0, 1);
  ops_.linear(out, final_norm_.rows(row, 1), unit.members[lm_head].value());
  hooks_.release(unit, Pass::forward);
  return out.range(0, config_.vocab_size).reshaped({1, config_.vocab_size});
}

}  // namespace lockstep
