#pragma once

#include <vector>

#include "sync/replica.h"

namespace lockstep {

// What PyTorch's DDP does (Li et al. 2020, section 3.2.3): gradients travel in
// buckets of --bucket-mb, each as soon as its last gradient is complete.
// Gradients become ready from the end of the flat buffer to its beginning, so
// a bucket is a range of it and nothing is copied together. The first bucket
// is small, so that communication starts early.
class Bucketed : public Replica {
 public:
  explicit Bucketed(const SyncContext& context)
      : Bucketed(context, OptimizerState::whole) {}

  void begin_step() override;
  void gradient_ready(Parameter& parameter) override;
  void finish() override { finish_all_reduces(); }

 protected:
  Bucketed(const SyncContext& context, OptimizerState state);

 private:
  struct Bucket {
    Tensor gradients;
    int members = 0;
    int pending = 0;  // members whose gradient isn't complete in this step
  };
  std::vector<Bucket> buckets_;  // in the order in which they become ready
  std::vector<int> bucket_of_;   // by Parameter::index
};

}  // namespace lockstep
