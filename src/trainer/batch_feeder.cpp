#include "trainer/batch_feeder.h"

namespace lockstep {

BatchFeeder::BatchFeeder(Device& device, const Batches& batches,
                         std::int64_t tokens_per_micro_step,
                         std::int64_t accumulation)
    : device_(device),
      batches_(batches),
      tokens_(tokens_per_micro_step),
      accumulation_(accumulation),
      host_memory_(
          device.allocate_host(2 * 2 * tokens_ * bytes_of(Dtype::i32))),
      memory_(device.allocate(Dtype::i32, {2, 2, tokens_}, Category::workspace,
                              "token batches")) {
  const Tensor all = memory_.tensor(Dtype::i32, {2, 2, tokens_});
  auto* staged = static_cast<std::int32_t*>(host_memory_.get());
  for (int i = 0; i < 2; ++i) {
    slots_[i] = {all.range(i * 2 * tokens_, 2 * tokens_),
                 staged + i * 2 * tokens_, nullptr, nullptr};
  }
  prepare();
}

void BatchFeeder::prepare() {
  Slot& slot = slots_[prepared_ % 2];
  if (slot.arrived) slot.arrived->wait();  // its staged tokens are copied
  const auto count = static_cast<std::size_t>(tokens_);
  batches_.fill(prepared_ / accumulation_, prepared_ % accumulation_,
                {slot.staged, count}, {slot.staged + count, count});
  slot.arrived = device_.prefetch(slot.tokens, slot.staged, slot.used);
  ++prepared_;
}

BatchFeeder::Batch BatchFeeder::next() {
  Slot& slot = slots_[taken_++ % 2];
  device_.wait(slot.arrived);
  return {slot.tokens.range(0, tokens_), slot.tokens.range(tokens_, tokens_)};
}

void BatchFeeder::release() {
  slots_[(taken_ - 1) % 2].used = device_.record();
  prepare();
}

}  // namespace lockstep
