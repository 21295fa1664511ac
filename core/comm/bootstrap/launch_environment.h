#ifndef SHERD_CORE_COMM_BOOTSTRAP_LAUNCH_ENVIRONMENT_H_
#define SHERD_CORE_COMM_BOOTSTRAP_LAUNCH_ENVIRONMENT_H_

#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/knobs.h"

namespace sherd {

inline constexpr int kMaxWorldSize = 1 << 20;
inline constexpr char kNoLauncher[] = "no launcher";

// What the program itself says, which wins over every variable.
struct GivenPlace {
  std::optional<int> rank;
  std::optional<int> world_size;
  // Where to meet others, who therefore exist.
  bool meeting_place = false;
};

// This process's place among the ranks, as its launcher says it.
struct LaunchEnvironment {
  // Whose variables gave rank and size: "torchrun", "Slurm's srun", …;
  // kNoLauncher if there are none.
  std::string launcher;
  int rank = 0;
  int world_size = 1;
  std::optional<int> local_rank;
  // Whether all ranks are on this host, if the launcher says so.
  std::optional<bool> one_host;
  // Host of rank 0, empty if nobody says, and the port on which it is to
  // listen. `master_source` names the variables that these come from.
  std::string master_addr;
  int master_port = 0;
  std::string master_source;
  // Tells this run from all other runs of the user, before and now, and holds
  // only letters, digits, '-' and '_'. Empty if the launcher has nothing like
  // it.
  std::string job_id;
};

// Reads rank and size from the first of these that is complete:
//
//   1. what the program gives
//   2. RANK, WORLD_SIZE              sherd run, torchrun, Kubernetes operators
//   3. OMPI_COMM_WORLD_RANK, _SIZE   Open MPI's mpirun
//   4. PMI_RANK, PMI_SIZE            MPICH's mpiexec and its kin
//   5. SLURM_PROCID, SLURM_STEP_NUM_TASKS (or SLURM_NTASKS), only with
//      SLURM_STEP_ID: the batch script itself is no rank
//   6. JOB_COMPLETION_INDEX, WORLD_SIZE    a Kubernetes Indexed Job
//
// With no variable of any of them, nor one that says where ranks meet, and if
// the program gives nothing, this process is a world of one rank.
//
// A lone RANK or WORLD_SIZE is completed by 3 to 6, with which it must agree.
// The reason for the order: launchers nest, and the inner one's variables are
// the ones listed first. torchrun under srun starts ranks of its own, and
// mpirun leaves those variables of Slurm in place that describe its daemons.
//
// Where ranks meet: MASTER_ADDR and MASTER_PORT; otherwise, under srun, the
// first host of SLURM_STEP_NODELIST (or SLURM_JOB_NODELIST) and a port from
// 10000 to 29999 that job and step number choose. Where torchrun itself listens
// on MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE=True) ranks meet on the port
// after it, since torchrun's store speaks a protocol of its own.
//
// `look_up` is for tests: it returns what GetKnob would.
//
// Errors.
//   kInvalidArgument  A variable in use is malformed; RANK or WORLD_SIZE
//                     contradicts a launcher; or rank or size is not said at
//                     all: "environment variable RANK expected, but not set",
//                     with everything that was looked for and what was found.
absl::StatusOr<LaunchEnvironment> ReadLaunchEnvironment(
    const GivenPlace& given = {},
    absl::FunctionRef<std::optional<std::string>(Knob)> look_up = GetKnob);

namespace internal {

// "node01" from "node[01-04,07],gpu3": the first name of a Slurm host list.
//   kInvalidArgument  It is none.
absl::StatusOr<std::string> FirstHost(absl::string_view host_list);

}  // namespace internal
}  // namespace sherd

#endif  // SHERD_CORE_COMM_BOOTSTRAP_LAUNCH_ENVIRONMENT_H_
