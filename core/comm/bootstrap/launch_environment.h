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

// Values given by the program itself, which override every variable.
struct GivenPlace {
  std::optional<int> rank;
  std::optional<int> world_size;
  // The program gave a meeting place, so there are other ranks.
  bool meeting_place = false;
  // The function that the program called, and the type of its options: for
  // errors.
  absl::string_view function = "Init";
  absl::string_view options_type = "InitOptions";
};

// This process's place among the ranks, as its launcher describes it.
struct LaunchEnvironment {
  // The launcher whose variables gave rank and size: "torchrun", "Slurm's
  // srun", …; kNoLauncher if none did.
  std::string launcher;
  int rank = 0;
  int world_size = 1;
  std::optional<int> local_rank;
  // Whether all ranks are on this host; unset if the launcher does not specify
  // it.
  std::optional<bool> one_host;
  // Host of rank 0, empty if not specified, and the port on which it listens.
  // `master_source` names the variables that these come from.
  std::string master_addr;
  int master_port = 0;
  std::string master_source;
  // Distinguishes this run from all other runs of the user, past and present.
  // Contains only letters, digits, '-' and '_'. Empty if the launcher provides
  // no job id.
  std::string job_id;
};

// Reads rank and size from the first of these that is complete:
//
//   1. the values that the program gives
//   2. RANK, WORLD_SIZE              sherd run, torchrun, Kubernetes operators
//   3. OMPI_COMM_WORLD_RANK, _SIZE   Open MPI's mpirun
//   4. PMI_RANK, PMI_SIZE            MPICH's mpiexec and its kin
//   5. SLURM_PROCID, SLURM_STEP_NUM_TASKS (or SLURM_NTASKS), only with
//      SLURM_STEP_ID: the batch script itself is not a rank
//   6. JOB_COMPLETION_INDEX, WORLD_SIZE    a Kubernetes Indexed Job
//
// If none of these variables is set, nor one that gives a meeting place, and
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
//                     contradicts a launcher; or rank or size is missing:
//                     "environment variable RANK expected, but not set", with
//                     all variables that were read and their values.
absl::StatusOr<LaunchEnvironment> ReadLaunchEnvironment(
    const GivenPlace& given = {},
    absl::FunctionRef<std::optional<std::string>(Knob)> look_up = GetKnob);

namespace internal {

// "node01" from "node[01-04,07],gpu3": the first name of a Slurm host list.
//   kInvalidArgument  `host_list` is malformed.
absl::StatusOr<std::string> FirstHost(absl::string_view host_list);

}  // namespace internal
}  // namespace sherd

#endif  // SHERD_CORE_COMM_BOOTSTRAP_LAUNCH_ENVIRONMENT_H_
