#include "sherd/tools/bench/peers/bare_mpi.h"

#include <mpi.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace sherd {

void StartMpi() {
  int running = 0;
  MPI_Initialized(&running);
  if (running != 0) return;
  int provided;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  std::atexit([] {
    int ended = 0;
    MPI_Finalized(&ended);
    if (ended == 0) MPI_Finalize();
  });
}

absl::Status StatusOfMpi(int code) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("Open MPI: error ", code));
}

}  // namespace sherd
