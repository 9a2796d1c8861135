#include "mpi/mpi_communicator.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "core/host_event.h"
#include "mpi/mpi_calls.h"

namespace lockstep {
namespace {

// One thread that runs tasks in the order they were given.
class Worker {
 public:
  Worker() : thread_([this] { run(); }) {}
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void enqueue(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

 private:
  void run() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool ending_ = false;
  std::thread thread_;
};

// MPI's own types for ours; bf16 has none, so it is two bytes with a sum that
// adds in fp32.
class BfloatSum {
 public:
  BfloatSum() {
    MPI_Type_contiguous(2, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    MPI_Op_create(&add, /*commute=*/1, &op);
  }
  ~BfloatSum() {
    MPI_Op_free(&op);
    MPI_Type_free(&type);
  }
  BfloatSum(const BfloatSum&) = delete;
  BfloatSum& operator=(const BfloatSum&) = delete;

  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Op op = MPI_OP_NULL;

 private:
  static void add(void* in, void* in_out, int* length, MPI_Datatype*) {
    const auto* a = static_cast<const bfloat16*>(in);
    auto* b = static_cast<bfloat16*>(in_out);
    for (int i = 0; i < *length; ++i)
      b[i] = bfloat16(float(a[i]) + float(b[i]));
  }
};

std::byte* bytes_at(const Tensor& tensor, std::int64_t element) {
  return static_cast<std::byte*>(tensor.data) +
         element * bytes_of(tensor.dtype);
}

template <class T>
void multiply(const Tensor& tensor, double factor) {
  T* values = tensor.as<T>();
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    values[i] = T(static_cast<float>(values[i]) * static_cast<float>(factor));
  }
}
template <>
void multiply<double>(const Tensor& tensor, double factor) {
  double* values = tensor.as<double>();
  for (std::int64_t i = 0; i < tensor.elements(); ++i) values[i] *= factor;
}

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(World& world, MPI_Comm parent, MpiSettings settings)
      : world_(world), comm_(parent), settings_(std::move(settings)) {}
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;
  ~MpiCommunicator() override {
    synchronize();
    stop_watching();
  }

  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }

  Event record() override {
    auto event = std::make_shared<HostEvent>();
    worker_.enqueue([event] { event->complete(); });
    return event;
  }
  void wait(const Event& event) override {
    if (event == nullptr || event->completed()) return;
    worker_.enqueue([event] { event->wait(); });
  }
  void synchronize() override { record()->wait(); }

 private:
  // Runs on the worker; a failure there leaves the other ranks waiting, so it
  // ends the run.
  template <class Task>
  void enqueue(Task task) {
    worker_.enqueue([this, task] {
      try {
        if (settings_.before_each) settings_.before_each();
        task();
      } catch (const std::exception& error) {
        world_.abort(error.what());
      }
    });
  }

  MPI_Datatype type_of(Dtype dtype) const {
    switch (dtype) {
      case Dtype::f64:
        return MPI_DOUBLE;
      case Dtype::f32:
        return MPI_FLOAT;
      case Dtype::bf16:
        return bfloat_.type;
      case Dtype::i32:
        return MPI_INT32_T;
      case Dtype::i16:
        return MPI_INT16_T;
    }
    return MPI_DATATYPE_NULL;
  }
  MPI_Op sum_of(Dtype dtype) const {
    return dtype == Dtype::bf16 ? bfloat_.op : MPI_SUM;
  }

  // Calls piece(first element, count) over n elements.
  template <class Piece>
  void in_pieces(std::int64_t n, Piece piece) const {
    for (std::int64_t done = 0; done < n; done += settings_.chunk) {
      piece(done, static_cast<int>(std::min(settings_.chunk, n - done)));
    }
  }

  void divide(const Tensor& tensor, Reduction reduction) const {
    if (reduction != Reduction::average || size() == 1) return;
    const double factor = 1.0 / size();
    switch (tensor.dtype) {
      case Dtype::f64:
        return multiply<double>(tensor, factor);
      case Dtype::bf16:
        return multiply<bfloat16>(tensor, factor);
      default:
        return multiply<float>(tensor, factor);
    }
  }

  void do_all_reduce(const Tensor& out, const Tensor& in,
                     Reduction reduction) override {
    enqueue([=, this] {
      in_pieces(out.elements(), [&](std::int64_t first, int count) {
        const void* from =
            in.data == out.data ? MPI_IN_PLACE : bytes_at(in, first);
        check_mpi(MPI_Allreduce(from, bytes_at(out, first), count,
                                type_of(out.dtype), sum_of(out.dtype), comm_),
                  "MPI_Allreduce");
      });
      divide(out, reduction);
    });
  }

  void do_reduce_scatter(const Tensor& shard, const Tensor& whole,
                         Reduction reduction) override {
    enqueue([=, this] {
      const std::int64_t n = shard.elements();
      for (int root = 0; root < size(); ++root) {
        in_pieces(n, [&](std::int64_t first, int count) {
          const void* from = bytes_at(whole, root * n + first);
          void* to = bytes_at(shard, first);
          const bool in_place = root == rank() && from == to;
          check_mpi(MPI_Reduce(in_place ? MPI_IN_PLACE : from, to, count,
                               type_of(shard.dtype), sum_of(shard.dtype), root,
                               comm_),
                    "MPI_Reduce");
        });
      }
      divide(shard, reduction);
    });
  }

  void do_all_gather(const Tensor& whole, const Tensor& shard) override {
    enqueue([=, this] {
      const std::int64_t n = shard.elements();
      std::byte* mine = bytes_at(whole, rank() * n);
      if (mine != shard.data) std::memcpy(mine, shard.data, shard.bytes());
      if (n <= settings_.chunk) {
        check_mpi(
            MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, whole.data,
                          static_cast<int>(n), type_of(whole.dtype), comm_),
            "MPI_Allgather");
        return;
      }
      for (int root = 0; root < size(); ++root) {
        in_pieces(n, [&](std::int64_t first, int count) {
          check_mpi(MPI_Bcast(bytes_at(whole, root * n + first), count,
                              type_of(whole.dtype), root, comm_),
                    "MPI_Bcast");
        });
      }
    });
  }

  void do_broadcast(const Tensor& out, const Tensor& in, int root) override {
    enqueue([=, this] {
      if (rank() == root && in.data != out.data && in.bytes() > 0) {
        std::memcpy(out.data, in.data, in.bytes());
      }
      in_pieces(out.elements(), [&](std::int64_t first, int count) {
        check_mpi(MPI_Bcast(bytes_at(out, first), count, type_of(out.dtype),
                            root, comm_),
                  "MPI_Bcast");
      });
    });
  }

  World& world_;
  OwnedComm comm_;
  BfloatSum bfloat_;
  MpiSettings settings_;
  Worker worker_;  // last: its tasks use the rest
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(World& world,
                                                    MpiSettings settings) {
  return std::make_unique<MpiCommunicator>(world, MPI_COMM_WORLD,
                                           std::move(settings));
}

}  // namespace lockstep
