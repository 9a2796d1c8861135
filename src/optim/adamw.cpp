#include "optim/adamw.h"

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

// Cuts a shard where weight decay changes: at its norms, if these are exempt.
void append_ranges(const Shard& shard, const AdamwSettings& settings,
                   std::vector<AdamwRange>& ranges) {
  const auto append = [&](std::int64_t begin, std::int64_t end, double decay) {
    begin = std::max(begin, shard.begin) - shard.begin;
    end = std::min(end, shard.begin + shard.count) - shard.begin;
    if (begin >= end) return;
    const auto cut = [&](const Tensor& t) {
      return t ? t.range(begin, end - begin) : t;
    };
    ranges.push_back({cut(shard.parameters), cut(shard.remainder),
                      cut(shard.gradients), cut(shard.first_moment),
                      cut(shard.second_moment), static_cast<float>(decay)});
  };
  std::int64_t begin = 0;
  if (!settings.decay_norms) {
    for (const Parameter& parameter : shard.unit->members) {
      if (!parameter.is_norm()) continue;
      const std::int64_t end = parameter.offset + parameter.elements();
      append(begin, parameter.offset, settings.weight_decay);
      append(parameter.offset, end, 0);
      begin = end;
    }
  }
  append(begin, shard.unit->elements, settings.weight_decay);
}

}  // namespace

Adamw::Adamw(const AdamwSettings& settings, Device& device, Ops& ops,
             std::span<Shard> shards)
    : settings_(settings),
      device_(device),
      ops_(ops),
      shards_(shards),
      staged_(device.allocate_host(in_flight * sizeof(AdamwScalars))),
      memory_(device.allocate(Dtype::f32, {adamw_scalar_count + 1},
                              Category::optimizer, "AdamW scalars")) {
  const Tensor all = memory_.tensor(Dtype::f32, {adamw_scalar_count + 1});
  scalars_ = all.range(0, adamw_scalar_count);
  factor_ = all.range(adamw_scalar_count, 1);
  for (const Shard& shard : shards_) append_ranges(shard, settings_, ranges_);
}

void Adamw::add_norm_squared(const Tensor& total) {
  for (const Shard& shard : shards_) {
    ops_.add_sum_of_squares(total, shard.gradients);
  }
}

void Adamw::prepare(std::int64_t t, double learning_rate) {
  AdamwScalars& now = staged(t);
  now.learning_rate = static_cast<float>(learning_rate);
  now.beta1 = static_cast<float>(settings_.beta1);
  now.beta2 = static_cast<float>(settings_.beta2);
  now.epsilon = static_cast<float>(settings_.epsilon);
  now.bias_correction1 =
      static_cast<float>(1 - std::pow(settings_.beta1, double(t)));
  now.bias_correction2 =
      static_cast<float>(1 - std::pow(settings_.beta2, double(t)));
}

void Adamw::step(std::int64_t t, const Tensor& norm_squared) {
  device_.copy_to_device(scalars_, &staged(t));
  ops_.clip_factor(factor_, norm_squared, settings_.clip);
  for (const AdamwRange& range : ranges_) {
    ops_.adamw(range, scalars_, factor_);
  }
}

}  // namespace lockstep
