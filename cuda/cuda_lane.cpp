#include "cuda/cuda_lane.h"

#include <mutex>
#include <vector>

namespace lockstep {

// Events that wait for their next use. Thread-safe: a watchdog may let go of
// the last handle.
class EventPool {
 public:
  EventHandle take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      EventHandle event;
      check_cuda(cudaEventCreate(event.out()), "cudaEventCreate");
      return event;
    }
    EventHandle event = std::move(free_.back());
    free_.pop_back();
    return event;
  }
  void give_back(EventHandle event) {
    const std::lock_guard lock(mutex_);
    if (event) free_.push_back(std::move(event));
  }

 private:
  std::mutex mutex_;
  std::vector<EventHandle> free_;
};

namespace {

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status == cudaStreamCaptureStatusActive;
}

// A recorded cudaEvent_t. Inside a stream capture it is two: one that the
// graph records each time it runs, whose time can be read, and one that other
// streams of the capture wait for, which becomes an edge of the graph.
class CudaEvent : public EventState {
 public:
  CudaEvent(std::shared_ptr<EventPool> pool, cudaStream_t stream)
      : pool_(std::move(pool)), timed_(pool_->take()) {
    if (!is_capturing(stream)) {
      check_cuda(cudaEventRecord(timed_.get(), stream), "cudaEventRecord");
      return;
    }
    edge_ = pool_->take();
    check_cuda(
        cudaEventRecordWithFlags(timed_.get(), stream, cudaEventRecordExternal),
        "cudaEventRecordWithFlags");
    check_cuda(cudaEventRecord(edge_.get(), stream), "cudaEventRecord");
  }
  ~CudaEvent() override {
    pool_->give_back(std::move(timed_));
    pool_->give_back(std::move(edge_));
  }

  bool completed() const override {
    const cudaError_t state = cudaEventQuery(timed_.get());
    if (state == cudaErrorNotReady) return false;
    check_cuda(state, "cudaEventQuery");
    return true;
  }
  void wait() const override {
    check_cuda(cudaEventSynchronize(timed_.get()), "cudaEventSynchronize");
  }
  double milliseconds_since(const EventState& earlier) const override {
    float milliseconds = 0;
    check_cuda(
        cudaEventElapsedTime(
            &milliseconds, dynamic_cast<const CudaEvent&>(earlier).timed_.get(),
            timed_.get()),
        "cudaEventElapsedTime");
    return milliseconds;
  }
  cudaEvent_t to_wait_for() const { return edge_ ? edge_.get() : timed_.get(); }

 private:
  std::shared_ptr<EventPool> pool_;
  EventHandle timed_;
  EventHandle edge_;
};

}  // namespace

CudaLane::CudaLane() : pool_(std::make_shared<EventPool>()) {
  check_cuda(cudaStreamCreateWithFlags(stream_.out(), cudaStreamNonBlocking),
             "cudaStreamCreateWithFlags");
}

Event CudaLane::record() {
  return std::make_shared<CudaEvent>(pool_, stream());
}

void CudaLane::wait(const Event& event) {
  if (event == nullptr) return;
  const auto* recorded = dynamic_cast<const CudaEvent*>(event.get());
  if (recorded == nullptr) {
    event->wait();
    return;
  }
  check_cuda(cudaStreamWaitEvent(stream(), recorded->to_wait_for(), 0),
             "cudaStreamWaitEvent");
}

void CudaLane::synchronize() {
  check_cuda(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
}

}  // namespace lockstep
