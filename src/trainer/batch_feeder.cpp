#include "trainer/batch_feeder.h"

namespace lockstep {

BatchFeeder::BatchFeeder(Device& device, const Batches& batches,
                         std::int64_t tokens_per_micro_step,
                         std::int64_t accumulation)
    : device_(device),
      batches_(batches),
      tokens_(tokens_per_micro_step),
      accumulation_(accumulation),
      host_memory_(device.allocate_host(2 * accumulation_ * 2 * tokens_ *
                                        bytes_of(Dtype::i32))),
      memory_(device.allocate(Dtype::i32, {2, accumulation_, 2, tokens_},
                              Category::workspace, "token batches")) {
  const std::int64_t of_step = accumulation_ * 2 * tokens_;
  const Tensor all = memory_.tensor(Dtype::i32, {2 * of_step});
  for (int i = 0; i < 2; ++i) {
    Slot& slot = slots_[i];
    slot.tokens = all.range(i * of_step, of_step);
    slot.staged = static_cast<std::int32_t*>(host_memory_.get()) + i * of_step;
    for (std::int64_t begin = 0; begin < of_step; begin += 2 * tokens_) {
      slot.batches.push_back({slot.tokens.range(begin, tokens_),
                              slot.tokens.range(begin + tokens_, tokens_)});
    }
  }
  prepare();
}

void BatchFeeder::prepare() {
  Slot& slot = slots_[prepared_ % 2];
  if (slot.arrived) slot.arrived->wait();  // its staged tokens are copied
  const auto count = static_cast<std::size_t>(tokens_);
  std::int32_t* staged = slot.staged;
  for (std::int64_t micro_step = 0; micro_step < accumulation_; ++micro_step) {
    batches_.fill(prepared_, micro_step, {staged, count},
                  {staged + count, count});
    staged += 2 * count;
  }
  slot.arrived = device_.prefetch(slot.tokens, slot.staged, slot.used);
  ++prepared_;
}

std::span<const BatchFeeder::Batch> BatchFeeder::next() {
  Slot& slot = slots_[taken_++ % 2];
  device_.wait(slot.arrived);
  return slot.batches;
}

void BatchFeeder::release() {
  slots_[(taken_ - 1) % 2].used = device_.record();
  prepare();
}

}  // namespace lockstep
