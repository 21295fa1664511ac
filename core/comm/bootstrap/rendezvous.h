#ifndef SHERD_CORE_COMM_BOOTSTRAP_RENDEZVOUS_H_
#define SHERD_CORE_COMM_BOOTSTRAP_RENDEZVOUS_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/bootstrap/init_method.h"
#include "sherd/core/comm/bootstrap/launch_environment.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/comm/store/store_session.h"

namespace sherd::internal {

struct RendezvousOptions {
  std::string group;
  LaunchEnvironment place;
  // Unset: use the meeting place that the launcher provides.
  std::optional<InitMethod> method;
  // In place of a method.
  std::shared_ptr<Store> store;
  // For its Bootstrap, if no other meeting place is given.
  const Backend* backend = nullptr;
  Deadline deadline = Deadline::Infinite();
  // The function that the program called: for errors.
  absl::string_view function = "Init";
};

struct Rendezvous {
  std::shared_ptr<StoreSession> session;
  // Numeric address at which this rank finds rank 0; empty if unknown.
  std::string master;
};

// Finds or creates the store:
//
//   a store of the program's
//   file://   a FileStore; removed by the last rank that leaves
//   tcp://    rank 0 listens and the others connect. Rank 0's process keeps
//             listening until it ends: ranks that leave later still need the
//             store, and the next session of the group uses it again
//   env://    tcp:// with MASTER_ADDR and MASTER_PORT, or Slurm's values
//   nothing   a store in memory for a single rank; a file in a directory of
//             this user under TMPDIR if mpirun started all ranks on this host;
//             as env:// otherwise; and with a backend that has a bootstrap, a
//             server of rank 0, whose address the backend broadcasts
//
// Address of rank 0's server: the loopback if the launcher states that all
// ranks are on this host, or if the name of its host resolves to 127.0.0.1 or
// ::1; the address that the name resolves to, if it is one of this host's;
// otherwise that of SHERD_SOCKET_IFNAME or of the route to it. Beyond the
// loopback a missing SHERD_SECRET_FILE is warned of once.
//
// Errors. kInvalidArgument if a value is missing, malformed or left over from
// another run; kUnavailable with the address if rank 0 cannot listen there;
// kDeadlineExceeded with rank 0 as the failed rank if it does not answer in
// time.
absl::StatusOr<Rendezvous> Meet(const RendezvousOptions& options);

// The numeric address on which a rank listens for the others' data once it is
// known that not all of them share its loopback: that of SHERD_SOCKET_IFNAME,
// otherwise of the route to `master`, otherwise of the default route.
//   kInvalidArgument  SHERD_SOCKET_IFNAME matches no interface.
//   kUnavailable      There is only the loopback.
absl::StatusOr<std::string> AddressForOthers(const std::string& master);

// Warns, once per process, if `rank` listens beyond the loopback without a
// secret.
void WarnOfMissingSecret(int rank, const std::string& address, int port,
                         const std::string& secret);

// The contents of SHERD_SECRET_FILE without the trailing newline; empty if the
// variable is not set.
//   kInvalidArgument  The file is empty, longer than 4 KiB, or other users may
//                     read it.
//   other             It cannot be read.
absl::StatusOr<std::string> ReadSecret();

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_BOOTSTRAP_RENDEZVOUS_H_
