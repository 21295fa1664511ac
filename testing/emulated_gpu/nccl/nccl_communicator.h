#ifndef SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_COMMUNICATOR_H_
#define SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_COMMUNICATOR_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "sherd/testing/emulated_gpu/driver/stream_queue.h"
#include "sherd/testing/emulated_gpu/nccl/nccl_collectives.h"
#include "sherd/testing/emulated_gpu/nccl/nccl_segment.h"
#include "sherd/testing/emulated_gpu/nccl/nccl_words.h"

namespace sherd::testing {

// A communicator's settings, from an NcclConfig and from faults.
struct NcclSettings {
  bool blocking = true;
  bool split_share = false;
  bool shrink_share = false;
  std::string name;
  // The communicator's name in texts of calls, followed by this number.
  std::string label;
  int origin = 0;
  // Faults (see faults.h), words of ncclCommInitRankConfig with '+' between;
  // children inherit them:
  //   remote      peers that died or aborted become kNcclRemoteError in
  //               ncclCommGetAsyncError, instead of nothing but silence;
  //   mismatch    contradicting calls hang, as with the real library, instead
  //               of being reported;
  //   eager       the first collective does not wait for its peers' calls;
  //   alone       there are no peers: communicators are made, split, shrunk and
  //               finalized as if they came at once. Operations need a plan.
  bool alone = false;
  bool remote = false;
  bool mismatch_hangs = false;
  bool eager = false;
};

// Reads `config` as parseCommConfig of NCCL does, over `settings`.
NcclResult ReadConfig(const NcclConfig* config, NcclSettings* settings);

// The result of ncclGetVersion: 22809, or the version of its fault with the
// word version=NUMBER.
int NcclPretendedVersion();

class NcclCommunicator;
using NcclCommunicatorPtr = std::shared_ptr<NcclCommunicator>;

// Communicators that are aborted together.
struct NcclFamily {
  std::atomic<bool> aborted{false};
  std::mutex mutex;
  std::vector<std::weak_ptr<NcclCommunicator>> members;
};

// One rank's part of a communicator. Its functions are those of NCCL with the
// same names, after their arguments were checked.
//
// Operations of one communicator run one after another in the order of their
// calls, on any streams.
//
// Threads. Safe from any thread.
class NcclCommunicator : public std::enable_shared_from_this<NcclCommunicator> {
 public:
  NcclCommunicator(int device, const NcclSettings& settings,
                   std::shared_ptr<NcclFamily> family);

