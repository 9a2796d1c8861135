#include "cuda/attention/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "cuda/attention/kernels.h"

namespace lockstep::attention {
namespace {

Extents extents_of(const Heads& q, const Heads& k, bool causal) {
  constexpr int widest_head = 256;
  constexpr std::int64_t most_tokens = std::numeric_limits<int>::max() / 2;
  require(q.head_dim <= widest_head,
          "attention: heads of {}; {} is the most on a GPU", q.head_dim,
          widest_head);
  require(std::max(q.tokens, k.tokens) <= most_tokens,
          "attention: {} tokens; {} is the most", std::max(q.tokens, k.tokens),
          most_tokens);
  return {.batch = q.batch,
          .heads = q.heads,
          .head_dim = static_cast<int>(q.head_dim),
          .q_tokens = static_cast<int>(q.tokens),
          .k_tokens = static_cast<int>(k.tokens),
          .causal = causal,
          .scale = static_cast<float>(1 / std::sqrt(double(q.head_dim)))};
}

// T may be const.
template <class T>
View<T> view(const Heads& heads) {
  return {static_cast<T*>(heads.data), heads.batch_stride, heads.token_stride,
          heads.head_stride};
}

bool aligned_to_16_bytes(const Heads& heads) {
  return reinterpret_cast<std::uintptr_t>(heads.data) % 16 == 0 &&
         heads.batch_stride % 8 == 0 && heads.token_stride % 8 == 0 &&
         heads.head_stride % 8 == 0;
}

template <std::size_t n>
bool suits_tensor_cores(const std::array<Heads, n>& all) {
  return all[0].head_dim <= 128 && all[0].head_dim % 8 == 0 &&
         std::all_of(all.begin(), all.end(), aligned_to_16_bytes);
}

// Head dims of up to 32 would be half zeros in the tiles of the kernels for
// Hopper.
bool suits_hopper(int head_dim) {
  return head_dim > 32 && is_hopper();
}

void forward_by_tensor_cores(cudaStream_t stream,
                             const Forward<bf16>& problem) {
  suits_hopper(problem.extents.head_dim) ? hopper_forward(stream, problem)
                                         : mma_forward(stream, problem);
}

void backward_by_tensor_cores(cudaStream_t stream,
                              const Backward<bf16>& problem) {
  if (suits_hopper(problem.extents.head_dim)) {
    hopper_backward(stream, problem);
  } else {
    compute_delta(stream, problem);
    mma_backward(stream, problem);
  }
}

template <class T>
Forward<T> forward_problem(const Heads& o, float* lse, const Heads& q,
                           const Heads& k, const Heads& v, bool causal) {
  return {extents_of(q, k, causal), view<T>(o),       lse,
          view<const T>(q),         view<const T>(k), view<const T>(v)};
}

template <class T>
Backward<T> backward_problem(const BackwardHeads& at, const float* lse,
                             float* delta, bool causal) {
  return {extents_of(at.q, at.k, causal),
          view<T>(at.dq),
          view<T>(at.dk),
          view<T>(at.dv),
          view<const T>(at.dout),
          view<const T>(at.o),
          lse,
          delta,
          view<const T>(at.q),
          view<const T>(at.k),
          view<const T>(at.v)};
}

bool is_single_token(const Extents& extents) {
  return extents.q_tokens == 1 && extents.k_tokens == 1;
}

}  // namespace

void forward(cudaStream_t stream, const Heads& o, float* lse, const Heads& q,
             const Heads& k, const Heads& v, bool causal) {
  const auto run = [&]<class T>(T) {
    const auto problem = forward_problem<T>(o, lse, q, k, v, causal);
    if (is_single_token(problem.extents)) {
      single_token_forward(stream, problem);
    } else if constexpr (std::is_same_v<T, bf16>) {
      const bool fits = suits_tensor_cores(std::array{o, q, k, v});
      fits ? forward_by_tensor_cores(stream, problem)
           : fma_forward(stream, problem);
    } else {
      fma_forward(stream, problem);
    }
  };
  q.dtype == Dtype::bf16 ? run(bf16{}) : run(float{});
}

void backward(cudaStream_t stream, const BackwardHeads& at, const float* lse,
              float* delta, bool causal) {
  const auto run = [&]<class T>(T) {
    const auto problem = backward_problem<T>(at, lse, delta, causal);
    if (is_single_token(problem.extents)) {
      single_token_backward(stream, problem);
      return;
    }
    if constexpr (std::is_same_v<T, bf16>) {
      const bool fits = suits_tensor_cores(
          std::array{at.dq, at.dk, at.dv, at.dout, at.o, at.q, at.k, at.v});
      if (fits) {
        backward_by_tensor_cores(stream, problem);
        return;
      }
    }
    compute_delta(stream, problem);
    fma_backward(stream, problem);
  };
  at.q.dtype == Dtype::bf16 ? run(bf16{}) : run(float{});
}

}  // namespace lockstep::attention
