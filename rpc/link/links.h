#ifndef SHERD_RPC_LINK_LINKS_H_
#define SHERD_RPC_LINK_LINKS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/store/store_session.h"
#include "sherd/core/net/event_loop.h"
#include "sherd/rpc/link/dialer.h"
#include "sherd/rpc/link/directory.h"
#include "sherd/rpc/link/link_channel.h"
#include "sherd/rpc/link/peer_link.h"
#include "sherd/rpc/link/reception.h"
#include "sherd/rpc/link/wire.h"

namespace sherd::internal {

struct LinkOptions {
  int rank = 0;
  int world_size = 1;
  // Unique among the workers, see CheckWorkerName. Empty: "worker<rank>".
  std::string name;
  // Where the workers meet, from Meet() of core/comm/bootstrap/rendezvous.h.
  // Links leaves it.
  std::shared_ptr<StoreSession> session;
  // Rendezvous::master, to find out on which address others reach this host.
  std::string master;
  // The secret of SHERD_SECRET_FILE, equal on all workers. Empty: none.
  std::string secret;
  // As Transports::Choose.
  std::vector<std::string> transports;
  // Of the start.
  Deadline deadline = Deadline::Infinite();
  // Each worker shows at this interval that it is alive; one that is silent for
  // `patience`, or cannot be connected to within it, is lost.
  absl::Duration heartbeat = absl::Seconds(10);
  absl::Duration patience = absl::Seconds(30);
  uint64_t max_tail_bytes = uint64_t{1} << 40;
  // Why this worker cannot take part. All workers that start get this error.
  absl::Status error = {};
  // Passed to on_met of the other workers.
  std::string note = {};
  // Called once all have met, before any message is sent or received; an error,
  // which should be the same on all workers, ends the start. May be null.
  std::function<absl::Status(const Directory&)> on_met = nullptr;
};

// The connections between the workers of a job.
//
// Workers of one network namespace, of one user, reach each other at Unix
// sockets with abstract names; others, and all where Unix sockets are not
// allowed, by TCP: over the loopback if all workers share it, otherwise at the
// address of SHERD_SOCKET_IFNAME or of the route to rank 0. Two connections are
// kept between workers with TCP, the second for bulk messages, and one
// otherwise.
//
// Every worker is connected to rank 0 from the start, and to another one from
// the first message between them. So rank 0 notices each loss, and reports it
// to the workers that are not connected with the lost one. Once rank 0 itself
// is lost or has left, the next rank reports the losses that it notices to the
// workers that it is connected with; the others notice a loss when they send to
// that worker.
//
// Threads. Safe from any thread.
// Cost. One thread for all connections, besides those that take part in work(),
// and up to Dialer::kThreads while connections are made; per heartbeat one
// small message each way on a connection that is idle.
class Links final : public Wire,
                    private PeerLink::Owner,
                    private Reception::Host {
 public:
  // Joins the other workers. Collective: returns once all have arrived, and
  // this one is connected with rank 0; rank 0, with all. The handler outlives
  // the links, and may be called before this returns.
  //
  // After an error this worker has left, and the others fail or see it lost.
  //   kInvalidArgument     An option is out of range, or world sizes differ; on
  //                        all workers. The rank is out of range, or taken.
  //   kAlreadyExists       Two workers have one name; on all workers.
  //   kFailedPrecondition  Two workers have no transport in common; on all.
  //   kPermissionDenied    Rank 0 has another secret, or is another user's.
  //   kDeadlineExceeded    Names the ranks or workers that did not arrive.
  //   kUnavailable         Names a worker that failed.
  //   kResourceExhausted   No descriptors or threads left.
  //   other                LinkOptions::error of some worker; on all.
  static absl::StatusOr<std::unique_ptr<Links>> Start(
      const LinkOptions& options, Handler* handler);

  // Without Goodbye the others see this worker lost. Not on the loop thread.
  ~Links() override;

  int rank() const override { return directory_->rank(); }
  const std::vector<std::string>& names() const override {
    return directory_->names();
  }
  absl::Status Send(int to, WireMessage message) override;
  absl::Status Goodbye(Deadline deadline) override;
  // The work that receives messages, for threads that wait for one. Outlives
  // the links.
  std::shared_ptr<SharedWork> work() const { return loop_->work(); }

  // Where this worker listens: "@name" for a Unix socket, "127.0.0.1:80".
  std::vector<std::string> Addresses() const;
  const Directory& directory() const { return *directory_; }

 private:
  // The events for which other threads wait.
  struct Progress {
    // At the start: workers that are neither linked nor gone.
    std::set<int> awaited;
    // Why the first of these could not be linked.
    absl::Status failure;
    // After the goodbye: all links have ended.
    bool has_ended = false;
  };

  Links(const LinkOptions& options, Handler* handler);

  absl::Status Join();
  absl::Status Listen(HostPort* unix_address, HostPort* tcp_address);
  absl::StatusOr<HostPort> ListenAt(const std::string& address);
  absl::Status LinkAll();
  void WatchProcesses();
  void Beat();
  void Settle(int rank, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void CheckEnded() ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<int> Unfinished() const;
  void CloseAll();
  // Reports `rank` to the others, if that is this worker's part.
  void ReportLoss(int rank);
  // After a worker ended: the next reporter takes over.
  void UpdateReporter();

  void OnLinked(int rank) override;
  void OnEnded(int rank, PeerLink::End end, const absl::Status& why,
               const absl::Status& cause) override;
  void OnNotReached(int rank, const absl::Status& why) override;
  void OnLostNotice(int from,
                    const rpc::LinkMessage::LostNotice& notice) override;
  LinkChannel* OnHello(const rpc::LinkMessage::Hello& hello,
                       rpc::LinkMessage::HelloReply* reply) override;

  const LinkOptions options_;
  LinkContext context_;
  std::shared_ptr<Directory> directory_;
  // By rank; null for this worker.
  std::vector<std::unique_ptr<PeerLink>> peers_;
  std::vector<std::unique_ptr<Reception>> receptions_;
  std::unique_ptr<Dialer> dialer_;
  // It says goodbye, or never came.
  std::atomic<bool> has_left_{false};
  absl::Mutex mutex_;
  Progress progress_ ABSL_GUARDED_BY(mutex_);
  // Of the loop thread.
  Deadline::Clock::time_point next_beat_;
  // Peers with a connection: looking at all others at each beat would cost more
  // than the beat.
  std::vector<int> linked_;
  // The lowest rank that, as far as this worker knows, is neither lost nor has
  // left: the one that reports losses to the others.
  int reporter_ = 0;
  // The lost workers, and why.
  std::map<int, std::string> losses_;
  // What other workers than the reporter reported, by their rank: they may know
  // before this one that they have become it.
  std::map<int, std::map<int, std::string>> notices_;
  // Set once it closed: the workers that had not taken all that was sent.
  std::optional<std::vector<int>> unfinished_;
  // Its thread uses all of the above.
  std::unique_ptr<EventLoop> loop_;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_LINK_LINKS_H_
