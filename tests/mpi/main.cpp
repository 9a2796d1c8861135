#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "mpi/world.h"
#include "mpi_world.h"

// GoogleTest over several ranks: every rank runs every test, a failure on any
// rank fails the program on all, and a test that hangs is ended by name.
namespace lockstep {
namespace {

World* the_world = nullptr;

class Watchdog : public testing::EmptyTestEventListener {
 public:
  explicit Watchdog(std::chrono::seconds limit)
      : limit_(limit), thread_([this] { watch(); }) {}
  ~Watchdog() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void OnTestStart(const testing::TestInfo& test) override {
    const std::lock_guard lock(mutex_);
    running_ = std::string(test.test_suite_name()) + "." + test.name();
    started_ = std::chrono::steady_clock::now();
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::seconds(1),
                              [this] { return ending_; })) {
      if (std::chrono::steady_clock::now() - started_ < limit_) continue;
      the_world->abort("test " + running_ + " hangs");
    }
  }

  std::chrono::seconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::string running_ = "(none)";
  std::chrono::steady_clock::time_point started_ =
      std::chrono::steady_clock::now();
  std::thread thread_;
};

// Leaves the printing to rank 0, but for failures, which say their rank.
class RankFailures : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", the_world->rank(),
                 result.file_name() == nullptr ? "?" : result.file_name(),
                 result.line_number(), result.summary());
  }
};

}  // namespace

World& world() {
  return *the_world;
}

}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  World world(argc, argv);
  the_world = &world;
  testing::InitGoogleTest(&argc, argv);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (!world.root()) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new RankFailures);
  }
  listeners.Append(new Watchdog(std::chrono::seconds(60)));
  const double failed = RUN_ALL_TESTS();
  double failures = 0;
  for (const double each : world.all_gather({&failed, 1})) failures += each;
  if (world.root() && failures > 0 && failed == 0) {
    std::fprintf(stderr, "tests failed on other ranks\n");
  }
  return failures > 0 ? 1 : 0;
}
