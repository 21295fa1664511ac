#ifndef SHERD_CORE_COMM_GROUP_MEMBERSHIP_EXCHANGE_H_
#define SHERD_CORE_COMM_GROUP_MEMBERSHIP_EXCHANGE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/bootstrap/host_address.h"
#include "sherd/core/comm/store.h"

namespace sherd::internal {

// A rank's description of itself before any connection is made.
struct MemberRecord {
  int rank = 0;
  int world_size = 1;
  // As in BackendChoice::cpu and BackendChoice::cuda.
  std::string backend;
  std::string device_backend;
  // The backend cannot connect hosts.
  bool one_host_only = false;
  // With the backend "auto": why this rank cannot use shared memory. Empty if
  // it can.
  std::string shm_obstacle;
  // Why this rank cannot take part at all.
  absl::Status error;
  HostIdentity host;
};

// The result, the same on all ranks.
struct MembershipSummary {
  // As requested; "auto" is replaced by "shm" or "gloo".
  std::string backend;
  // The reason why "auto" is not shared memory; empty otherwise.
  std::string reason;
  // All ranks have equal HostIdentity::network.
  bool one_network = false;
  // All ranks also have equal HostIdentity::machine.
  bool one_host = false;
  // The first rank that is not on the host of rank 0; -1 if all are.
  int elsewhere = -1;
};

// Compares the records of all ranks, so that either all of them continue with
// the same summary or all of them get the same error, before anything can hang.
// Rank 0 reads the records and writes the summary, which costs a store with P
// ranks O(P) operations and not O(P^2).
//
// Keys: records/R, records/summary, and records/read/R once rank R has read an
// error.
//
// Collective. Every rank calls it with the same deadline.
//
// Errors, on every rank that joined:
//   kInvalidArgument     Ranks differ in the world size or the backend; the
//                        message lists what each requested, and who deviates
//                        (see deviation.h).
//   kFailedPrecondition  The backend is for one host and ranks are on several.
//   kDeadlineExceeded    Some ranks did not join; the message names them.
//   other                The `error` of some record.
// The rank with the `error` waits up to kReadGrace for the summary, so that
// rank 0, if it joins a little later, finds the record and not an abandoned
// session. Rank 0 waits as long for the other ranks to read any error, since
// its process may run the store and may be about to end.
absl::StatusOr<MembershipSummary> ExchangeMemberRecords(Store& store,
                                                        const MemberRecord& own,
                                                        Deadline deadline);
inline constexpr absl::Duration kReadGrace = absl::Seconds(1);

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_GROUP_MEMBERSHIP_EXCHANGE_H_
