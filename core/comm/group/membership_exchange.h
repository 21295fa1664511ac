#ifndef SHERD_CORE_COMM_GROUP_MEMBERSHIP_EXCHANGE_H_
#define SHERD_CORE_COMM_GROUP_MEMBERSHIP_EXCHANGE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/group/membership.h"
#include "sherd/core/comm/store.h"

namespace sherd::internal {

// What a rank contributes to the exchange, besides its world size and process.
struct MemberOffer {
  // For `settle` and ReadNotes.
  std::string note;
  // Why this rank cannot take part at all.
  absl::Status error;
  // What the notes of all ranks, by rank, result in, or why they do not fit.
  // Rank 0 calls it. Null: an empty result.
  std::function<absl::StatusOr<std::string>(const std::vector<std::string>&)>
      settle;
};

// Publishes this rank and its process to all ranks, sets the processes of all
// once they have joined, and returns the result of `settle`: the same on all
// ranks, or the same error on all that joined, before any connection is made.
// Collective; once per store. `expected`: the process of each rank, if known
// before it joins; otherwise empty.
//
// Keys, below the group's prefix:
//   joined/R        taken by the first process that joins as rank R
//   member/R        world size, process and note of rank R
//   summary         the result or error of all, and the processes; the first
//                   value counts. Rank 0 writes it when it has compared the
//                   records; any rank, when it finds that not all can join
//   summary/read/R  rank R has read the error
//
//   kInvalidArgument   The rank is taken; or world sizes differ, with what each
//                      rank asked for and who deviates (see deviation.h). A
//                      rank that rank 0 does not expect gets the latter alone:
//                      the others continue without it.
//   kDeadlineExceeded  Some ranks did not join; the message names them.
//   kUnavailable       A rank's process is known and ended before it joined, or
//                      that of rank 0 before it wrote the summary.
//   other              The `error` of some rank, or of `settle`.
// A rank with an `error` waits up to kReadGrace for the other ranks to join, so
// that they find it, and not an abandoned session. Then it, and after any error
// rank 0, whose process may run the store, wait as long for the ranks that
// joined to read the error.
//
// Cost. 3 operations of the store per rank, P + 2 of rank 0: 4P - 1 in all. A
// summary has some 80 bytes per rank. An error costs 4 more per rank, and P
// where ranks are missing.
absl::StatusOr<std::string> ExchangeMembership(
    Store& store, absl::Span<const std::string> expected, Deadline deadline,
    Membership& membership, const MemberOffer& offer = {});
inline constexpr absl::Duration kReadGrace = absl::Seconds(1);

// The notes of all `size` ranks, by rank, after an exchange that succeeded.
//
// Cost. 1 operation of the store; P if the notes have more than 64 MiB.
absl::StatusOr<std::vector<std::string>> ReadNotes(Store& store, int size,
                                                   Deadline deadline);

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_GROUP_MEMBERSHIP_EXCHANGE_H_
