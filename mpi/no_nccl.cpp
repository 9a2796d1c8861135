#include "mpi/communicator.h"
#include "mpi/mpi_communicator.h"

// Communication of a build without CUDA: all devices are CPUs.
namespace lockstep {

std::unique_ptr<Communicator> make_communicator(World& world, Device&, bool) {
  return make_mpi_communicator(world);
}

std::string nccl_version() { return ""; }

}  // namespace lockstep
