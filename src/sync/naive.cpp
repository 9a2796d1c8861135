#include "sync/naive.h"

namespace lockstep {

void Naive::finish() {
  for (const Parameter* parameter : context_.store.parameters()) {
    start_all_reduce(parameter->gradient());
  }
  finish_all_reduces();
}

}  // namespace lockstep
