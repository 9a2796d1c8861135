#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

// Where one rank runs.
struct Place {
  int rank = 0;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;
  std::string host;
  int cores = 1;     // this rank's share of the cores it may run on
  std::string mask;  // the cores it may run on, "0-3,8"
};

// MPI from its start to its end, and the facts of this rank. One object, made
// first in main(). Its calls are for the host side of a run (facts, options,
// figures, errors) and block; gradients travel by a Communicator.
//
// Errors: whatever fails on one rank must end all. together() turns a failure
// on any rank into the same failure on every rank, and guard() turns anything
// else that leaves the program into an abort of all ranks.
class World {
 public:
  // Initialises MPI with MPI_THREAD_MULTIPLE.
  World(int& argc, char**& argv);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return place_.rank; }
  int size() const { return size_; }
  bool root() const { return rank() == 0; }
  const Place& place() const { return place_; }

  // Runs the program and returns its exit code. After a failure in together()
  // rank 0 says in one line what it was and every rank returns 2 for a
  // UsageError and 1 otherwise. Any other exception ends all ranks at once.
  int guard(const std::function<int()>& program);

  // Runs `work` on every rank. If it throws on any, every rank throws an Error
  // with the text of the lowest rank that failed, naming that rank and host
  // unless all failed alike.
  void together(const std::function<void()>& work);

  // An error on all ranks if a value differs from rank 0's: names the setting
  // and both values.
  using Settings = std::vector<std::pair<std::string, std::string>>;
  void require_same(const Settings& settings);

  // From now on, an all_gather of values that does not end within `seconds`
  // ends all ranks with a message: another rank, or its host, is gone.
  void watch(double seconds);

  // Values of all ranks in rank order; every rank gives equally many.
  std::vector<double> all_gather(std::span<const double> mine);
  // Texts of all ranks in rank order, of any lengths.
  std::vector<std::string> all_gather(const std::string& mine);
  // Values that rank `from` has, to those of rank 0, in place; the two call,
  // and other ranks may.
  void to_root(int from, std::span<float> values);
  // Rank 0's bytes, on every rank.
  void broadcast(void* data, std::int64_t bytes);

  // Says what happened, on which rank and host, and ends all ranks at once.
  [[noreturn]] void abort(const std::string& message);

 private:
  friend struct MpiCalls;
  struct Handles;
  std::unique_ptr<Handles> handles_;  // MPI's own types stay out of this file
  Place place_;
  int size_ = 1;
};

// "Open MPI 4.1.4", as the library calls itself.
std::string mpi_version();

}  // namespace lockstep
