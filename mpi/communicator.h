#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/lane.h"
#include "core/tensor.h"

namespace lockstep {

class World;

enum class Reduction { sum, average };

enum class Collective { all_reduce, reduce_scatter, all_gather, broadcast };
constexpr std::array<std::string_view, 4> collective_names = {
    "all-reduce", "reduce-scatter", "all-gather", "broadcast"};

// Calls of one collective, and what they moved in the textbook terms of ZeRO
// (Rajbhandari et al. 2020, section 7): n for a reduce-scatter, an all-gather
// or a broadcast of n elements, 2n for an all-reduce.
struct Traffic {
  std::int64_t calls = 0;
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
};

// What communication did in one step, on one rank.
struct CommFigures {
  std::array<Traffic, collective_names.size()> traffic;  // by Collective
  double busy_ms = 0;     // the communication lane worked
  double exposed_ms = 0;  // the compute lane stood still for it

  Traffic total() const;
};

// The collectives among all ranks of a run, and the communication lane they
// are ordered on.
//
// Contract:
//  - Every rank issues the same collectives, with the same element counts and
//    dtypes, in the same order.
//  - A call returns at once. Its input must be ready on this lane: precede it
//    by wait(device.record()) where compute produced it. Its output is ready
//    once an event recorded afterwards has completed: see join().
//  - Counts are elements. Reductions take f32, bf16 or f64 and accumulate in
//    at least fp32 where the backend allows; the rest take any dtype.
//  - Errors surface at the call, at join() or at synchronize(), as Error.
class Communicator : public Lane {
 public:
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // out = reduction of all ranks' `in`, which may be `out` itself.
  void all_reduce(const Tensor& out, const Tensor& in, Reduction reduction);
  void all_reduce(const Tensor& buffer, Reduction reduction) {
    all_reduce(buffer, buffer, reduction);
  }
  // shard = reduction of all ranks' part rank() of `whole`; whole has size()
  // times the elements of shard, which may be its own part of whole.
  void reduce_scatter(const Tensor& shard, const Tensor& whole,
                      Reduction reduction);
  // whole = all ranks' shards in rank order; shard may be its part of whole.
  void all_gather(const Tensor& whole, const Tensor& shard);
  // out = rank root's `in`, which may be `out` itself.
  void broadcast(const Tensor& out, const Tensor& in, int root);
  void broadcast(const Tensor& buffer, int root) {
    broadcast(buffer, buffer, root);
  }

  // Makes the compute lane wait for `done`, an event of this lane, and books
  // the time it stands still as exposed communication.
  void join(Device& device, const Event& done);

  // From now on, a collective that does not end within `seconds` after the lane
  // came to it is reported, once, from a thread of its own: which it is, and
  // what to look for. Ranks that issue different collectives end here.
  void watch(double seconds, std::function<void(const std::string&)> on_stuck);

  // Figures are kept per step in a ring of `figure_slots`: begin_step() opens
  // the next slot, and figures_of(step) waits for what that step has issued.
  static constexpr int figure_slots = 4;
  void begin_step(std::int64_t step);
  CommFigures figures_of(std::int64_t step) const;
  // The same step's collectives and, named "wait", the stretches in which the
  // compute lane stood still for them.
  std::vector<Span> collectives_of(std::int64_t step) const;
  std::vector<Span> waits_of(std::int64_t step) const;

 protected:
  // Called first on threads that look at this lane's events.
  virtual void enter_thread() {}
  // Error if the lane has failed in a way that no call would show. Called from
  // such a thread, again and again.
  virtual void check_health() {}
  // To be called by destructors of implementations: nobody looks afterwards.
  void stop_watching();

  virtual void do_all_reduce(const Tensor& out, const Tensor& in,
                             Reduction reduction) = 0;
  virtual void do_reduce_scatter(const Tensor& shard, const Tensor& whole,
                                 Reduction reduction) = 0;
  virtual void do_all_gather(const Tensor& whole, const Tensor& shard) = 0;
  virtual void do_broadcast(const Tensor& out, const Tensor& in, int root) = 0;

 private:
  struct Slot {
    std::array<Traffic, collective_names.size()> traffic;
    std::vector<Span> busy;
    std::vector<Span> exposed;
  };
  // Runs `work`, which moves `times` the elements of `tensor`.
  template <class Work>
  void book(Collective collective, int times, const Tensor& tensor, Work work);

  struct Watched {
    std::string what;
    Event begin;
    Event end;
  };
  void watch_until(const std::stop_token& stop, double seconds);

  Slot slots_[figure_slots];
  Slot* slot_ = &slots_[0];
  std::int64_t step_ = 0;

  std::function<void(const std::string&)> on_stuck_;
  std::mutex watched_mutex_;
  std::deque<Watched> watched_;  // not known to have ended, in order
  std::jthread watchdog_;
};

// NCCL for a CUDA device, MPI with a worker thread otherwise. Collective over
// the world. With share_gpu, ranks may use one GPU: NCCL is then made to take
// each for a host of its own, which is slow and correct.
std::unique_ptr<Communicator> make_communicator(World& world, Device& device,
                                                bool share_gpu);

// "2.28.9", or "" in a build without CUDA.
std::string nccl_version();

}  // namespace lockstep
