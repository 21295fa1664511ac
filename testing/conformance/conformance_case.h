#ifndef SHERD_TESTING_CONFORMANCE_CONFORMANCE_CASE_H_
#define SHERD_TESTING_CONFORMANCE_CONFORMANCE_CASE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/store.h"
#include "sherd/testing/conformance/conformance_call.h"
#include "sherd/testing/conformance/conformance_data.h"

namespace sherd::testing::internal {

// The state of a case of the conformance suite on each rank.
struct ConformanceRank {
  // A fresh group, which a case may poison.
  ProcessGroup& group;
  // See ConformanceOptions.
  bool small_floats_rounded_once = true;
  bool ranks_are_threads = false;
  bool dies_together = false;
  // Announces the death of a rank; only for processes.
  std::function<void(int rank, int signal)> expect_death = {};
  // Number of calls so far, the same on all ranks, so that each has its own
  // data.
  uint64_t calls = 0;

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  std::vector<int> AllRanks() const {
    std::vector<int> ranks(size());
    for (int r = 0; r < size(); ++r) ranks[r] = r;
    return ranks;
  }
};

struct ConformanceCase {
  const char* name;
  // All ranks call it. The error describes what the backend does wrong.
  absl::Status (*run)(ConformanceRank&);
  // The case is skipped in smaller worlds.
  int min_size = 1;
  // It kills or stops processes, and their peers must survive.
  bool kills = false;
};

// Every operation, with valid arguments.
absl::Span<const ConformanceCase> OperationCases();
// Asynchronous calls, messages between two ranks.
absl::Span<const ConformanceCase> AsynchronousCases();
// Invalid arguments: each is refused and has no effect.
absl::Span<const ConformanceCase> ArgumentCases();
// Groups of groups.
absl::Span<const ConformanceCase> GroupCases();
// Memory that ranks access in each other's processes, if the backend has it.
absl::Span<const ConformanceCase> MemoryCases();
// Calls that contradict each other, deadlines, aborts, ranks that leave, stop
// or die.
absl::Span<const ConformanceCase> FailureCases();

// Timeout of calls that are expected to succeed.
absl::Duration ConformanceTimeout();

// An error that describes what the backend does wrong.
template <typename... Args>
absl::Status Fault(const Args&... args) {
  return absl::InternalError(absl::StrCat(args...));
}

// The same for a call that was expected to succeed and ended with `status`.
absl::Status ExplainFailure(ProcessGroup& group, const CallSpec& spec,
                            const absl::Status& status);

// Makes the next call on all ranks and checks its result.
absl::Status CheckCall(ConformanceRank& rank, const CallSpec& spec);

// How exact a reduction has to be.
Rounding RoundingOf(const ConformanceRank& rank, const CallSpec& spec);

// Checks the result of a call that had to fail within its deadline: returns a
// fault unless `status` is an error of `code` that names the operation and, in
// its text and as its ErrorInfo::rank, `failed_rank`.
absl::Status ExpectRootCause(const absl::Status& status, absl::StatusCode code,
                             CollectiveOp op, int failed_rank);

// A new group of all ranks, which the case may poison.
absl::StatusOr<std::shared_ptr<ProcessGroup>> NewGroupOfAll(
    ConformanceRank& rank);

// How long after the call's deadline an error may come, on a machine with many
// ranks and few cores.
inline constexpr absl::Duration kPatience = absl::Seconds(10);
// Timeout of calls that are to reach it: far longer than a rank needs from a
// barrier to the next call.
inline constexpr absl::Duration kShortTimeout = absl::Seconds(1);
// Timeout of calls whose peer has ended or calls something else: far longer
// than the error takes.
absl::Duration LongTimeout();

class Stopwatch {
 public:
  // Returns a fault if more than `limit` has passed.
  absl::Status Expect(absl::Duration limit, absl::string_view what) const {
    const absl::Duration elapsed =
        absl::FromChrono(Deadline::Clock::now() - start_);
    if (elapsed <= limit) return absl::OkStatus();
    return Fault(what, " took ", absl::FormatDuration(elapsed),
                 ", expected at most ", absl::FormatDuration(limit));
  }

 private:
  const Deadline::Clock::time_point start_ = Deadline::Clock::now();
};

// A group that an operation broke refuses every call at once, and reports why.
absl::Status ExpectPoisoned(ProcessGroup& group, int failed_rank);

// The ranks but `failed_rank` go on without it.
absl::Status SurvivorsGoOn(ConformanceRank& rank, int failed_rank);

// Publishes the process id, so that a stopped rank can be ended.
absl::Status TellOwnProcess(Store& store, int rank);
absl::Status EndProcess(Store& store, int rank);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_CONFORMANCE_CONFORMANCE_CASE_H_
