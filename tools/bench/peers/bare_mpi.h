#ifndef SHERD_TOOLS_BENCH_PEERS_BARE_MPI_H_
#define SHERD_TOOLS_BENCH_PEERS_BARE_MPI_H_

#include "absl/status/status.h"

namespace sherd {

// Starts MPI in a process of mpirun, unless Sherd's plugin has done so, and
// finalizes it at exit.
void StartMpi();

absl::Status StatusOfMpi(int code);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_PEERS_BARE_MPI_H_
