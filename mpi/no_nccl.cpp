#include "mpi/communicator.h"
#include "mpi/mpi_communicator.h"

// The communicators of a build without CUDA: MPI's alone.
namespace lockstep {

std::unique_ptr<Communicator> make_communicator(World& world, Device&,
                                                bool /*share_gpu*/) {
  return make_mpi_communicator(world);
}

std::string nccl_version() {
  return "";
}

}  // namespace lockstep
