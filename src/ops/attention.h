#pragma once

#include <cstdint>
#include <memory>

#include "ops/ops.h"

namespace lockstep {

// How attention is computed. Both give the same results but for rounding.
//   flash  Ops::attention: tile by tile, memory O(T)
//   naive  scores as whole matrices, memory O(T²): the baseline that flash
//          attention is compared with
enum class AttentionKind { flash, naive };

// Attention as the model calls it; arguments as those of Ops::attention and
// Ops::attention_backward.
class Attention {
 public:
  struct Saved {  // by the forward pass
    Heads q, k, v, o;
    Tensor lse;
  };
  struct Gradients {
    Heads dq, dk, dv, dout;
  };
  virtual ~Attention() = default;
  virtual void forward(const Saved& at, bool causal) = 0;
  virtual void backward(const Gradients& gradients, const Saved& at,
                        bool causal) = 0;
};

// The backend outlives it. naive takes memory for the scores of the largest
// call so far, [B, H, Tq, Tk] in the compute dtype, and once more for their
// gradients; it computes scores again in the backward pass, so that layers
// share that memory.
std::unique_ptr<Attention> make_attention(AttentionKind kind, Backend& backend);

}  // namespace lockstep
