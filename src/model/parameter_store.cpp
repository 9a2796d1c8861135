#include "model/parameter_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numeric>

#include "core/random.h"

namespace lockstep {
namespace {

// Groups start at multiples of this many elements: 128 bytes in bf16, what
// matrix products and vector loads like best.
constexpr std::int64_t group_alignment = 64;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Adds parameters to a unit one group at a time.
class UnitBuilder {
 public:
  UnitBuilder(Unit& unit, int& next_index)
      : unit_(unit), next_index_(next_index) {}

  struct Member {
    std::string name;
    Shape shape;
    double init_std;
  };
  void add_group(std::initializer_list<Member> members) {
    end_ = round_up(end_, group_alignment);
    for (const Member& member : members) {
      unit_.members.push_back({member.name, member.shape, end_, member.init_std,
                               next_index_++, &unit_});
      end_ += member.shape.elements();
    }
  }
  void finish(int world_size) {
    unit_.elements =
        round_up(end_, std::lcm(group_alignment, std::int64_t{world_size}));
  }

 private:
  Unit& unit_;
  int& next_index_;
  std::int64_t end_ = 0;
};

double linear_std(std::int64_t in, std::int64_t out) {
  return std::sqrt(2.0 / double(in + out));
}

}  // namespace

Tensor Parameter::value() const {
  return unit->parameters.range(offset, elements()).reshaped(shape);
}

Tensor Parameter::gradient() const {
  return unit->gradients.range(offset, elements()).reshaped(shape);
}

std::vector<Tensor> padding_of(const Unit& unit, const Tensor& flat) {
  std::vector<Tensor> padding;
  std::int64_t end = 0;
  const auto up_to = [&](std::int64_t begin) {
    if (begin > end) padding.push_back(flat.range(end, begin - end));
  };
  for (const Parameter& parameter : unit.members) {
    up_to(parameter.offset);
    end = parameter.offset + parameter.elements();
  }
  up_to(unit.elements);
  return padding;
}

ParameterStore::ParameterStore(const ModelConfig& config, int world_size) {
  const std::int64_t d = config.d_model;
  const std::int64_t ff = config.d_ff;
  int next_index = 0;
  const auto add_unit = [&](std::string name) -> Unit& {
    Unit& unit = units_.emplace_back();
    unit.name = std::move(name);
    unit.index = static_cast<int>(units_.size()) - 1;
    return unit;
  };

  Unit& embedding = add_unit("token_embeddings");
  UnitBuilder table(embedding, next_index);
  table.add_group({{"token_embeddings.weight", {config.vocab_size, d}, 1.0}});
  table.finish(world_size);

  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    Unit& unit = add_unit(fmt::format("layers.{}", layer));
    const auto named = [&](std::string_view rest) {
      return fmt::format("{}.{}.weight", unit.name, rest);
    };
    const double square = linear_std(d, d);
    const double wide = linear_std(d, ff);
    UnitBuilder block(unit, next_index);
    block.add_group({{named("ln1"), {d}, 0}});
    block.add_group({{named("attn.q_proj"), {d, d}, square},
                     {named("attn.k_proj"), {d, d}, square},
                     {named("attn.v_proj"), {d, d}, square}});
    block.add_group({{named("attn.output_proj"), {d, d}, square}});
    block.add_group({{named("ln2"), {d}, 0}});
    block.add_group(
        {{named("ffn.w1"), {ff, d}, wide}, {named("ffn.w3"), {ff, d}, wide}});
    block.add_group({{named("ffn.w2"), {d, ff}, wide}});
    block.finish(world_size);
  }

  UnitBuilder head(add_unit("head"), next_index);
  head.add_group({{"ln_final.weight", {d}, 0}});
  head.add_group({{"lm_head.weight",
                   {config.vocab_size, d},
                   linear_std(d, config.vocab_size)}});
  head.finish(world_size);
}

std::vector<Parameter*> ParameterStore::parameters() {
  std::vector<Parameter*> all;
  for (Unit& unit : units_) {
    for (Parameter& parameter : unit.members) all.push_back(&parameter);
  }
  return all;
}

std::int64_t ParameterStore::elements() const {
  std::int64_t total = 0;
  for (const Unit& unit : units_) {
    for (const Parameter& parameter : unit.members) {
      total += parameter.elements();
    }
  }
  return total;
}

void initial_values(const Unit& unit, std::uint64_t seed,
                    std::span<float> values) {
  std::fill(values.begin(), values.end(), 0.0f);
  for (const Parameter& parameter : unit.members) {
    const auto out = values.subspan(parameter.offset, parameter.elements());
    if (parameter.is_norm()) {
      std::fill(out.begin(), out.end(), 1.0f);
      continue;
    }
    // Box-Muller; a draw beyond 3σ is drawn again from the next substream.
    const auto count = static_cast<std::int64_t>(out.size());
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < count; ++i) {
      double normal = 4;
      for (std::uint32_t attempt = 0; std::abs(normal) > 3; ++attempt) {
        const auto bits = random_bits(
            seed, Stream::weights,
            static_cast<std::uint32_t>(parameter.index) + (attempt << 20),
            static_cast<std::uint64_t>(i));
        const double radius =
            std::sqrt(-2 * std::log(1 - unit_interval(bits[0], bits[1])));
        normal = radius * std::cos(2 * M_PI * unit_interval(bits[2], bits[3]));
      }
      out[i] = static_cast<float>(parameter.init_std * normal);
    }
  }
}

}  // namespace lockstep
