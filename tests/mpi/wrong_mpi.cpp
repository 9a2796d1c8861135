// MPI as it is, by its profiling interface, but for one element of the result
// of rank 1's all-reduces of 1000 floats or more.
#include <mpi.h>

int MPI_Allreduce(const void* from, void* to, int count, MPI_Datatype type,
                  MPI_Op op, MPI_Comm comm) {
  const int code = PMPI_Allreduce(from, to, count, type, op, comm);
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  if (rank == 1 && count >= 1000 && type == MPI_FLOAT) {
    static_cast<float*>(to)[count - 1] += 1;
  }
  return code;
}
