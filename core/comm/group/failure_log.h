#ifndef SHERD_CORE_COMM_GROUP_FAILURE_LOG_H_
#define SHERD_CORE_COMM_GROUP_FAILURE_LOG_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/group/membership.h"
#include "sherd/core/comm/store.h"

namespace sherd::internal {

// What the ranks of a group write into its store when something broke: whom
// they hold responsible.
//
// A connection only says that it was closed. Whether its far end died, gave up
// because of a third rank, or left in good order is found here: every rank that
// fails writes down whom it waited for before its connections go, so that the
// others can follow the chain to the rank where it began.
//
// Keys, below the group's prefix:
//   failure/R  whom rank R blames, with what status code, and why, written
//              once; and whether that is certain, so that nobody needs to look
//              further: a verdict, which may be that no rank failed
//   failed     the first rank that wrote failure/R with an error other than its
//              own timeout, which is a symptom
//   left/R     rank R left in good order
//
// Threads. Safe from any thread, once the ranks know each other's processes.
class FailureLog {
 public:
  // `membership` outlives it.
  FailureLog(std::shared_ptr<Store> store, const Membership& membership);

  // Sends `value` to all ranks, and returns those of all, by rank. Collective;
  // each name once.
  //   kDeadlineExceeded  A rank did not come; named.
  //   kUnavailable       A rank failed, or its process ended, before it came.
  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view name,
                                                    absl::string_view value,
                                                    Deadline deadline);

  // Says that this rank failed with `status`, waiting for `blamed` if known.
  // Only the first call counts. `is_verdict`: ranks made different calls, as
  // `status` says, and `blamed` is the one that deviates; unset if none does.
  void Report(const absl::Status& status, std::optional<int> blamed,
              bool is_verdict = false);

  void ReportLeaving();

  struct RootCause {
    // Unset: ranks contradict each other with equal right, as `cause` says.
    std::optional<int> rank;
    // "died (process 1234 is gone)", "left the group", "did not come in time".
    std::string cause;
    // What the failure is in truth; unset if the symptom's code says it.
    std::optional<absl::StatusCode> code;
  };

  // The rank where the failure began, given that this rank's operation broke at
  // `peer`. Waits up to kGrace for records of ranks that are still alive.
  RootCause FindRootCause(int peer, absl::string_view symptom);

  // The first other rank that died, was stopped or wrote down a failure that is
  // more than having waited in vain, otherwise one that waited; for backends
  // that do not say whom they waited for.
  std::optional<int> FirstSuspect() const;

  // For ranks that wait for all others: the first other rank of which `failed`
  // tells, or one of this host whose process ended before it left; not those
  // whose time was over, who waited for somebody too. Each call
  // looks at a few processes, in turn, and ranks begin at different ones, so
  // that together they see all of them in one or two calls.
  std::optional<int> FindLost() const;

  // Other ranks of this host whose process ended before they left, ascending.
  std::vector<int> EndedRanks() const;

  // Whether the process of `rank` ended or it left: it comes to nothing more.
  bool IsGone(int rank) const;
  // Whether its process is stopped, as far as this host sees.
  bool IsStopped(int rank) const;

  // How long a surviving rank may take to write its record after its
  // connections broke.
  static constexpr absl::Duration kGrace = absl::Seconds(1);

 private:
  struct Evidence;

  // Rank 0 may be who answers for the store: then a question would wait for it.
  bool RankZeroIsStopped() const;

  // Whether it has written so.
  bool HasLeft(int rank) const;

  // Whether `rank`, whose process has ended, is missed by those who wait.
  bool IsMissed(int rank) const;

  // What `rank` has written of its end, if anything.
  Evidence WrittenBy(int rank) const;

  // What is known about why `rank` closed its connections, waiting until
  // `deadline` for something to be known.
  Evidence LookInto(int rank, Deadline deadline) const;

  const std::shared_ptr<Store> store_;
  const Membership& membership_;
  // Which of the neighbors FindLost looks at next.
  mutable std::atomic<uint32_t> next_look_{0};
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_GROUP_FAILURE_LOG_H_
