#pragma once

#include <string>

#include "trainer/evaluation.h"
#include "trainer/run_data.h"

namespace lockstep {

// --generate: what the model writes after the first tokens of its data. Bytes
// become text where the vocabulary is bytes (at most 256), ids are listed
// otherwise. Every rank calls.
std::string sample_text(Evaluation& evaluation, const Options& options,
                        const RunData& data);

}  // namespace lockstep
