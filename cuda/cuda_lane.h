#pragma once

#include <memory>

#include "core/lane.h"
#include "cuda/handles.h"

namespace lockstep {

class EventPool;

// A lane that is a non-blocking CUDA stream of the current device. Its events
// come from a pool and return to it with their last handle, so that recording
// creates nothing once a run is under way. Used by one thread.
class CudaLane : public Lane {
 public:
  CudaLane();

  Event record() override;
  // An event of another kind of lane makes the host wait.
  void wait(const Event& event) override;
  void synchronize() override;

  cudaStream_t stream() const { return stream_.get(); }

 private:
  StreamHandle stream_;
  std::shared_ptr<EventPool> pool_;
};

}  // namespace lockstep
