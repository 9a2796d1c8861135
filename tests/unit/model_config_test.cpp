#include "model/model_config.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace lockstep {
namespace {

ModelConfig named(std::string_view name) {
  ModelConfig config;  // V = 10000, T = 1024
  apply_model_size(name, config);
  return config;
}

std::string error_of(const ModelConfig& config) {
  try {
    config.validate();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ModelConfig, NamedSizesSetTheShape) {
  struct Shape {
    std::string_view name;
    std::int64_t d_model, d_ff, num_layers, num_heads;
  };
  for (const Shape& shape :
       {Shape{"test", 16, 24, 2, 2}, Shape{"small", 768, 3072, 12, 12},
        Shape{"medium", 1024, 4096, 24, 16}, Shape{"large", 1280, 5120, 36, 20},
        Shape{"xl", 2560, 10240, 32, 32}, Shape{"10b", 4608, 12288, 50, 36}}) {
    const ModelConfig config = named(shape.name);
    EXPECT_EQ(config.d_model, shape.d_model) << shape.name;
    EXPECT_EQ(config.d_ff, shape.d_ff) << shape.name;
    EXPECT_EQ(config.num_layers, shape.num_layers) << shape.name;
    EXPECT_EQ(config.num_heads, shape.num_heads) << shape.name;
    EXPECT_EQ(config.vocab_size, 10000) << shape.name;
    EXPECT_EQ(config.context_length, 1024) << shape.name;
    EXPECT_EQ(error_of(config), "") << shape.name;
  }
}

TEST(ModelConfig, ListsTheNamedSizesFromSmallToLarge) {
  const std::vector<std::string_view> expected = {"test",  "small", "medium",
                                                  "large", "xl",    "10b"};
  EXPECT_EQ(model_size_names(), expected);
  std::int64_t last = 0;
  for (const std::string_view name : model_size_names()) {
    EXPECT_GT(named(name).parameters(), last) << name;
    last = named(name).parameters();
  }
}

TEST(ModelConfig, AnUnknownNameIsAnErrorThatQuotesIt) {
  ModelConfig config;
  try {
    apply_model_size("tiny", config);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'tiny'"), std::string::npos);
  }
}

TEST(ModelConfig, CountsTheParametersOfTheNamedSizes) {
  EXPECT_EQ(named("small").parameters(), 128'625'408);
  EXPECT_EQ(named("medium").parameters(), 423'183'360);
  EXPECT_EQ(named("large").parameters(), 969'411'840);
  EXPECT_EQ(named("xl").parameters(), 3'406'809'600);
}

TEST(ModelConfig, CountsEveryTensorOfASmallShape) {
  ModelConfig config = named("test");
  config.vocab_size = 64;
  const std::int64_t attention = 4 * 16 * 16, feed_forward = 3 * 16 * 24;
  const std::int64_t norms = 2 * 16;
  EXPECT_EQ(config.embedding_parameters(), 64 * 16);
  EXPECT_EQ(config.parameters(),
            64 * 16 + 2 * (attention + feed_forward + norms) + 16 + 64 * 16);
}

TEST(ModelConfig, CountsFlopsWithoutTheLookupAndWithHalfOfAttention) {
  // test, V = 10000: N − embedding = 2·2208 + 16 + 160000 = 164432;
  // attention 6·2·16·16 = 3072.
  ModelConfig config = named("test");
  config.context_length = 16;
  EXPECT_DOUBLE_EQ(config.flops_per_token(), 6.0 * 164432 + 3072);

  // small: N − embedding = 128625408 − 7680000; attention 6·12·768·16384.
  config = named("small");
  config.context_length = 16384;
  EXPECT_DOUBLE_EQ(config.flops_per_token(), 6.0 * 120945408 + 905969664);
}

TEST(ModelConfig, RefusesHeadsThatDoNotDivideTheWidth) {
  ModelConfig config = named("small");
  config.num_heads = 7;
  const std::string error = error_of(config);
  EXPECT_NE(error.find("--num-heads 7"), std::string::npos) << error;
  EXPECT_NE(error.find("--d-model 768"), std::string::npos) << error;
}

TEST(ModelConfig, RefusesAnOddHeadDimension) {
  ModelConfig config = named("small");
  config.num_heads = 256;
  EXPECT_NE(error_of(config).find("head dimension 3"), std::string::npos);
}

TEST(ModelConfig, AcceptsHeadDimensionsUpTo256) {
  ModelConfig config = named("small");
  config.num_heads = 3;
  EXPECT_EQ(config.head_dim(), 256);
  EXPECT_EQ(error_of(config), "");
  config.num_heads = 2;
  EXPECT_NE(error_of(config).find("384"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
