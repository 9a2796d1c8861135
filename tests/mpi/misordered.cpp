#include <vector>

#include "mpi/mpi_communicator.h"
#include "mpi/world.h"

// Two collectives that the last rank issues in another order. Must end with a
// message within the watchdog's time.
int main(int argc, char** argv) {
  using namespace lockstep;
  World world(argc, argv);
  return world.guard([&] {
    const auto comm = make_mpi_communicator(world);
    comm->watch(2, [&](const std::string& line) { world.abort(line); });
    std::vector<float> values(16);
    const Tensor buffer{values.data(), Dtype::f32, {std::ssize(values)}};
    comm->begin_step(1);
    const bool last = world.rank() == world.size() - 1;
    if (last) comm->broadcast(buffer, 0);
    comm->all_reduce(buffer, Reduction::sum);
    if (!last) comm->broadcast(buffer, 0);
    comm->synchronize();
    return 0;
  });
}
