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
  int local_rank = 0;
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
// on any rank into the same Error on every rank; an exception that leaves the
// main program elsewhere goes through abort().
class World {
 public:
  // Initialises MPI (MPI_THREAD_MULTIPLE).
  World(int& argc, char**& argv);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return place_.rank; }
  int size() const { return static_cast<int>(places_.size()); }
  bool root() const { return rank() == 0; }
  const Place& place() const { return place_; }
  const std::vector<Place>& places() const { return places_; }

  // Runs `work` on every rank. If it throws on any, every rank throws an Error
  // (UsageError if it was one) with the text of the lowest rank that failed,
  // and which rank and host that was where not all failed alike.
  void together(const std::function<void()>& work);

  // Error on all ranks if a value differs between ranks: names the option and
  // both values.
  using Settings = std::vector<std::pair<std::string, std::string>>;
  void require_same(const Settings& settings);

  void barrier();
  // rows of all ranks in rank order, each of mine.size() values.
  std::vector<double> all_gather(std::span<const double> mine);
  // texts of all ranks in rank order.
  std::vector<std::string> all_gather(const std::string& mine);
  double sum(double mine);
  // Rank 0's bytes, on every rank.
  void broadcast(void* data, std::int64_t bytes);

  // Says what happened ("train: error on rank 3 (host): …") and ends all ranks
  // at once.
  [[noreturn]] void abort(const std::string& message);

  static std::string mpi_version();

 private:
  struct Handles;
  std::unique_ptr<Handles> handles_;  // MPI's own types stay out of this file
  Place place_;
  std::vector<Place> places_;
};

}  // namespace lockstep
