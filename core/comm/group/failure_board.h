#ifndef SHERD_CORE_COMM_GROUP_FAILURE_BOARD_H_
#define SHERD_CORE_COMM_GROUP_FAILURE_BOARD_H_

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
#include "sherd/core/comm/store.h"

namespace sherd::internal {

// What the ranks of a group tell each other through its store: who they are,
// and, when something broke, whom they hold responsible.
//
// A connection only says that it was closed. Whether its far end died, gave up
// because of a third rank, or left in good order is found here: every rank that
// fails writes down whom it waited for before its connections go, so that the
// others can follow the chain to the rank where it began.
//
// Keys, below the group's prefix:
//   member/R   world size and process of rank R, written when it joins
//   failure/R  whom rank R blames, with what status code, and why, written
//              once; and whether that is certain, so that nobody needs to look
//              further: a verdict, which may be that no rank failed
//   failed     the first rank that wrote failure/R for more than that its time
//              was over, which is no cause
//   left/R     rank R left in good order
//
// Threads. Safe from any thread.
class FailureBoard {
 public:
  // `expected`: the process of each rank, where that is known before it joins;
  // otherwise empty.
  FailureBoard(std::shared_ptr<Store> store, int rank, int size,
               std::vector<std::string> expected = {});

  // Writes this rank's member record and waits for all others.
  //   kInvalidArgument   Rank taken, or world sizes differ.
  //   kDeadlineExceeded  Names the ranks that did not come.
  //   kUnavailable       A rank's process is known, and ended before it joined.
  absl::Status Join(Deadline deadline);

  // Tells all ranks `value`, and returns those of all, by rank. Collective;
  // after Join; each name once.
  //   kDeadlineExceeded  A rank did not come; named.
  //   kUnavailable       A rank failed, or its process ended, before it came.
  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view name,
                                                    absl::string_view value,
                                                    Deadline deadline);

  // As DescribeOwnProcess() has it on `rank`. After Join.
  const std::string& process(int rank) const { return processes_[rank]; }

  // Says that this rank failed with `status`, waiting for `blamed` if known.
  // Only the first call counts. `is_verdict`: ranks made different calls, as
  // `status` says, and `blamed` is the one that deviates; unset if none does.
  void Report(const absl::Status& status, std::optional<int> blamed,
              bool is_verdict = false);

  // True if all ranks run on one host, in one PID namespace. After Join.
  bool OneHost() const;

  // Entry r is the number of the machine of rank r: 0 for that of rank 0, and
  // so on in the order in which ranks name new ones. After Join.
  std::vector<int> HostOfRank() const;

  void ReportLeaving();

  struct Verdict {
    // Unset: ranks contradict each other with equal right, as `cause` says.
    std::optional<int> rank;
    // "died (process 1234 is gone)", "left the group", "did not come in time".
    std::string cause;
    // What the failure is in truth; unset if the symptom's code says it.
    std::optional<absl::StatusCode> code;
  };

  // The rank where the failure began, given that this rank's operation broke at
  // `peer`. Waits up to kGrace for records of ranks that are still alive.
  Verdict FindCulprit(int peer, absl::string_view symptom);

  // The first other rank that died, was stopped or wrote down a failure that is
  // more than having waited in vain, otherwise one that waited; for backends
  // that do not say whom they waited for.
  std::optional<int> FirstSuspect() const;

  // For ranks that wait for all others: the first other rank of which `failed`
  // tells, or one of this host whose process ended before it left; not those
  // whose time was over, who waited for somebody too. After Join. Each call
  // looks at a few processes, in turn, and ranks begin at different ones, so
  // that together they see all of them in one or two calls.
  std::optional<int> FindLost() const;

  // Other ranks of this host whose process ended before they left, ascending.
  std::vector<int> EndedRanks() const;

  // Whether the process of `rank` ended or it left: it comes to nothing more.
  // After Join.
  bool IsGone(int rank) const;
  // Whether its process is stopped, as far as this host sees. After Join.
  bool IsStopped(int rank) const;

  // How long a surviving rank may take to write its record after its
  // connections broke.
  static constexpr absl::Duration kGrace = absl::Seconds(1);

 private:
  struct Clue;

  absl::StatusOr<std::string> AwaitMember(int rank, Deadline deadline);

  // Rank 0 may be who answers for the store: then a question would wait for it.
  bool RankZeroIsStopped() const;

  // Whether it has written so.
  bool HasLeft(int rank) const;

  // Whether `rank`, whose process has ended, is missed by those who wait.
  bool IsMissed(int rank) const;

  // What `rank` has written of its end, if anything.
  Clue WrittenBy(int rank) const;

  // What is known about why `rank` closed its connections, waiting until
  // `deadline` for something to be known.
  Clue LookInto(int rank, Deadline deadline) const;

  const std::shared_ptr<Store> store_;
  const int rank_;
  const int size_;
  const std::vector<std::string> expected_;
  // Where each rank runs; filled by Join, constant afterwards.
  std::vector<std::string> processes_;
  // The others whose process this one can see; likewise.
  std::vector<int> neighbors_;
  // Which of them FindLost looks at next.
  mutable std::atomic<uint32_t> next_look_{0};
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_GROUP_FAILURE_BOARD_H_
