#include "core/stop_signal.h"

#include <atomic>
#include <csignal>

namespace lockstep {
namespace {

std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free, "used in a handler");

void note(int signal) {
  int none = 0;
  received.compare_exchange_strong(none, signal);
  if (signal == SIGINT) std::signal(SIGINT, SIG_DFL);
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT}) {
    sigaction(signal, &action, nullptr);
  }
}

int stop_signal() {
  return received;
}

}  // namespace lockstep
