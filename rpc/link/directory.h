#ifndef SHERD_RPC_LINK_DIRECTORY_H_
#define SHERD_RPC_LINK_DIRECTORY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/group/failure_log.h"
#include "sherd/core/comm/group/membership.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/net/socket.h"
#include "sherd/core/process/process_status.h"
#include "sherd/rpc/transfer/tensor_source.h"

namespace sherd::internal {

// By which sockets a worker exchanges messages, and how tensors may be read in
// the memory of the worker that sends them.
struct Transports {
  bool unix_sockets = true;
  bool tcp = true;
  MemoryPathSet memory = {.thread = true, .shm = true, .cma = true};

  // Of "unix", "tcp", "thread", "shm" and "cma", one of the first two among
  // them; an empty list names all.
  //   kInvalidArgument  Another name, a name twice, or no socket.
  static absl::StatusOr<Transports> Parse(
      const std::vector<std::string>& names);
  // Parse of what was asked for or, if that is empty, of SHERD_RPC_TRANSPORTS.
  static absl::StatusOr<Transports> Choose(
      const std::vector<std::string>& asked);
  // The sockets: "unix, tcp".
  std::string ToText() const;
};

// Letters, digits, "_", ":" and "-", 1 to 127 of them.
//   kInvalidArgument  It is something else.
absl::Status CheckWorkerName(absl::string_view name);

// Who the workers of a job are: what each of them has said of itself in the
// store of their session, and how it is doing.
//
// Threads. Changed while the workers meet; afterwards safe from any thread.
class Directory {
 public:
  struct Worker {
    std::string name;
    // Of this life of it: random bytes.
    std::string nonce;
    // HostIdentity::network.
    std::string network;
    Transports transports;
    // What the layers above say of it to the others: any bytes.
    std::string note = {};
    // Where it listens, as FrameServer and Dial have it; without a host it does
    // not.
    HostPort unix_address;
    HostPort tcp_address;
  };

  // How worker `from` reaches worker `to`.
  enum class Route { kNone, kUnix, kTcp };

  // Meets the other workers. Collective; once per store. Keys: those of
  // ExchangeMembership.
  //   kInvalidArgument     The name is malformed, the rank is taken, or world
  //                        sizes differ.
  //   kAlreadyExists       Two workers have one name. On all workers.
  //   kFailedPrecondition  Two workers have no transport in common. On all.
  //   kDeadlineExceeded    Names the ranks that did not come.
  static absl::StatusOr<std::unique_ptr<Directory>> Meet(
      std::shared_ptr<Store> store, int rank, int world_size, Worker self,
      Deadline deadline);

  // Says where this worker listens and learns where the others do. Collective,
  // once.
  //   kDeadlineExceeded, kUnavailable  As FailureLog::Exchange.
  absl::Status ExchangeAddresses(const HostPort& unix_address,
                                 const HostPort& tcp_address,
                                 Deadline deadline);

  int rank() const { return membership_.rank(); }
  int size() const { return membership_.size(); }
  const std::vector<std::string>& names() const { return names_; }
  const Worker& worker(int rank) const { return workers_[rank]; }
  const Worker& self() const { return workers_[rank()]; }

  Route RouteBetween(int from, int to) const;
  // Whether all workers reach each other over the loopback.
  bool one_network() const;

  // "worker2 (rank 2)", for messages.
  std::string Label(int rank) const;

  // How the process of `rank` is doing, as far as this host sees.
  ProcessState StateOfWorker(int rank) const;
  // What that means for whoever needs it, as DescribeEnd; empty: nothing.
  std::string EndOfWorker(int rank) const;
  // Whether it is a thread of this process.
  bool SharesProcess(int rank) const;

  // Asks the store.
  bool HasLeft(int rank) const { return log_.HasLeft(rank); }
  // Tells the store: for those who look for this worker.
  void ReportLeaving() { log_.ReportLeaving(); }
  // The same of an error of this worker while the workers meet.
  void ReportFailure(const absl::Status& why) {
    log_.Report(why, std::nullopt);
  }

 private:
  Directory(std::shared_ptr<Store> store, int rank, int world_size);

  absl::Status ReadRecords(const std::vector<std::string>& records);
  absl::Status CheckNames() const;
  absl::Status CheckRoutes() const;

  const std::shared_ptr<Store> store_;
  Membership membership_;
  FailureLog log_;
  std::vector<Worker> workers_;
  std::vector<std::string> names_;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_LINK_DIRECTORY_H_
