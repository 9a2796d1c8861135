#pragma once

#include <cuda_runtime_api.h>

#include "ops/ops.h"

namespace lockstep::attention {

// Ops::attention on a stream. Picks the kernel for the dtype, the head dim
// and the alignment; an Error where there is none.
void forward(cudaStream_t stream, const Heads& o, float* lse, const Heads& q,
             const Heads& k, const Heads& v, bool causal);

struct BackwardHeads {
  Heads dq, dk, dv, dout, o, q, k, v;
};
// Ops::attention_backward; delta f32[B, H, Tq] is scratch.
void backward(cudaStream_t stream, const BackwardHeads& heads, const float* lse,
              float* delta, bool causal);

}  // namespace lockstep::attention
