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

// The sockets by which a worker exchanges messages, and the paths by which
// tensors may be read in the sender's memory.
struct Transports {
  bool unix_sockets = true;
  bool tcp = true;
  MemoryPathSet memory = {.thread = true, .shm = true, .cma = true};

  // Names of "unix", "tcp", "thread", "shm" and "cma", with at least one of the
  // first two; an empty list means all.
  //   kInvalidArgument  Another name, a name twice, or no socket.
  static absl::StatusOr<Transports> Parse(
      const std::vector<std::string>& names);
  // Parse of the given list or, if that is empty, of SHERD_RPC_TRANSPORTS.
  static absl::StatusOr<Transports> Choose(
      const std::vector<std::string>& asked);
  // The sockets: "unix, tcp".
  std::string ToText() const;
};

// 1 to 127 letters, digits, "_", ":" and "-".
//   kInvalidArgument  The name is something else.
absl::Status CheckWorkerName(absl::string_view name);

// The workers of a job: the record that each has written about itself to the
// store of their session, and the state of its process.
//
// Threads. Changed while the workers meet; afterwards safe from any thread.
class Directory {
 public:
  struct Worker {
    std::string name;
    // Random bytes that identify this run of it.
    std::string nonce;
    // HostIdentity::network.
    std::string network;
    Transports transports;
    // Data of the layers above for the other workers: any bytes.
    std::string note = {};
    // Where it listens, in the form of FrameServer and Dial; without a host it
    // does not.
    HostPort unix_address;
    HostPort tcp_address;
  };

  // How worker `from` reaches worker `to`.
  enum class Route { kNone, kUnix, kTcp };

  // Meets the other workers. Collective; once per store. Keys: those of
  // ExchangeMembership. `error`: why this worker cannot take part; all get it.
  //   kInvalidArgument     A name is malformed, or world sizes differ; on all.
  //                        The rank is taken.
  //   kAlreadyExists       Two workers have one name. On all workers.
  //   kFailedPrecondition  Two workers have no transport in common. On all.
  //   kDeadlineExceeded    Names the ranks that did not arrive.
  //   kUnavailable         The process of rank 0 ended meanwhile.
  static absl::StatusOr<std::unique_ptr<Directory>> Meet(
      std::shared_ptr<Store> store, int rank, int world_size, Worker self,
      Deadline deadline, absl::Status error = absl::OkStatus());

  // Publishes where this worker listens and learns where the others do.
  // Collective, once.
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

  // The state of the process of `rank`, as far as this host sees it.
  ProcessState StateOfWorker(int rank) const;
  // Describes how it ended, as DescribeEnd; empty if it has not.
  std::string EndOfWorker(int rank) const;
  // Whether it is a thread of this process.
  bool SharesProcess(int rank) const;

  // Queries the store.
  bool HasLeft(int rank) const { return log_.HasLeft(rank); }
  // Records in the store that this worker leaves.
  void ReportLeaving() { log_.ReportLeaving(); }
  // Records an error of this worker while the workers meet.
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
