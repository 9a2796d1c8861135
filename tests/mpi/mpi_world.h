#pragma once

#include "mpi/world.h"

namespace lockstep {

// The world that the test program's main made.
World& world();

}  // namespace lockstep
