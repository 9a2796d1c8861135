#include "sync/naive.h"

namespace lockstep {

void Naive::finish() {
  Communicator& comm = context_.comm;
  comm.wait(context_.device.record());
  for (const Parameter* parameter : context_.store.parameters()) {
    comm.all_reduce(parameter->gradient(), Reduction::average);
  }
  comm.join(context_.device, comm.record());
}

}  // namespace lockstep
