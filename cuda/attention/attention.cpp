#include "cuda/attention/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
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
  const auto aligned = [&](std::int64_t elements) {
    return elements * bytes_of(heads.dtype) % 16 == 0;
  };
  return reinterpret_cast<std::uintptr_t>(heads.data) % 16 == 0 &&
         aligned(heads.batch_stride) && aligned(heads.token_stride) &&
         aligned(heads.head_stride);
}

template <std::size_t n>
bool suits_tensor_cores(const std::array<Heads, n>& all) {
  return all[0].head_dim <= 128 && all[0].head_dim % 8 == 0 &&
         std::all_of(all.begin(), all.end(), aligned_to_16_bytes);
}

enum class Kernels { single_token, fma, mma, hopper };

template <std::size_t n>
Kernels kernels_for(Precision precision, const Extents& extents,
                    const std::array<Heads, n>& all) {
  if (extents.q_tokens == 1 && extents.k_tokens == 1) {
    return Kernels::single_token;
  }
  if (precision == Precision::fp32 || !suits_tensor_cores(all)) {
    return Kernels::fma;
  }
  // Head dims of up to 32 would be half zeros in the tiles of the kernels for
  // Hopper.
  const bool suits_hopper =
      precision == Precision::bf16 && extents.head_dim > 32 && is_hopper();
  return suits_hopper ? Kernels::hopper : Kernels::mma;
}
Kernels kernels_for(Precision precision, const Extents& extents,
                    const BackwardHeads& at) {
  return kernels_for(
      precision, extents,
      std::array{at.dq, at.dk, at.dv, at.dout, at.o, at.q, at.k, at.v});
}

DqSums dq_sums(const Extents& extents, Kernels kernels) {
  switch (kernels) {
    case Kernels::fma:
      return fma_dq_sums(extents);
    case Kernels::hopper:
      return hopper_dq_sums(extents);
    default:
      return {};
  }
}

// Where the backward pass's scratch memory has what.
struct Scratch {
  std::int64_t turns, turns_at, sums_at, bytes;

  Scratch(const Extents& extents, Kernels kernels) {
    const auto aligned = [](std::int64_t count) {
      constexpr std::int64_t line = 128;
      return (count * 4 + line - 1) / line * line;
    };
    const DqSums sums = dq_sums(extents, kernels);
    turns = extents.sequences() * sums.rounds;
    turns_at = aligned(extents.sequences() * extents.q_tokens);  // after delta
    sums_at = turns_at + aligned(turns);
    bytes = sums_at + aligned(turns * sums.round_floats);
  }
};

template <class T>
Forward<T> forward_problem(const Heads& o, float* lse, const Heads& q,
                           const Heads& k, const Heads& v, bool causal) {
  return {extents_of(q, k, causal), view<T>(o),       lse,
          view<const T>(q),         view<const T>(k), view<const T>(v)};
}

template <class T>
Backward<T> backward_problem(const Extents& extents, const BackwardHeads& at,
                             const float* lse, const Scratch& scratch,
                             void* memory) {
  auto* const bytes = static_cast<std::byte*>(memory);
  return {extents,
          view<T>(at.dq),
          view<T>(at.dk),
          view<T>(at.dv),
          view<const T>(at.dout),
          view<const T>(at.o),
          lse,
          view<const T>(at.q),
          view<const T>(at.k),
          view<const T>(at.v),
          reinterpret_cast<float*>(bytes),
          reinterpret_cast<int*>(bytes + scratch.turns_at),
          reinterpret_cast<float*>(bytes + scratch.sums_at)};
}

}  // namespace

void forward(cudaStream_t stream, Precision precision, const Heads& o,
             float* lse, const Heads& q, const Heads& k, const Heads& v,
             bool causal) {
  const auto run = [&]<class T>(T) {
    const auto problem = forward_problem<T>(o, lse, q, k, v, causal);
    const Kernels kernels =
        kernels_for(precision, problem.extents, std::array{o, q, k, v});
    if (kernels == Kernels::single_token) {
      return single_token_forward(stream, problem);
    }
    if constexpr (std::is_same_v<T, bf16>) {
      if (kernels == Kernels::hopper) return hopper_forward(stream, problem);
    }
    kernels == Kernels::mma ? mma_forward(stream, problem)
                            : fma_forward(stream, problem);
  };
  q.dtype == Dtype::bf16 ? run(bf16{}) : run(float{});
}

std::int64_t backward_scratch_bytes(Precision precision,
                                    const BackwardHeads& at, bool causal) {
  const Extents extents = extents_of(at.q, at.k, causal);
  return Scratch(extents, kernels_for(precision, extents, at)).bytes;
}

void backward(cudaStream_t stream, Precision precision, const BackwardHeads& at,
              const float* lse, void* memory, bool causal) {
  const auto run = [&]<class T>(T) {
    const Extents extents = extents_of(at.q, at.k, causal);
    const Kernels kernels = kernels_for(precision, extents, at);
    const Scratch scratch(extents, kernels);
    const auto problem = backward_problem<T>(extents, at, lse, scratch, memory);
    if (kernels == Kernels::single_token) {
      return single_token_backward(stream, problem);
    }
    compute_delta(stream, problem, scratch.turns);
    if constexpr (std::is_same_v<T, bf16>) {
      if (kernels == Kernels::hopper) return hopper_backward(stream, problem);
    }
    kernels == Kernels::mma ? mma_backward(stream, problem)
                            : fma_backward(stream, problem);
  };
  at.q.dtype == Dtype::bf16 ? run(bf16{}) : run(float{});
}

}  // namespace lockstep::attention
