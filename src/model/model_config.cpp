#include "model/model_config.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace lockstep {
namespace {

struct NamedSize {
  std::string_view name;
  std::int64_t d_model, d_ff, num_layers, num_heads;
};
constexpr std::array named_sizes = {
    NamedSize{"test", 16, 24, 2, 2},
    NamedSize{"small", 768, 3072, 12, 12},
    NamedSize{"medium", 1024, 4096, 24, 16},
    NamedSize{"large", 1280, 5120, 36, 20},
    NamedSize{"xl", 2560, 10240, 32, 32},
    NamedSize{"10b", 4608, 12288, 50, 36},
};

}  // namespace

void ModelConfig::validate() const {
  require(d_model % num_heads == 0,
          "--num-heads {} does not divide --d-model {}", num_heads, d_model);
  require(head_dim() % 2 == 0,
          "the head dimension {} (--d-model {} / --num-heads {}) is odd; RoPE "
          "rotates pairs",
          head_dim(), d_model, num_heads);
  require(head_dim() <= 256,
          "the head dimension {} (--d-model {} / --num-heads {}) is above 256; "
          "use more heads",
          head_dim(), d_model, num_heads);
}

std::int64_t ModelConfig::embedding_parameters() const {
  return vocab_size * d_model;
}

std::int64_t ModelConfig::parameters() const {
  const std::int64_t block =
      4 * d_model * d_model + 3 * d_model * d_ff + 2 * d_model;
  return embedding_parameters() + num_layers * block + d_model +
         vocab_size * d_model;
}

double ModelConfig::flops_per_token() const {
  return 6.0 * double(parameters() - embedding_parameters()) +
         6.0 * double(num_layers) * double(d_model) * double(context_length);
}

void apply_model_size(std::string_view name, ModelConfig& config) {
  const auto* size = std::find_if(
      named_sizes.begin(), named_sizes.end(),
      [&](const NamedSize& candidate) { return candidate.name == name; });
  require(size != named_sizes.end(), "no model size is called '{}'", name);
  config.d_model = size->d_model;
  config.d_ff = size->d_ff;
  config.num_layers = size->num_layers;
  config.num_heads = size->num_heads;
}

std::vector<std::string_view> model_size_names() {
  std::vector<std::string_view> names;
  for (const NamedSize& size : named_sizes) names.push_back(size.name);
  return names;
}

}  // namespace lockstep
