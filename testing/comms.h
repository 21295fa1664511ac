#ifndef SHERD_TESTING_COMMS_H_
#define SHERD_TESTING_COMMS_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/comm/store/store_session.h"
#include "sherd/testing/fixtures/gpus.h"
#include "sherd/testing/harness/exit_codes.h"

namespace sherd::testing {

// The communication that is set up before a test body. Order: device check,
// remote access, process group, body, barrier, end of remote access,
// destruction of the group.
struct WithComms {
  // gloo, nccl, mpi, shm, local, auto, the name of any plugin that is found, or
  // one name per device, as for Init. Empty: the backend of the Bazel target
  // (SHERD_TEST_BACKEND), or "gloo" without one; "local" if ranks are threads.
  std::string backend;
  // Starts remote access too; if none is linked, the test is skipped. With the
  // device cuda, device maps exchange the GPUs of two ranks: a tensor fetched
  // from the other's GPU arrives on this rank's.
  bool init_rpc = false;
  // Timeout of the group and its collectives; at most three quarters of the
  // test's, so that the ranks still report which rank timed out.
  absl::Duration timeout = absl::Seconds(60);
  // "cpu", or "cuda": one GPU per rank, locked for the test, given to its ranks
  // and made the current device of each. Empty: the device of the backend, cuda
  // for nccl. The test is skipped with multi-gpu-N if GPUs are missing, with
  // no_cuda if no driver works.
  std::string device;
};

// No communication: the body calls Init itself, or needs none. RANK,
// WORLD_SIZE and SHERD_INIT_METHOD are set, so Init({}) works.
struct WithoutComms {};

namespace internal {

enum class RanksAre { kProcesses, kThreads };

// The plan of a test's communication, made before any rank starts.
struct CommsPlan {
  // Why the ranks are not to start.
  std::optional<Skip> skip;
  // The ranks must be started by mpirun or a similar launcher.
  bool needs_launcher = false;
  // How many GPUs to lock, and to show to the ranks (see GpuLocks): those of
  // `device`, or of SHERD_TEST_GPUS if there are more of them.
  int gpus = 0;
};

// `wanted` with defaults in place of empty fields.
WithComms Complete(WithComms wanted, RanksAre ranks);

// Plans the communication that a test wants; `wanted` unset is WithoutComms.
// Initialises nothing. Loads the backend's plugin.
//
// Skips. Too few GPUs; nccl or mpi without plugin, vendor's library or
// launcher; a backend that reports that it does not work on this machine; no
// RPC.
//
// Errors, which are mistakes of the test's author.
//   kNotFound            "Backend X not supported!"; lists what was searched.
//   kInvalidArgument     The backend's ranks are threads and the test's are
//                        processes, or the reverse; or device or timeout is
//                        invalid, or contradicts the backend.
//   kFailedPrecondition  The plugin exists but is broken.
absl::StatusOr<CommsPlan> PlanComms(const std::optional<WithComms>& wanted,
                                    int world_size, RanksAre ranks,
                                    const GpuHost& host = GpuHost::Own());

// Where a rank meets the others.
struct CommsPlace {
  int rank = 0;
  int world_size = 1;
  RanksAre ranks = RanksAre::kProcesses;
  // Where the group meets. Empty: at `store`; without one, where the launcher
  // specifies.
  std::string init_method;
  // Shared by the ranks of the test; remote access uses a separate part of it.
  // May be in the file that init_method names.
  std::shared_ptr<Store> store;
  // Timeout of the test.
  absl::Duration timeout = absl::InfiniteDuration();
  // Called with the step that SetUp or TearDown is about to take: "remote
  // access", "Init", "barrier after Init", "barrier", "end of remote access",
  // "Destroy". May be empty.
  std::function<void(absl::string_view)> on_phase;
};

// How a rank leaves.
enum class Leaving {
  // All ranks leave, having passed Barrier().
  kTogether,
  // Without a failure, but no rank waits for another.
  kAlone,
  // Its body failed or was skipped: operations in flight are given up, since
  // others may never join them.
  kFailed,
};

// One rank's communication, from SetUp to TearDown.
//
// Threads. One at a time.
class Comms {
 public:
  // Device check, remote access, group, and a barrier, so that no rank fails
  // and leaves while another one still connects. Collective. After an error
  // nothing is left behind, and the next SetUp of all ranks at the same place
  // works.
  static absl::StatusOr<std::unique_ptr<Comms>> SetUp(const WithComms& wanted,
                                                      const CommsPlace& place);

  // Calls TearDown(kFailed) if TearDown was not called.
  ~Comms();

  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  // Null without init_rpc.
  RemoteAccess* remote_access() const { return remote_access_.get(); }

  // Whether a further test of the same ranks can reuse this: it wants the same,
  // nothing has failed, and there is no remote access, which may still hold
  // shards of the test before.
  bool Serves(const WithComms& wanted) const;

  // The barrier after a body.
  absl::Status Barrier();

  // Ends remote access, then the group, also if the former fails; returns the
  // first error. Later calls return OK.
  absl::Status TearDown(Leaving leaving);

 private:
  Comms(WithComms wanted, const CommsPlace& place);

  // Makes this rank's GPU the current device.
  absl::Status ChooseGpu();
  absl::Status StartRemoteAccess();
  absl::Status InitGroup();
  absl::Status EndRemoteAccess(bool graceful);
  void Phase(absl::string_view phase) const;

  // With all fields set.
  const WithComms wanted_;
  const CommsPlace place_;
  const absl::Duration timeout_;
  std::unique_ptr<::sherd::internal::StoreSession> remote_access_session_;
  std::shared_ptr<RemoteAccess> remote_access_;
  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace internal
}  // namespace sherd::testing

#endif  // SHERD_TESTING_COMMS_H_
