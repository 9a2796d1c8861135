#pragma once

namespace lockstep {

// From now on SIGTERM, SIGUSR1 and SIGINT ask this process to stop at the next
// good moment instead of ending it; a second SIGINT ends it. To be called
// before MPI starts, which may take long.
void catch_stop_signals();

// The first of them that came, or 0.
int stop_signal();

}  // namespace lockstep
