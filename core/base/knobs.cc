#include "sherd/core/base/knobs.h"

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/units.h"

namespace sherd {
namespace {

constexpr KnobStability kStable = KnobStability::kStable;
constexpr KnobStability kDebug = KnobStability::kDebug;

// NOLINTNEXTLINE(readability-function-size): a table.
const std::vector<KnobInfo>& Table() {
  static const auto* const table = new std::vector<KnobInfo>{
      {Knob::kRank, "RANK", "integer", "(none)", kStable,
       "Rank of this process, from 0. Set by sherd run and by torchrun."},
      {Knob::kWorldSize, "WORLD_SIZE", "integer", "(none)", kStable,
       "Number of ranks. Set by sherd run and by torchrun."},
      {Knob::kLocalRank, "LOCAL_RANK", "integer", "(none)", kStable,
       "Rank among the processes of this host. Set by sherd run."},
      {Knob::kInitMethod, "SHERD_INIT_METHOD", "URL", "(none)", kStable,
       "Where ranks meet when Init names no method: file:///PATH, "
       "tcp://HOST:PORT or env://."},
      {Knob::kBackend, "SHERD_BACKEND", "name", "auto", kStable,
       "Backend when Init names none."},
      {Knob::kTimeout, "SHERD_TIMEOUT", "duration", "5m", kStable,
       "How long a collective may take when Init names no timeout."},
      {Knob::kCheckCalls, "SHERD_CHECK_CALLS", "auto|message|off", "auto",
       kDebug,
       "How ranks compare their calls before data moves: auto is by shared "
       "memory on one host, by messages otherwise."},
      {Knob::kPluginPath, "SHERD_PLUGIN_PATH", "directories, ':' between",
       "(none)", kStable,
       "Searched for libsherd_backend_NAME.so before the program's own "
       "directory."},
      {Knob::kLogLevel, "SHERD_LOG_LEVEL", "debug|info|warning|error",
       "warning", kDebug, "Least severe log lines that are printed."},
      {Knob::kTmpDir, "TMPDIR", "directory", "/tmp", kStable,
       "Where sherd run makes the directory in which its ranks meet."},
      {Knob::kBuildWorkingDirectory, "BUILD_WORKING_DIRECTORY", "directory",
       "(the working directory)", kStable,
       "Where a program's relative paths count from. Set by bazel run."},
      {Knob::kTestSeed, "SHERD_TEST_SEED", "integer", "(random, printed)",
       kDebug, "Seed of random tests; repeats a run."},
      {Knob::kTestTmpDir, "TEST_TMPDIR", "directory", "/tmp", kStable,
       "Directory for the files of tests. Set by Bazel."},
      {Knob::kTestTimeout, "TEST_TIMEOUT", "integer", "300", kStable,
       "Seconds a test may take. Set by Bazel."},
      {Knob::kTestSrcDir, "TEST_SRCDIR", "directory", "(none)", kStable,
       "Root of a test's data files. Set by Bazel."},
      {Knob::kTestBackend, "SHERD_TEST_BACKEND", "name", "gloo", kStable,
       "Backend of a distributed test. Set by sherd_distributed_test."},
      {Knob::kTestWorldSize, "SHERD_TEST_WORLD_SIZE", "integer",
       "(the fixture's)", kStable,
       "World size of a distributed test. Set by sherd_distributed_test."},
      {Knob::kTestRankFd, "SHERD_TEST_RANK_FD", "integer", "(none)", kDebug,
       "Marks a process as a rank of a distributed test and names the pipe "
       "for its results. Set by the test harness."},
      {Knob::kTestLauncher, "SHERD_TEST_LAUNCHER", "program", "(none)", kStable,
       "What starts the ranks of a distributed test: mpirun, or its path. Set "
       "by sherd_distributed_test."},
      {Knob::kTestRankDir, "SHERD_TEST_RANK_DIR", "directory", "(none)", kDebug,
       "Marks a process that a launcher started as the launch shim of a rank "
       "and "
       "names the pipes of the run. Set by the test harness."},
      {Knob::kTestExternal, "SHERD_TEST_EXTERNAL", "0|1",
       "(whether a launcher's variables name several ranks)", kStable,
       "Whether a program of distributed tests is itself one of their ranks, "
       "started by mpirun or its kin."},
      {Knob::kMasterAddr, "MASTER_ADDR", "host name or address", "(none)",
       kStable, "Host of rank 0. Set by torchrun and Kubernetes operators."},
      {Knob::kMasterPort, "MASTER_PORT", "port", "(none)", kStable,
       "Port on which rank 0 listens. Set by torchrun and Kubernetes "
       "operators."},
      {Knob::kLocalWorldSize, "LOCAL_WORLD_SIZE", "integer", "(none)", kStable,
       "Number of ranks on this host. Set by torchrun."},
      {Knob::kTorchRunId, "TORCHELASTIC_RUN_ID", "name", "(none)", kStable,
       "Marks RANK and WORLD_SIZE as torchrun's. Set by torchrun."},
      {Knob::kTorchAgentStore, "TORCHELASTIC_USE_AGENT_STORE", "True|False",
       "False", kStable,
       "True: torchrun itself listens on MASTER_PORT, and ranks meet on the "
       "port after it. Set by torchrun."},
      {Knob::kJobCompletionIndex, "JOB_COMPLETION_INDEX", "integer", "(none)",
       kStable, "Rank, beside WORLD_SIZE. Set by a Kubernetes Indexed Job."},
      {Knob::kOmpiRank, "OMPI_COMM_WORLD_RANK", "integer", "(none)", kStable,
       "Rank. Set by Open MPI's mpirun."},
      {Knob::kOmpiSize, "OMPI_COMM_WORLD_SIZE", "integer", "(none)", kStable,
       "Number of ranks. Set by Open MPI's mpirun."},
      {Knob::kOmpiLocalRank, "OMPI_COMM_WORLD_LOCAL_RANK", "integer", "(none)",
       kStable, "Rank on this host. Set by Open MPI's mpirun."},
      {Knob::kOmpiLocalSize, "OMPI_COMM_WORLD_LOCAL_SIZE", "integer", "(none)",
       kStable, "Number of ranks on this host. Set by Open MPI's mpirun."},
      {Knob::kOmpiJobKey, "OMPI_MCA_orte_precondition_transports", "text",
       "(none)", kStable,
       "Distinguishes a run from all others. Set by Open MPI's mpirun."},
      {Knob::kPmixNamespace, "PMIX_NAMESPACE", "text", "(none)", kStable,
       "Distinguishes a run from others of the same launcher. Set by PMIx "
       "launchers."},
      {Knob::kPmiRank, "PMI_RANK", "integer", "(none)", kStable,
       "Rank. Set by MPICH's mpiexec and its kin."},
      {Knob::kPmiSize, "PMI_SIZE", "integer", "(none)", kStable,
       "Number of ranks. Set by MPICH's mpiexec and its kin."},
      {Knob::kMpiLocalRank, "MPI_LOCALRANKID", "integer", "(none)", kStable,
       "Rank on this host. Set by MPICH's mpiexec and its kin."},
      {Knob::kMpiLocalSize, "MPI_LOCALNRANKS", "integer", "(none)", kStable,
       "Number of ranks on this host. Set by MPICH's mpiexec and its kin."},
      {Knob::kSlurmProcId, "SLURM_PROCID", "integer", "(none)", kStable,
       "Rank. Set by srun."},
      {Knob::kSlurmStepTasks, "SLURM_STEP_NUM_TASKS", "integer", "(none)",
       kStable, "Number of ranks. Set by srun."},
      {Knob::kSlurmTasks, "SLURM_NTASKS", "integer", "(none)", kStable,
       "Number of ranks where SLURM_STEP_NUM_TASKS is missing. Set by Slurm."},
      {Knob::kSlurmLocalId, "SLURM_LOCALID", "integer", "(none)", kStable,
       "Rank on this host. Set by srun."},
      {Knob::kSlurmStepNodes, "SLURM_STEP_NUM_NODES", "integer", "(none)",
       kStable, "Number of hosts. Set by srun."},
      {Knob::kSlurmNodes, "SLURM_NNODES", "integer", "(none)", kStable,
       "Number of hosts where SLURM_STEP_NUM_NODES is missing. Set by Slurm."},
      {Knob::kSlurmStepNodeList, "SLURM_STEP_NODELIST", "host list", "(none)",
       kStable, "Its first host is that of rank 0. Set by srun."},
      {Knob::kSlurmJobNodeList, "SLURM_JOB_NODELIST", "host list", "(none)",
       kStable, "In place of a missing SLURM_STEP_NODELIST. Set by Slurm."},
      {Knob::kSlurmJobId, "SLURM_JOB_ID", "integer", "(none)", kStable,
       "The port on which rank 0 listens is derived from it. Set by Slurm."},
      {Knob::kSlurmStepId, "SLURM_STEP_ID", "integer", "(none)", kStable,
       "Distinguishes tasks of srun from the batch script. Set by srun."},
      {Knob::kSocketIfname, "SHERD_SOCKET_IFNAME", "prefixes, ',' between",
       "(the route to rank 0)", kStable,
       "Network interfaces to listen on across hosts: \"eth,ib\" are "
       "prefixes, \"=eth0\" a whole name, \"^docker,lo\" all but these."},
      {Knob::kSecretFile, "SHERD_SECRET_FILE", "path", "(none)", kStable,
       "File with the secret that all ranks share; connections from others "
       "are refused. Other users must not be able to read it."},
      {Knob::kRpcTransports, "SHERD_RPC_TRANSPORTS", "names, ',' between",
       "unix,tcp,thread,shm,cma", kStable,
       "By which sockets RPC workers reach each other: unix on one host, tcp "
       "on one and across hosts; and how large tensors are copied within a "
       "host in place: between threads, out of shared memory, by cross-memory "
       "attach."},
      {Knob::kFlightEntries, "SHERD_FLIGHT_ENTRIES", "integer", "2048", kDebug,
       "How many operations the flight recorder of a process remembers."},
      {Knob::kFlightDir, "SHERD_FLIGHT_DIR", "directory", "(below TMPDIR)",
       kStable,
       "Where flight.rank-R.json is written when an operation fails or at "
       "SIGUSR1, for sherd flight; none: nowhere."},
      {Knob::kTestGpus, "SHERD_TEST_GPUS", "integer", "(none)", kStable,
       "GPUs of this host that a distributed test needs in all. Set by "
       "sherd_distributed_test."},
      {Knob::kCudaVisibleDevices, "CUDA_VISIBLE_DEVICES",
       "numbers or UUIDs, ',' between", "(all)", kStable,
       "GPUs that tests may use. Set by CUDA's users."},
      {Knob::kTestOutputsDir, "TEST_UNDECLARED_OUTPUTS_DIR", "directory",
       "(none)", kStable,
       "Where distributed tests that fail keep whole outputs and flight "
       "recorder dumps of their ranks. Set by Bazel."},
      {Knob::kTestCommandFd, "SHERD_TEST_COMMAND_FD", "integer", "(none)",
       kDebug,
       "Names the pipe through which a rank that runs several tests learns "
       "which. Set by the test harness."},
      {Knob::kTestCases, "SHERD_TEST_CASES", "integer", "(each test's own)",
       kDebug, "How many cases each random test draws. Set by deep tests."},
      {Knob::kCudaLibrary, "SHERD_CUDA_LIBRARY", "path or name", "libcuda.so.1",
       kStable, "The CUDA driver's library."},
      {Knob::kNcclLibrary, "SHERD_NCCL_LIBRARY", "path or name", "libnccl.so.2",
       kStable, "NVIDIA's library of collectives."},
      {Knob::kEmulatedGpus, "SHERD_EMULATED_GPUS", "integer", "1", kDebug,
       "How many GPUs the emulated CUDA driver pretends to have."},
      {Knob::kEmulatedGpuFaults, "SHERD_EMULATED_GPU_FAULTS",
       "FUNCTION:CALL:FAULT, ',' between", "(none)", kDebug,
       "Calls of the emulated CUDA driver and NCCL that go wrong."},
      {Knob::kTestShareGpus, "SHERD_TEST_SHARE_GPUS", "0|1", "0", kDebug,
       "Whether ranks of a distributed test share GPUs where there are fewer."},
      {Knob::kNcclHostId, "NCCL_HOSTID", "name", "(NCCL's own)", kDebug,
       "Lets NCCL take the ranks of one host for those of several. Set by the "
       "test harness for ranks that share a GPU."},
      {Knob::kTestRpc, "SHERD_TEST_RPC", "0|1", "0", kStable,
       "Whether a distributed test fails, and is not skipped, if no RPC is "
       "linked. Set by sherd_distributed_test."},
  };
  return *table;
}

absl::Status Malformed(Knob knob, absl::string_view value,
                       absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("environment variable ", GetKnobInfo(knob).variable,
                   " is \"", value, "\", expected ", expected));
}

}  // namespace

