#include "sync/sharded_optimizer.h"

#include <algorithm>
#include <numeric>

namespace lockstep {

ShardedOptimizer::ShardedOptimizer(const SyncContext& context)
    : Bucketed(context, OptimizerState::elsewhere),
      elements_(context_.comm.size()) {
  for (const Parameter* parameter : context_.store.parameters()) {
    const auto least = std::min_element(elements_.begin(), elements_.end());
    *least += parameter->elements();
    const int owner = static_cast<int>(least - elements_.begin());
    owner_.push_back(owner);
    if (owner != context_.comm.rank()) continue;
    const Tensor gradients =
        context_.trains
            ? parameter->gradient().reshaped({parameter->elements()})
            : Tensor();
    shards_.emplace_back(context_.device, *parameter->unit, parameter->offset,
                         parameter->value().reshaped({parameter->elements()}),
                         gradients);
  }
}

void ShardedOptimizer::publish() {
  order_after_compute();
  for (const Unit& unit : context_.store.units()) {
    for (const Parameter& parameter : unit.members) {
      context_.comm.broadcast(parameter.value(), owner_[parameter.index]);
    }
    arriving_[unit.index] = context_.comm.record();
  }
}

std::string ShardedOptimizer::remark() const {
  const double mean = double(std::accumulate(elements_.begin(), elements_.end(),
                                             std::int64_t{0})) /
                      double(elements_.size());
  const auto most = std::max_element(elements_.begin(), elements_.end());
  const auto idle = std::count(elements_.begin(), elements_.end(), 0);
  return fmt::format(
      "optimizer shares: rank {} updates the most, {} parameters, {:.2f} times "
      "the mean{}",
      most - elements_.begin(), *most, double(*most) / mean,
      idle > 0 ? fmt::format("; {} ranks update none", idle) : "");
}

}  // namespace lockstep