  int device() const { return device_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  const NcclSettings& settings() const { return settings_; }
  std::string label() const {
    return settings_.label + " " + std::to_string(settings_.origin);
  }
  const std::shared_ptr<NcclFamily>& family() const { return family_; }

  // Sets its place, as soon as it is known; before Join.
  void SetPlace(int rank, int size);
  // Waits for the other ranks. `hangs`: never ends before an abort.
  NcclResult Join(const NcclUniqueId& id, bool hangs);
  // These two wait for the other ranks. *made is null for no color.
  NcclResult Split(int color, int key, const NcclSettings& settings,
                   NcclCommunicatorPtr* made);
  NcclResult Shrink(const std::set<int>& excluded, bool abort_first,
                    const NcclSettings& settings, NcclCommunicatorPtr* made);
  // No operations begin from now on.
  NcclResult BeginFinalize();
  // Waits until all ranks have called it and all operations have run.
  NcclResult Finalize();
  void Abort();
  // Operations end, and no new ones begin.
  NcclResult Revoke();
  // Waits until no operation is in flight.
  void Drain();

  // Returns OK if calls are possible; `what` is the function, for the message.
  NcclResult CheckReady(const char* what);
  NcclResult CheckOperational(const char* what);
  bool is_finalized() const;
  bool is_healthy() const;

  // ncclCommGetAsyncError.
  NcclResult Poll();
  void SetError(NcclResult error);

  // Runs `job` on a thread of its own; until it has ended and the caller has
  // polled, Poll returns kNcclInProgress.
  void StartJob(std::function<NcclResult()> job);
  // Waits until no job runs: after Abort, which lets them end.
  void AwaitJob();

  // Records that a job has made `child`, whose handle is stored in *place
  // later.
  void AddMade(const NcclCommunicatorPtr& child,
               ::sherd::internal::NcclComm* place);
  // Stores the handles of the children made so far.
  void DeliverMade();

  // Announces that this rank is ready for its first collective.
  void StartConnecting();
  // Queues tasks as one operation. Waits for the peers' first collective.
  NcclResult Launch(const std::vector<NcclTask>& tasks);
  // The same for a non-blocking communicator: queued when the caller polls, or
  // a little later.
  void LaunchLater(const std::vector<NcclTask>& tasks);

  // Operators that the program made; null: no such operator.
  int AddFactor(const NcclFactor& factor);
  std::shared_ptr<const NcclFactor> FindFactor(int op);
  bool RemoveFactor(int op);

  NcclResult Register(void* data, size_t bytes, void** handle);
  NcclResult Deregister(void* handle);

 private:
  class Turn;
  struct PendingLaunch {
    std::vector<NcclTask> tasks;
    HostOrder order;
    std::thread::id caller;
  };

  bool Aborted() const { return family_->aborted.load(); }
  bool Ended() const { return Aborted() || stopped_.load(); }
  // Whether an operation has to end; reports mismatches that peers found.
  bool GivesUp();
  void ReportMismatch(const std::string& text);
  // Wakes all threads of this rank that wait.
  void WakeAll();
  void Stop();

  NcclResult CheckPeers() const;
  bool IsConnected() const;
  NcclResult MakeChild(const std::vector<int>& members, uint64_t number,
                       uint64_t hash, bool is_split,
                       const NcclSettings& settings, bool shares,
                       NcclCommunicatorPtr* made);

  NcclCommunicatorPtr NewChild(const NcclSettings& settings, bool is_split,
                               bool shares);
  // For a child whose place is known.
  NcclResult JoinChild(const NcclCommunicatorPtr& child,
                       const NcclUniqueId& id);
  NcclCommunicatorPtr MakeAlone(const NcclSettings& settings, bool is_split);

  NcclResult QueueLaunch(const std::vector<NcclTask>& tasks,
                         const HostOrder& order);
  std::function<int()> PrepareLaunch(
      const std::shared_ptr<const std::vector<NcclTask>>& tasks);
  int RunLaunch(Turn& turn, const std::vector<NcclTask>& tasks,
                uint64_t first_collective);
  // Returns false if it contradicts another rank's announcement.
  bool Announce(const NcclTask& task, uint64_t sequence);
  bool TryPending(bool any_thread);
  friend struct NcclHelper;

  const int device_;
  const NcclSettings settings_;
  const std::shared_ptr<NcclFamily> family_;
  int rank_ = 0;
  int size_ = 1;
  // Null before Join; functions other than Join check attached_ first.
  std::shared_ptr<NcclSegment> segment_;
  std::atomic<bool> attached_{false};
  std::atomic<bool> stopped_{false};
  std::atomic<bool> mismatch_reported_{false};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Launches: how many there were, whose turn it is, and which ended out of
  // turn.
  uint64_t launches_ = 0;
  uint64_t turn_ = 0;
  std::set<uint64_t> ended_early_;
  uint64_t collectives_ = 0;
  bool revoked_ = false;
  bool finalized_ = false;
  NcclResult error_ = ::sherd::internal::kNcclSuccess;
  bool busy_ = false;
  // A child that a job is making.
  NcclCommunicatorPtr unfinished_;
  // Children that are complete, and not yet stored for the program.
  struct MadeChild {
    NcclCommunicatorPtr child;
    ::sherd::internal::NcclComm* place;
  };
  std::vector<MadeChild> made_;
  // How often the state was polled since the last job began.
  int polls_ = 1;
  std::unique_ptr<PendingLaunch> pending_;
  uint64_t splits_ = 0;
  std::map<uint64_t, uint64_t> shrinks_;
  std::map<int, std::shared_ptr<const NcclFactor>> factors_;
  int next_factor_ = kNcclNumOps;
  struct Registration {
    void* data;
    size_t bytes;
  };
  std::map<void*, std::unique_ptr<Registration>> registrations_;
  int64_t last_look_ = 0;
};

// The communicators that exist, by the handles of the program. Handles are
// never reused: one that outlives its communicator refers to no other.
::sherd::internal::NcclComm AddCommunicator(
    const NcclCommunicatorPtr& communicator);
// Returns null if it does not exist.
NcclCommunicatorPtr FindCommunicator(::sherd::internal::NcclComm handle);
void RemoveCommunicator(::sherd::internal::NcclComm handle);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_COMMUNICATOR_H_
