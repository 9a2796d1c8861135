#include "ops/attention.h"

#include <cmath>

namespace lockstep {
namespace {

class FlashAttention final : public Attention {
 public:
  explicit FlashAttention(Ops& ops) : ops_(ops) {}

  void forward(const Saved& at, bool causal) override {
    ops_.attention(at.o, at.lse, at.q, at.k, at.v, causal);
  }
  void backward(const Gradients& to, const Saved& at, bool causal) override {
    ops_.attention_backward(to.dq, to.dk, to.dv, to.dout, at.o, at.lse, at.q,
                            at.k, at.v, causal);
  }

 private:
  Ops& ops_;
};

class NaiveAttention final : public Attention {
 public:
  explicit NaiveAttention(Backend& backend)
      : device_(*backend.device), ops_(*backend.ops) {}

  void forward(const Saved& at, bool causal) override {
    const Tensor p = probabilities(at, causal);
    ops_.matmul(at.o, matrices(p), Transpose::no, at.v, Transpose::no);
  }

  void backward(const Gradients& to, const Saved& at, bool causal) override {
    const Tensor p = probabilities(at, causal);
    const Tensor dp = scores(gradient_memory_, at, "gradients of scores");
    ops_.matmul(to.dv, matrices(p), Transpose::yes, to.dout, Transpose::no);
    ops_.matmul(matrices(dp), to.dout, Transpose::no, at.v, Transpose::yes);
    ops_.softmax_backward(dp, p, scale(at));
    ops_.matmul(to.dq, matrices(dp), Transpose::no, at.k, Transpose::no);
    ops_.matmul(to.dk, matrices(dp), Transpose::yes, at.q, Transpose::no);
  }

 private:
  static float scale(const Saved& at) {
    return static_cast<float>(1 / std::sqrt(double(at.q.head_dim)));
  }

  // a[B, H, Tq, Tk]
  Tensor scores(Buffer& memory, const Saved& at, const char* name) {
    const Shape shape{at.q.batch, at.q.heads, at.q.tokens, at.k.tokens};
    const std::int64_t bytes = shape.elements() * bytes_of(at.q.dtype);
    if (bytes > memory.bytes()) {
      memory = Buffer();
      memory = device_.allocate(bytes, Category::activations, name);
    }
    return memory.tensor(at.q.dtype, shape);
  }

  static Heads matrices(const Tensor& scores) {
    const std::int64_t rows = scores[2], columns = scores[3];
    return {scores.data,
            scores.dtype,
            scores[0],
            rows,
            scores[1],
            columns,
            scores[1] * rows * columns,
            columns,
            rows * columns};
  }

  // softmax(q·kᵀ/√D), and its log-sum-exp in at.lse.
  Tensor probabilities(const Saved& at, bool causal) {
    const Tensor p = scores(score_memory_, at, "scores");
    ops_.matmul(matrices(p), at.q, Transpose::no, at.k, Transpose::yes);
    ops_.softmax(p, at.lse, scale(at), causal);
    return p;
  }

  Device& device_;
  Ops& ops_;
  Buffer score_memory_, gradient_memory_;
};

}  // namespace

std::unique_ptr<Attention> make_attention(AttentionKind kind,
                                          Backend& backend) {
  if (kind == AttentionKind::naive) {
    return std::make_unique<NaiveAttention>(backend);
  }
  return std::make_unique<FlashAttention>(*backend.ops);
}

}  // namespace lockstep
