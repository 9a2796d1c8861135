#pragma once

#include "ops/ops.h"

namespace lockstep {

// A backend that computes nothing and holds nothing: its memory has addresses
// and is in the ledger, but is not there. Running the real program on it tells
// what a run would allocate and issue.
Backend make_dry_backend();

}  // namespace lockstep