const std::vector<KnobInfo>& AllKnobs() { return Table(); }

const KnobInfo& GetKnobInfo(Knob knob) {
  return Table()[static_cast<size_t>(knob)];
}

std::optional<std::string> GetKnob(Knob knob) {
  const char* const value = std::getenv(GetKnobInfo(knob).variable);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

std::string GetKnobOr(Knob knob, absl::string_view fallback) {
  std::optional<std::string> value = GetKnob(knob);
  return value && !value->empty() ? *value : std::string(fallback);
}

absl::StatusOr<std::optional<int64_t>> GetIntKnob(Knob knob, int64_t low,
                                                  int64_t high) {
  const std::string text = GetKnobOr(knob, "");
  if (text.empty()) return std::nullopt;
  int64_t value;
  if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
    return Malformed(knob, text,
                     absl::StrCat("a number from ", low, " to ", high));
  }
  return value;
}

absl::StatusOr<std::optional<absl::Duration>> GetDurationKnob(Knob knob) {
  const std::string text = GetKnobOr(knob, "");
  if (text.empty()) return std::nullopt;
  const std::optional<absl::Duration> value = ParseDuration(text);
  if (!value) return Malformed(knob, text, "a duration such as 30s or 1m30s");
  if (*value <= absl::ZeroDuration()) {
    return Malformed(knob, text, "a duration above zero");
  }
  return value;
}

}  // namespace sherd
