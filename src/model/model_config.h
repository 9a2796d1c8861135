#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep {

// The shape of a transformer. d_model is a multiple of num_heads and the head
// dimension is even and at most 256; see validate().
struct ModelConfig {
  std::int64_t vocab_size = 10000;
  std::int64_t context_length = 1024;  // T
  std::int64_t d_model = 768;
  std::int64_t d_ff = 3072;
  std::int64_t num_layers = 12;
  std::int64_t num_heads = 12;
  double rope_theta = 10000;

  std::int64_t head_dim() const { return d_model / num_heads; }
  void validate() const;  // an Error names the first rule that is broken

  std::int64_t parameters() const;            // N, all trainable elements
  std::int64_t embedding_parameters() const;  // the lookup table alone
  // Training FLOPs of one token, forward and backward: 6·(N − embedding) for
  // the matrix products and 6·L·d_model·T for attention, of which only the
  // causal half is counted; recomputation isn't.
  double flops_per_token() const;
};

// What blocks do not keep for their backward pass but compute again there, with
// the same result. Of the widths of activations kept by a block (16 times
// d_model where d_ff = 4·d_model):
enum class RecomputeLevel {
  none,
  norms,      // both norms' outputs: element-wise, 2 less
  ffn,        // ln2, gate and up: one matrix product, 9 less
  attention,  // ln1, q, k, v and attention's output: 5 less
  block,      // everything but the input of every `blocks`-th block
};
struct Recompute {
  RecomputeLevel level = RecomputeLevel::none;
  std::int64_t blocks = 1;
};

// What to do when a named size is given: "test", "small", "medium", "large",
// "xl" or "10b" set d_model, d_ff, num_layers and num_heads. Error for any
// other name.
void apply_model_size(std::string_view name, ModelConfig& config);
// The names it knows, from small to large.
std::vector<std::string_view> model_size_names();

}  // namespace lockstep
