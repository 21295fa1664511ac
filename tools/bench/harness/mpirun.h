#ifndef SHERD_TOOLS_BENCH_HARNESS_MPIRUN_H_
#define SHERD_TOOLS_BENCH_HARNESS_MPIRUN_H_

#include <string>
#include <vector>

namespace sherd {

// Path of Open MPI's launcher, or empty if this machine has none.
std::string FindMpirun();

// Open MPI's transport inside a host. Which one is the fastest depends on the
// work.
enum class MpiTransport {
  // Shared memory; large messages by one copy across processes.
  kVader,
  // Shared memory, and two copies.
  kVaderTwoCopies,
  // UCX.
  kUcx,
};
// "vader", "vader, 2 copies", "ucx".
const char* NameOf(MpiTransport transport);

// The command line that starts `program` with `arguments` `world` times on this
// host, unpinned like all ranks of bench. Open MPI's shared memory is in
// `directory`: its names there depend on process ids, which may be equal in two
// containers.
std::vector<std::string> MpirunCommand(
    const std::string& mpirun, MpiTransport transport,
    const std::string& directory, int world, const std::string& program,
    const std::vector<std::string>& arguments);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_HARNESS_MPIRUN_H_
