#include "model/parameter_store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace lockstep {
namespace {

ModelConfig odd() {
  ModelConfig config;
  config.vocab_size = 127;
  config.context_length = 33;
  config.d_model = 48;
  config.d_ff = 80;
  config.num_layers = 3;
  config.num_heads = 3;
  return config;
}

TEST(ParameterStore, NamesTheStateDictInTheOrderOfTheForwardPass) {
  ParameterStore store(odd(), 1);
  const auto all = store.parameters();
  ASSERT_EQ(all.size(), 3u + 9u * 3u);
  EXPECT_EQ(all.front()->name, "token_embeddings.weight");
  EXPECT_EQ(all[1]->name, "layers.0.ln1.weight");
  EXPECT_EQ(all[2]->name, "layers.0.attn.q_proj.weight");
  EXPECT_EQ(all[5]->name, "layers.0.attn.output_proj.weight");
  EXPECT_EQ(all[9]->name, "layers.0.ffn.w2.weight");
  EXPECT_EQ(all[28]->name, "ln_final.weight");
  EXPECT_EQ(all.back()->name, "lm_head.weight");
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]->index, static_cast<int>(i));
  }
}

TEST(ParameterStore, CountsWhatTheConfigCounts) {
  EXPECT_EQ(ParameterStore(odd(), 1).elements(), odd().parameters());
  EXPECT_EQ(ParameterStore(odd(), 7).elements(), odd().parameters());
}

TEST(ParameterStore, PadsUnitsToDivideByAnyWorldSize) {
  for (const int world_size : {1, 2, 3, 5, 7, 8, 16}) {
    const ParameterStore store(odd(), world_size);
    for (const Unit& unit : store.units()) {
      EXPECT_EQ(unit.elements % world_size, 0) << unit.name;
      EXPECT_EQ(unit.elements % 64, 0) << unit.name;
    }
  }
}

TEST(ParameterStore, LaysGroupsSideBySideAndNothingOnTopOfAnother) {
  const ParameterStore store(odd(), 3);
  for (const Unit& unit : store.units()) {
    std::int64_t end = 0;
    for (const Parameter& parameter : unit.members) {
      EXPECT_GE(parameter.offset, end) << parameter.name;
      end = parameter.offset + parameter.elements();
    }
    EXPECT_LE(end, unit.elements);
  }
  const auto& block = store.units()[1].members;
  EXPECT_EQ(block[2].offset, block[1].offset + block[1].elements());  // q k
  EXPECT_EQ(block[3].offset, block[2].offset + block[2].elements());  // k v
  EXPECT_EQ(block[7].offset, block[6].offset + block[6].elements());  // w1 w3
  for (const int first : {0, 1, 4, 5, 6, 8}) {
    EXPECT_EQ(block[first].offset % 64, 0) << block[first].name;
  }
}

TEST(ParameterStore, DrawsTheSameWeightsWhateverTheWorldSize) {
  const ParameterStore one(odd(), 1), seven(odd(), 7);
  for (std::size_t u = 0; u < one.units().size(); ++u) {
    const Unit &a = one.units()[u], &b = seven.units()[u];
    std::vector<float> of_a(a.elements, -1), of_b(b.elements, -1);
    initial_values(a, 5, of_a);
    initial_values(b, 5, of_b);
    for (std::size_t p = 0; p < a.members.size(); ++p) {
      for (std::int64_t i = 0; i < a.members[p].elements(); ++i) {
        ASSERT_EQ(of_a[a.members[p].offset + i], of_b[b.members[p].offset + i]);
      }
    }
  }
}

TEST(ParameterStore, DrawsTruncatedNormalsOfTheRightWidth) {
  ModelConfig config = odd();
  config.vocab_size = 4000;
  ParameterStore store(config, 1);
  const Unit& unit = store.embedding();
  std::vector<float> values(unit.elements);
  initial_values(unit, 1, values);
  double sum = 0, squares = 0, largest = 0;
  for (const float value : values) {
    sum += value;
    squares += double(value) * value;
    largest = std::max(largest, std::abs(double(value)));
  }
  const auto n = static_cast<double>(values.size());
  // The variance of a standard normal cut at ±3 is 0.9733.
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(squares / n, 0.9733, 0.01);
  EXPECT_LE(largest, 3);
  EXPECT_GT(largest, 2.9);
}

TEST(ParameterStore, LeavesPaddingZeroAndNormsOne) {
  ParameterStore store(odd(), 5);
  for (const Unit& unit : store.units()) {
    std::vector<float> values(unit.elements, 7);
    initial_values(unit, 1, values);
    std::vector<bool> used(unit.elements);
    for (const Parameter& parameter : unit.members) {
      for (std::int64_t i = 0; i < parameter.elements(); ++i) {
        used[parameter.offset + i] = true;
        if (parameter.is_norm()) {
          EXPECT_EQ(values[parameter.offset + i], 1);
        }
      }
    }
    for (std::int64_t i = 0; i < unit.elements; ++i) {
      if (!used[i]) {
        ASSERT_EQ(values[i], 0);
      }
    }
  }
}

TEST(ParameterStore, DifferentSeedsAndTensorsDiffer) {
  ParameterStore store(odd(), 1);
  const Unit& unit = store.block(0);
  std::vector<float> one(unit.elements), two(unit.elements);
  initial_values(unit, 1, one);
  initial_values(unit, 2, two);
  const auto& q = unit.members[1];
  const auto& k = unit.members[2];
  EXPECT_NE(one[q.offset], two[q.offset]);
  EXPECT_NE(one[q.offset], one[k.offset]);
}

}  // namespace
}  // namespace lockstep
