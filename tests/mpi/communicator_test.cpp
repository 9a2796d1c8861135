#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "core/error.h"
#include "mpi/dry_communicator.h"
#include "mpi/mpi_communicator.h"
#include "mpi_world.h"
#include "ops/ops.h"

namespace lockstep {
namespace {

// Values that sums of a few ranks represent exactly, also in bf16.
double value_of(int rank, std::int64_t i) {
  return rank + double(i % 7);
}
double sum_of(std::int64_t i) {
  const int w = world().size();
  return w * (w - 1) / 2.0 + w * double(i % 7);
}

template <class T>
struct Values : std::vector<T> {
  explicit Values(std::int64_t n) : std::vector<T>(n) {}
  void fill(int rank) {
    for (std::int64_t i = 0; i < std::ssize(*this); ++i) {
      (*this)[i] = T(static_cast<float>(value_of(rank, i)));
    }
  }
  Tensor tensor() {
    return {this->data(), dtype_of<T>::value, {std::ssize(*this)}};
  }
  Tensor part(int rank, std::int64_t n) { return tensor().range(rank * n, n); }
};

template <class T>
class Collectives : public testing::Test {
 protected:
  // A small chunk makes even these buffers travel in pieces.
  std::unique_ptr<Communicator> comm_ =
      make_mpi_communicator(world(), {.chunk = 10, .before_each = {}});
  int rank_ = world().rank();
  int size_ = world().size();
};
using Types = testing::Types<float, double, bfloat16>;
TYPED_TEST_SUITE(Collectives, Types);

TYPED_TEST(Collectives, AllReduceSums) {
  for (const std::int64_t n : {1, 7, 10, 11, 1003}) {
    Values<TypeParam> buffer(n);
    buffer.fill(this->rank_);
    this->comm_->all_reduce(buffer.tensor(), Reduction::sum);
    this->comm_->synchronize();
    for (std::int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(double(buffer[i]), sum_of(i)) << "element " << i << " of " << n;
    }
  }
}

TYPED_TEST(Collectives, AllReduceIntoAnotherBufferLeavesItsInput) {
  for (const std::int64_t n : {1, 10, 1003}) {
    Values<TypeParam> in(n), out(n);
    in.fill(this->rank_);
    this->comm_->all_reduce(out.tensor(), in.tensor(), Reduction::sum);
    this->comm_->synchronize();
    for (std::int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(double(out[i]), sum_of(i)) << "element " << i << " of " << n;
      ASSERT_EQ(double(in[i]), value_of(this->rank_, i));
    }
  }
}

TYPED_TEST(Collectives, AllReduceAverages) {
  Values<TypeParam> buffer(23);
  for (auto& value : buffer) value = TypeParam(float(this->rank_ * 2));
  this->comm_->all_reduce(buffer.tensor(), Reduction::average);
  this->comm_->synchronize();
  for (const auto& value : buffer) {
    EXPECT_NEAR(double(value), this->size_ - 1, 0.01);
  }
}

TYPED_TEST(Collectives, ReduceScatterGivesEachRankItsPart) {
  for (const std::int64_t n : {1, 9, 25}) {
    Values<TypeParam> whole(n * this->size_), shard(n);
    whole.fill(this->rank_);
    this->comm_->reduce_scatter(shard.tensor(), whole.tensor(), Reduction::sum);
    this->comm_->synchronize();
    for (std::int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(double(shard[i]), sum_of(this->rank_ * n + i));
    }
  }
}

TYPED_TEST(Collectives, ReduceScatterIntoItsOwnPart) {
  constexpr std::int64_t n = 13;
  Values<TypeParam> whole(n * this->size_);
  whole.fill(this->rank_);
  this->comm_->reduce_scatter(whole.part(this->rank_, n), whole.tensor(),
                              Reduction::sum);
  this->comm_->synchronize();
  for (std::int64_t i = 0; i < n; ++i) {
    ASSERT_EQ(double(whole[this->rank_ * n + i]), sum_of(this->rank_ * n + i));
  }
}

TYPED_TEST(Collectives, AllGatherPutsShardsInRankOrder) {
  for (const std::int64_t n : {1, 9, 25}) {
    Values<TypeParam> whole(n * this->size_), shard(n);
    shard.fill(this->rank_);
    this->comm_->all_gather(whole.tensor(), shard.tensor());
    this->comm_->synchronize();
    for (std::int64_t i = 0; i < n * this->size_; ++i) {
      ASSERT_EQ(double(whole[i]), value_of(int(i / n), i % n));
    }
  }
}

TYPED_TEST(Collectives, BroadcastSendsTheRootsValues) {
  for (int root = 0; root < this->size_; ++root) {
    Values<TypeParam> buffer(31);
    buffer.fill(this->rank_);
    this->comm_->broadcast(buffer.tensor(), root);
    this->comm_->synchronize();
    for (std::int64_t i = 0; i < 31; ++i) {
      ASSERT_EQ(double(buffer[i]), value_of(root, i));
    }
  }
}

TYPED_TEST(Collectives, BroadcastIntoAnotherBufferLeavesItsInput) {
  for (int root = 0; root < this->size_; ++root) {
    Values<TypeParam> in(31), out(31);
    in.fill(this->rank_);
    this->comm_->broadcast(out.tensor(), in.tensor(), root);
    this->comm_->synchronize();
    for (std::int64_t i = 0; i < 31; ++i) {
      ASSERT_EQ(double(out[i]), value_of(root, i));
      ASSERT_EQ(double(in[i]), value_of(this->rank_, i));
    }
  }
}

TEST(Communicator, RefusesShardsThatDoNotFit) {
  const auto comm = make_mpi_communicator(world());
  Values<float> whole(3 * world().size()), shard(4);
  EXPECT_THROW(comm->all_gather(whole.tensor(), shard.tensor()), Error);
  EXPECT_THROW(
      comm->reduce_scatter(shard.tensor(), whole.tensor(), Reduction::sum),
      Error);
  EXPECT_THROW(comm->broadcast(whole.tensor(), world().size()), Error);
  Values<float> other(3 * world().size() + 1);
  EXPECT_THROW(comm->all_reduce(other.tensor(), whole.tensor(), Reduction::sum),
               Error);
  EXPECT_THROW(comm->broadcast(other.tensor(), whole.tensor(), 0), Error);
}

TEST(Communicator, RunsBesideTheCallingThread) {
  const auto comm = make_mpi_communicator(world());
  Values<float> buffer(1 << 16);
  buffer.fill(world().rank());
  comm->all_reduce(buffer.tensor(), Reduction::sum);
  const Event done = comm->record();
  // This thread makes no MPI call: the lane alone must bring it to its end.
  while (!done->completed()) std::this_thread::yield();
  EXPECT_EQ(buffer[5], sum_of(5));
}

TEST(Communicator, CountsCallsBytesAndTimeOfAStep) {
  Backend backend = make_cpu_backend(1, Precision::fp32);
  const auto comm = make_mpi_communicator(world());
  const std::int64_t w = world().size();
  Values<float> whole(8 * w), shard(8);
  comm->begin_step(1);
  comm->all_reduce(shard.tensor(), Reduction::sum);
  comm->reduce_scatter(shard.tensor(), whole.tensor(), Reduction::sum);
  comm->all_gather(whole.tensor(), shard.tensor());
  comm->broadcast(shard.tensor(), 0);
  comm->join(*backend.device, comm->record());
  const CommFigures figures = comm->figures_of(1);
  EXPECT_EQ(figures.total().calls, 4);
  EXPECT_EQ(figures.total().bytes, 4 * (2 * 8 + 8 * w + 8 * w + 8));
  EXPECT_GT(figures.busy_ms, 0);
  EXPECT_GE(figures.exposed_ms, 0);

  comm->begin_step(2);
  EXPECT_EQ(comm->figures_of(2).total().calls, 0);
  EXPECT_EQ(comm->figures_of(1).total().calls, 4);
}

TEST(Communicator, ReportsACollectiveThatDoesNotEnd) {
  if (world().size() == 1) GTEST_SKIP() << "one rank waits for nobody";
  std::atomic<int> reports = 0;
  std::string said;
  const auto comm = make_mpi_communicator(world());
  comm->watch(0.2, [&](const std::string& line) {
    said = line;
    ++reports;
  });
  comm->begin_step(7);
  Values<float> buffer(4);
  const bool late = world().rank() == world().size() - 1;
  if (late) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  comm->all_reduce(buffer.tensor(), Reduction::sum);
  comm->synchronize();
  if (world().rank() == 0) {
    EXPECT_EQ(reports, 1);
    EXPECT_NE(said.find("all-reduce number 1 of step 7 (4 f32)"),
              std::string::npos)
        << said;
  }
  if (late) {
    EXPECT_EQ(reports, 0);
  }
}

// As NCCL fails: no call says so, and no collective need be under way.
class Ailing : public DryCommunicator {
 public:
  Ailing() : DryCommunicator(0, 2) {}
  ~Ailing() override { stop_watching(); }
  void check_health() override {
    if (ill) fail("the network is gone");
  }
  std::atomic<bool> ill = false;
};

TEST(Communicator, ReportsAFailureInTheBackgroundOnce) {
  using namespace std::chrono_literals;
  std::atomic<int> reports = 0;
  std::string said;
  Ailing comm;
  comm.watch(60, [&](const std::string& line) {
    said = line;
    ++reports;
  });
  std::this_thread::sleep_for(500ms);
  EXPECT_EQ(reports, 0);
  comm.ill = true;
  for (int i = 0; i < 100 && reports == 0; ++i) {
    std::this_thread::sleep_for(50ms);
  }
  std::this_thread::sleep_for(500ms);
  EXPECT_EQ(reports, 1);
  EXPECT_EQ(said, "the network is gone");
}

TEST(Communicator, IsQuietWhileCollectivesEnd) {
  std::atomic<int> reports = 0;
  const auto comm = make_mpi_communicator(world());
  comm->watch(5, [&](const std::string&) { ++reports; });
  Values<float> buffer(4);
  for (int i = 0; i < 300; ++i)
    comm->all_reduce(buffer.tensor(), Reduction::sum);
  comm->synchronize();
  EXPECT_EQ(reports, 0);
}

TEST(Communicator, BooksTheWaitOfComputeAsExposed) {
  Backend backend = make_cpu_backend(1, Precision::fp32);
  const auto comm = make_mpi_communicator(world());
  Values<float> buffer(4);
  comm->begin_step(1);
  comm->all_reduce(buffer.tensor(), Reduction::sum);
  // The last rank comes late, so all others wait for it.
  if (world().rank() == world().size() - 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  comm->all_reduce(buffer.tensor(), Reduction::sum);
  comm->join(*backend.device, comm->record());
  const double exposed = comm->figures_of(1).exposed_ms;
  if (world().size() > 1 && world().rank() == 0) {
    EXPECT_GT(exposed, 20);
  }
}

}  // namespace
}  // namespace lockstep
