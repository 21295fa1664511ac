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

// The communication that a test body finds set up. Order: device check, remote
// access, process group, body, barrier, end of remote access, destruction of
// the group.
struct WithComms {
  // gloo, nccl, mpi, shm, local, auto, the name of any plugin that is found, or
  // one name per device, as for Init. Empty: the backend of the Bazel target
  // (SHERD_TEST_BACKEND), "gloo" outside of one; "local" where ranks are
  // threads.
  std::string backend;
  // Starts remote access too; where none is linked the test is skipped.
  bool init_rpc = false;
  // Of the group and its collectives; at most three quarters of the test's, so
  // that the ranks still report who did not come.
  absl::Duration timeout = absl::Seconds(60);
  // "cpu", or "cuda": one GPU per rank, locked for the test and given to its
  // ranks, on each of which it is the current device. Empty: that of the
  // backend, cuda for nccl. Where GPUs are missing the test is skipped with
  // multi-gpu-N, where nothing drives them with no_cuda.
  std::string device;
};

// No communication: the body calls Init itself, or needs none. RANK,
// WORLD_SIZE and SHERD_INIT_METHOD are set, so Init({}) works.
struct WithoutComms {};

namespace internal {

enum class RanksAre { kProcesses, kThreads };

// What is known of a test's communication before any rank starts.
struct CommsPlan {
  // Why no rank is to start.
  std::optional<Skip> skip;
  // The ranks must be started by mpirun or its like.
  bool needs_launcher = false;
  // How many GPUs to lock, and to show to the ranks (see GpuLocks): those of
  // `device`, or of SHERD_TEST_GPUS if these are more.
  int gpus = 0;
};

// `wanted` with what it leaves open filled in.
WithComms Complete(WithComms wanted, RanksAre ranks);

// Looks at what a test wants; `wanted` unset is WithoutComms. Nothing is
// initialised. Loads the backend's plugin.
//
// Skips. Too few GPUs; nccl or mpi without plugin, vendor's library or
// launcher; a backend that says that it does not work on this machine; no RPC.
//
// Errors, of which the author must know.
//   kNotFound            "Backend X not supported!" and what was searched.
//   kInvalidArgument     The backend's ranks are threads and the test's are
//                        processes, or the reverse; or device or timeout is
//                        none, or contradicts the backend.
//   kFailedPrecondition  The plugin is there but broken.
absl::StatusOr<CommsPlan> PlanComms(const std::optional<WithComms>& wanted,
                                    int world_size, RanksAre ranks,
                                    const GpuHost& host = GpuHost::Own());

// Where a rank meets the others.
struct CommsPlace {
  int rank = 0;
  int world_size = 1;
  RanksAre ranks = RanksAre::kProcesses;
  // Where the group meets. Empty: at `store`; without one, wherever the
  // launcher says.
  std::string init_method;
  // Shared by the ranks of the test; remote access meets here, in a part of its
  // own. May lie in the file that init_method names.
  std::shared_ptr<Store> store;
  // Of the test.
  absl::Duration timeout = absl::InfiniteDuration();
  // Is told what SetUp and TearDown are about to do: "remote access", "Init",
  // "barrier after Init", "barrier", "end of remote access", "Destroy". May be
  // empty.
  std::function<void(absl::string_view)> on_phase;
};

// How a rank leaves.
enum class Leaving {
  // All ranks come, having passed Barrier().
  kTogether,
  // In good order, but nobody waits for anybody.
  kAlone,
  // Its body failed or was skipped: operations that are still under way are
  // given up, since others may never join them.
  kFailed,
};

// Communication of one rank while it is up.
//
// Threads. One at a time.
class Comms {
 public:
  // Device check, remote access, group, and a barrier, so that no rank may fail
  // and leave while another one still connects. Collective. After an error
  // nothing is left behind, and the next SetUp of all ranks on the same place
  // works.
  static absl::StatusOr<std::unique_ptr<Comms>> SetUp(const WithComms& wanted,
                                                      const CommsPlace& place);

  // TearDown(kFailed) if there was none.
  ~Comms();

  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  // Null without init_rpc.
  RemoteAccess* remote_access() const { return remote_access_.get(); }

  // Whether a further test of the same ranks can use it as it is: it wants the
  // same, nothing has failed, and there is no remote access, in which shards of
  // the test before may stand.
  bool Serves(const WithComms& wanted) const;

  // The barrier behind a body.
  absl::Status Barrier();

  // Ends remote access, then the group, both in any case; returns the first
  // error. Again: OK.
  absl::Status TearDown(Leaving leaving);

 private:
  Comms(WithComms wanted, const CommsPlace& place);

  // Makes this rank's the current device.
  absl::Status ChooseGpu();
  absl::Status StartRemoteAccess();
  absl::Status InitGroup();
  absl::Status EndRemoteAccess(bool graceful);
  void Phase(absl::string_view phase) const;

  // Complete.
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
