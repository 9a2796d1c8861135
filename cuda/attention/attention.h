#pragma once

#include <cuda_runtime_api.h>

#include "ops/ops.h"

namespace lockstep::attention {

// Ops::attention on a stream. Picks the kernels for the precision, the head dim
// and the alignment; an Error where there are none.
void forward(cudaStream_t stream, Precision precision, const Heads& o,
             float* lse, const Heads& q, const Heads& k, const Heads& v,
             bool causal);

struct BackwardHeads {
  Heads dq, dk, dv, dout, o, q, k, v;
};
// Ops::attention_backward, with so much scratch memory.
std::int64_t backward_scratch_bytes(Precision precision,
                                    const BackwardHeads& heads, bool causal);
void backward(cudaStream_t stream, Precision precision,
              const BackwardHeads& heads, const float* lse, void* scratch,
              bool causal);

}  // namespace lockstep::attention
