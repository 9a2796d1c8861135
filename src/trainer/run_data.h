#pragma once

#include <memory>

#include "config/options.h"
#include "data/batches.h"
#include "data/token_source.h"
#include "mpi/world.h"

namespace lockstep {

// What a run trains and validates on. `source` and `validation_source` are
// empty for random tokens and without validation.
struct RunData {
  std::unique_ptr<TokenSource> source;
  std::unique_ptr<TokenSource> validation_source;
  std::unique_ptr<Batches> training;
  std::unique_ptr<Batches> validation;
};

// The geometry of the batches that a rank of a run is fed.
BatchShape batch_shape(const Options& options, int rank, int world_size);

// Opens the sources and checks every token against the vocabulary, each rank
// a part of them; training begins at `first_sample`. Errors on any rank are
// errors on all.
RunData open_data(const Options& options, std::int64_t first_sample,
                  World& world);

}  // namespace lockstep
