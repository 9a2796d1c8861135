#include "sync/bucketed.h"

#include <algorithm>

namespace lockstep {
namespace {

constexpr double mib = 1 << 20;
constexpr double first_bucket_bytes = 1 * mib;

}  // namespace

Bucketed::Bucketed(const SyncContext& context, OptimizerState state)
    : Replica(context, state) {
  if (!context_.trains) return;
  const double full = context_.options.bucket_mb * mib;
  const std::vector<Parameter*> parameters = context_.store.parameters();
  bucket_of_.resize(parameters.size());

  Bucket bucket;
  std::int64_t end = gradients_.all().elements();
  for (auto it = parameters.rbegin(); it != parameters.rend(); ++it) {
    const Parameter* parameter = *it;
    bucket_of_[parameter->index] = static_cast<int>(buckets_.size());
    ++bucket.members;
    const std::int64_t begin = gradients_.offset_of(parameter->gradient());
    const double limit =
        buckets_.empty() ? std::min(full, first_bucket_bytes) : full;
    const bool last = parameter == parameters.front();
    bucket.gradients = gradients_.all().range(begin, end - begin);
    if (double(bucket.gradients.bytes()) < limit && !last) continue;
    buckets_.push_back(bucket);
    bucket = {};
    end = begin;
  }
}

void Bucketed::begin_step() {
  for (Bucket& bucket : buckets_) bucket.pending = bucket.members;
}

void Bucketed::gradient_ready(Parameter& parameter) {
  if (!last_micro_step_) return;
  Bucket& bucket = buckets_[bucket_of_[parameter.index]];
  if (--bucket.pending == 0) start_all_reduce(bucket.gradients);
}

}  // namespace lockstep
