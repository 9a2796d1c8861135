#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/model_config.h"
#include "model/parameter_hooks.h"
#include "model/parameter_store.h"
#include "ops/attention.h"
#include "ops/ops.h"

namespace lockstep {

// How a model's passes are computed, which changes no result but by rounding.
struct Execution {
  Recompute recompute;
  AttentionKind attention = AttentionKind::flash;
  // Most bytes of logits at a time: head and loss go through the rows in
  // chunks.
  std::int64_t logits_bytes = std::int64_t{64} << 20;
};

// A decoder-only language model: pre-norm blocks of causal attention with RoPE
// and of SwiGLU, RMSNorm, an untied head. Forward and backward are written out
// once against Ops; parameters come and go through ParameterHooks.
//
// N = batch · T rows. A micro-step is
//   forward(inputs); loss(targets, …, Gradient::yes); backward(inputs);
// each in order on the compute lane, without waiting for it.
class Transformer {
 public:
  // Allocates what activations need for `batch` sequences; where `trains` is
  // false, one block's worth instead of all blocks'.
  Transformer(const ModelConfig& config, Dtype compute_dtype, Backend& backend,
              ParameterStore& store, ParameterHooks& hooks, std::int64_t batch,
              bool trains, const Execution& execution = {});

  // inputs i32[N], N ≤ batch · T and a multiple of T. Leaves the residual
  // stream of the last block for loss() or logits().
  void forward(const Tensor& inputs);

  enum class Gradient { no, yes };
  // total f64[1] += weight · mean over the N rows of the cross-entropy of
  // targets i32[N]. With Gradient::yes the backward pass of the head and the
  // final norm is done too, for the gradient of weight · mean.
  void loss(const Tensor& targets, const Tensor& total, double weight,
            Gradient gradient);
  // The rest of the backward pass, after loss(…, Gradient::yes). Gradients of
  // weights accumulate into the store's.
  void backward(const Tensor& inputs);

  // After forward(): logits of row `row`, a[1, V], valid until the next call.
  Tensor logits(std::int64_t row);

  const ModelConfig& config() const { return config_; }

 private:
  // What the backward pass of one block needs: a = compute dtype. What it
  // computes again lies where other blocks have theirs too.
  struct Block {
    Tensor residual1;     // a[N, d], input of ln1
    Tensor inverse_rms1;  // f32[N]
    Tensor norm1;         // a[N, d]
    Tensor qkv;           // a[N, 3d], q and k rotated
    Tensor attention;     // a[N, d]
    Tensor lse;           // f32[batch, H, T]
    Tensor residual2;     // a[N, d], input of ln2
    Tensor inverse_rms2;  // f32[N]
    Tensor norm2;         // a[N, d]
    Tensor gate_up;       // a[N, 2F]
  };

  Tensor keep(Dtype dtype, Shape shape, const char* name);
  Block make_block(std::int64_t layer);
  Block& block(std::int64_t layer) { return blocks_[trains_ ? layer : 0]; }

  // The residual stream on its way from block to block: x + add.
  struct Stream {
    Tensor x;
    Tensor add;  // empty: nothing
  };
  // A block's forward pass, and the stream after it.
  Stream forward_block(std::int64_t layer, const Stream& in);
  // again: what was not kept is to be computed from the block's input.
  void backward_block(std::int64_t layer, const Stream& in, bool again);
  // A block up to SwiGLU, whose product goes on: into what `at` has.
  void compute_block(const Unit& unit, const Block& at, const Stream& in);
  void compute_norm1(const Unit& unit, const Block& at, const Stream& in);
  void compute_attention(const Unit& unit, const Block& at);
  Attention::Saved saved_attention(const Block& at) const;
  void compute_norm2(const Unit& unit, const Block& at, const Stream& in);
  void compute_gate_up(const Unit& unit, const Block& at);
  // What was not kept for the backward pass of a block with this input.
  void compute_again(const Unit& unit, const Block& at, const Stream& in);
  Tensor rows(const Tensor& of_batch) const { return of_batch.rows(0, rows_); }
  Tensor wide(std::int64_t width) const {
    return wide_.range(0, rows_ * width).reshaped({rows_, width});
  }
  void final_norm();

  ModelConfig config_;
  Device& device_;
  Ops& ops_;
  std::unique_ptr<Attention> attention_;
  ParameterStore& store_;
  ParameterHooks& hooks_;
  bool trains_;
  Recompute recompute_;
  Dtype dtype_;        // of activations
  std::int64_t rows_;  // N of the batch in work
  std::vector<Buffer> memory_;

  std::vector<Block> blocks_;
  std::vector<Block> shared_;  // where blocks have what they do not keep
  Tensor rope_table_;          // f32[T, D/2, 2]
  Tensor branch_;  // a[N, d]: what a block's half adds to the residual
  Tensor wide_;  // a[N, max(3d, F)]: SwiGLU's product, and the gradients of it
                 // and of qkv
  Tensor final_residual_, final_inverse_rms_, final_norm_;
  Tensor losses_;       // f32[N]
  std::int64_t chunk_;  // rows of logits at a time
  Tensor logits_;       // a[chunk, V padded to a multiple of 8]

  // Gradients of activations.
  Tensor dresidual_;  // a[N, d]: of the residual stream
  Tensor dbranch_;    // a[N, d]: of norms and of attention's output
};

}  // namespace lockstep
