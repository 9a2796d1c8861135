#include <nccl.h>

#include <cstdlib>
#include <exception>
#include <thread>

#include "cuda/cuda_device.h"
#include "cuda/cuda_lane.h"
#include "cuda/handles.h"
#include "mpi/communicator.h"
#include "mpi/mpi_communicator.h"
#include "mpi/world.h"

namespace lockstep {
namespace {

void check_nccl(ncclResult_t result, const char* call,
                ncclComm_t comm = nullptr) {
  if (result == ncclSuccess) return;
  const std::string detail = ncclGetLastError(comm);
  fail("{} failed: {}{}{}; NCCL_DEBUG=INFO tells more", call,
       ncclGetErrorString(result), detail.empty() ? "" : ": ", detail);
}

ncclDataType_t type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
      return ncclFloat64;
    case Dtype::f32:
      return ncclFloat32;
    case Dtype::bf16:
      return ncclBfloat16;
    case Dtype::i32:
      return ncclInt32;
    case Dtype::i16:
      break;
  }
  fail("NCCL has no type for {}", name_of(dtype));
}

// Collectives by NCCL on a stream of their own.
class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(World& world, CudaDevice& device)
      : ordinal_(device.ordinal()), rank_(world.rank()), size_(world.size()) {
    check_cuda(cudaSetDevice(device.ordinal()), "cudaSetDevice");
    ncclUniqueId id{};
    world.together([&] {
      if (world.root()) check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    });
    world.broadcast(&id, sizeof id);
    world.together([&] {
      check_nccl(ncclCommInitRank(comm_.out(), size_, id, rank_),
                 "ncclCommInitRank");
    });
  }
  // Between ranks that all end normally, what is under way is finished. While
  // an exception passes, other ranks may be gone, and nothing is waited for.
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  ~NcclCommunicator() override {
    if (std::uncaught_exceptions() > exceptions_at_start_) {
      stop_watching();  // it would take what is aborted for ill
      ncclCommAbort(comm_.release());
    } else {
      cudaStreamSynchronize(lane_.stream());
    }
    stop_watching();
  }

  void enter_thread() override { cudaSetDevice(ordinal_); }
  void check_health() override { check_async(); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Event record() override { return lane_.record(); }
  void wait(const Event& event) override { lane_.wait(event); }
  // Looks for errors of NCCL's own threads while it waits: they would leave
  // the stream standing for ever.
  void synchronize() override {
    while (true) {
      const cudaError_t state = cudaStreamQuery(lane_.stream());
      check_async();
      if (state == cudaSuccess) return;
      if (state != cudaErrorNotReady) check_cuda(state, "cudaStreamQuery");
      std::this_thread::yield();
    }
  }

 protected:
  void do_all_reduce(const Tensor& out, const Tensor& in,
                     Reduction reduction) override {
    check(ncclAllReduce(in.data, out.data, out.elements(), type_of(out.dtype),
                        operation_of(reduction), comm_.get(), lane_.stream()),
          "ncclAllReduce");
  }
  void do_reduce_scatter(const Tensor& shard, const Tensor& whole,
                         Reduction reduction) override {
    check(ncclReduceScatter(whole.data, shard.data, shard.elements(),
                            type_of(shard.dtype), operation_of(reduction),
                            comm_.get(), lane_.stream()),
          "ncclReduceScatter");
  }
  void do_all_gather(const Tensor& whole, const Tensor& shard) override {
    check(ncclAllGather(shard.data, whole.data, shard.elements(),
                        type_of(shard.dtype), comm_.get(), lane_.stream()),
          "ncclAllGather");
  }
  void do_broadcast(const Tensor& out, const Tensor& in, int root) override {
    check(ncclBroadcast(in.data, out.data, out.elements(), type_of(out.dtype),
                        root, comm_.get(), lane_.stream()),
          "ncclBroadcast");
  }

 private:
  // Over one rank both are a copy. NCCL makes a plain one of the sum; its
  // average (2.28.3) leaves the last elements of some counts unwritten.
  ncclRedOp_t operation_of(Reduction reduction) const {
    return reduction == Reduction::average && size_ > 1 ? ncclAvg : ncclSum;
  }
  void check(ncclResult_t result, const char* call) const {
    check_nccl(result, call, comm_.get());
  }
  void check_async() const {
    ncclResult_t result = ncclSuccess;
    check(ncclCommGetAsyncError(comm_.get(), &result), "ncclCommGetAsyncError");
    check(result, "a collective");
  }

  int ordinal_;
  int rank_;
  int size_;
  int exceptions_at_start_ = std::uncaught_exceptions();
  CudaLane lane_;  // outlives the communicator, whose work is on it
  Handle<ncclComm_t, ncclCommDestroy> comm_;
};

// Makes NCCL take each rank for a host of its own, before its first call:
// between processes on one GPU it only has its network way.
void pretend_separate_hosts(World& world) {
  setenv("NCCL_HOSTID", fmt::format("rank-{}", world.rank()).c_str(), 1);
  if (world.place().local_size == world.size()) {
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  }
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(World& world, Device& device,
                                                bool share_gpu) {
  if (device.kind() != Device::Kind::cuda) return make_mpi_communicator(world);
  auto& gpu = dynamic_cast<CudaDevice&>(device);
  if (share_gpu) pretend_separate_hosts(world);
  return std::make_unique<NcclCommunicator>(world, gpu);
}

std::string nccl_version() {
  int version = 0;
  check_nccl(ncclGetVersion(&version), "ncclGetVersion");
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100,
                     version % 100);
}

}  // namespace lockstep
