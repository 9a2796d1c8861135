#pragma once

#include <mpi.h>

#include "core/error.h"
#include "mpi/world.h"

namespace lockstep {

// MPI's return code as an Error that names the call.
inline void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail("{} failed: {}", call, std::string_view(text, length));
}

// A communicator over all ranks of a world that its owner alone uses.
class OwnedComm {
 public:
  explicit OwnedComm(MPI_Comm other) {
    check_mpi(MPI_Comm_dup(other, &comm_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }
  ~OwnedComm() { MPI_Comm_free(&comm_); }
  OwnedComm(const OwnedComm&) = delete;
  OwnedComm& operator=(const OwnedComm&) = delete;
  operator MPI_Comm() const { return comm_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace lockstep
