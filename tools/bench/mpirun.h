#ifndef SHERD_TOOLS_BENCH_MPIRUN_H_
#define SHERD_TOOLS_BENCH_MPIRUN_H_

#include <string>
#include <vector>

namespace sherd {

// Path of Open MPI's launcher, or empty if this machine has none.
std::string FindMpirun();

// The command line that starts `world` times `program` with `arguments` on this
// host, unpinned like all ranks of bench, over Open MPI's fastest transport
// within a host.
std::vector<std::string> MpirunCommand(
    const std::string& mpirun, int world, const std::string& program,
    const std::vector<std::string>& arguments);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_MPIRUN_H_
