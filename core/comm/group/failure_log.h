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
#include "sherd/core/process/process_status.h"

namespace sherd::internal {

// "died (process 1234 has ended)" or "is stopped (process 1234)", if the
// process that the text describes is in that state; otherwise nothing.
std::optional<std::string> DescribeEnd(const std::string& process,
                                       ProcessState state);

// The failure records that the ranks of a group write into its store: each
// names the rank that the writer holds responsible.
//
// A closed connection does not show whether the peer died, gave up because of a
// third rank, or left normally. The log does: a rank that fails records
// the rank it waited for before it closes its connections, so that the others
// can follow the chain to the root cause.
//
// Keys, below the group's prefix:
//   failure/R  the rank that rank R waited for, the status code and the
//              reason, written once; marked "certain" if the record is
//              conclusive, possibly that no rank failed
//   failed     the first rank that wrote failure/R with an error other than its
//              own timeout; a timeout is a symptom
//   left/R     rank R left normally
//
// Threads. Safe from any thread, once the ranks know each other's processes.
class FailureLog {
 public:
  // `membership` outlives it.
  FailureLog(std::shared_ptr<Store> store, const Membership& membership);

  // Sends `value` to all ranks and returns the values of all, by rank.
  // Collective; each name is used once.
  //   kDeadlineExceeded  A rank did not take part; the message names it.
  //   kUnavailable       A rank failed, or its process ended, before all took
  //                      part.
  //   kResourceExhausted  The values together have more than 64 MiB.
  // Cost. 2 operations of the store per rank; where ranks are late, P more, and
  // 2 per look at them.
  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view name,
                                                    absl::string_view value,
                                                    Deadline deadline);

  // Records that this rank failed with `status`, waiting for `failed_rank` if
  // known. Only the first call counts. `is_conclusive`: ranks made different
  // calls, which `status` describes, and `failed_rank` is the one that
  // deviates; unset if none does.
  void Report(const absl::Status& status, std::optional<int> failed_rank,
              bool is_conclusive = false);

  void ReportLeaving();

  struct RootCause {
    // Unset: the ranks disagree without a majority; `cause` describes how.
    std::optional<int> rank;
    // "died (process 1234 has ended)", "left the group", "did not come in
    // time".
    std::string cause;
    // The code of the root cause; unset if it is that of the symptom.
    std::optional<absl::StatusCode> code;
  };

  // Finds the rank where the failure began, given that this rank's operation
  // failed at `peer`. Waits up to kGrace for records of ranks that are still
  // alive.
  RootCause FindRootCause(int peer, absl::string_view symptom);

  // Returns the first other rank that died, is stopped or recorded a failure
  // other than waiting in vain, otherwise one that waited. For backends that do
  // not report the rank they waited for.
  std::optional<int> FirstSuspect() const;

  // For ranks that wait for all others: the other rank recorded under `failed`,
  // or one of this host whose process ended before it left; not a rank that
  // timed out, which waited itself. Each call checks a few processes, in turn,
  // and ranks begin at different ones, so that together they check all of them
  // in one or two calls.
  std::optional<int> FindFailedRank() const;

  // Other ranks of this host whose process ended before they left, ascending.
  std::vector<int> EndedRanks() const;

  // Whether the process of `rank` ended or it left the group: it takes part in
  // no further call.
  bool HasExited(int rank) const;
  // Whether the process of `rank` is stopped, as far as this host can see.
  bool IsStopped(int rank) const;
  // Whether it has written that it left.
  bool HasLeft(int rank) const;

  // How long a surviving rank may take to write its record after its
  // connections broke.
  static constexpr absl::Duration kGrace = absl::Seconds(1);

 private:
  struct Evidence;

  // Rank 0 may run the store's server: a store operation would then wait for
  // it.
  bool RankZeroIsStopped() const;

  // Whether other ranks wait for `rank`, whose process has ended.
  bool IsWaitedFor(int rank) const;

  // The record that `rank` has written about its end, if any.
  Evidence WrittenBy(int rank) const;

  // The evidence about why `rank` closed its connections; waits for it until
  // `deadline`.
  Evidence LookInto(int rank, Deadline deadline) const;

  const std::shared_ptr<Store> store_;
  const Membership& membership_;
  // Index of the neighbor that FindFailedRank checks next.
  mutable std::atomic<uint32_t> next_look_{0};
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_GROUP_FAILURE_LOG_H_
