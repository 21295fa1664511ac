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

// What a case of the conformance suite has on each rank.
struct ConformanceRank {
  // Fresh; a case may spoil it.
  ProcessGroup& group;
  // See ConformanceOptions.
  bool small_floats_rounded_once = true;
  bool ranks_are_threads = false;
  bool dies_together = false;
  // Announces the death of a rank; for processes.
  std::function<void(int rank, int signal)> expect_death = {};
  // Counts the calls, the same on all ranks, so that each has data of its own.
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
  // All ranks call it. The error says what the backend does wrong.
  absl::Status (*run)(ConformanceRank&);
  // Worlds that are smaller have nothing to try.
  int min_size = 1;
  // It ends or stops processes whose peers must live on.
  bool kills = false;
};

// Every operation, right.
absl::Span<const ConformanceCase> OperationCases();
// Asynchronous calls, messages between two ranks.
absl::Span<const ConformanceCase> AsynchronousCases();
// What is refused, and that nothing comes of it.
absl::Span<const ConformanceCase> ArgumentCases();
// Groups of groups.
absl::Span<const ConformanceCase> GroupCases();
// Memory that ranks reach in each other's processes, where there is any.
absl::Span<const ConformanceCase> MemoryCases();
// Calls that contradict each other, deadlines, aborts, ranks that leave, stop
// or die.
absl::Span<const ConformanceCase> FailureCases();

// Of calls that nothing is wrong with.
absl::Duration ConformanceTimeout();

// What the backend does wrong.
template <typename... Args>
absl::Status Fault(const Args&... args) {
  return absl::InternalError(absl::StrCat(args...));
}

// The same from a call that ought to have worked and ended with `status`.
absl::Status ExplainFailure(ProcessGroup& group, const CallSpec& spec,
                            const absl::Status& status);

// Makes a call of all ranks, of the next number, and checks its result.
absl::Status CheckCall(ConformanceRank& rank, const CallSpec& spec);

// How exact a reduction has to be.
Rounding RoundingOf(const ConformanceRank& rank, const CallSpec& spec);

// What became of a call that had to fail within its deadline: a fault unless
// `status` is an error of `code` that names the operation and, in its text and
// as the one to blame, `failed_rank`.
absl::Status ExpectRootCause(const absl::Status& status, absl::StatusCode code,
                             CollectiveOp op, int failed_rank);

// A group of all ranks, which the case may spoil.
absl::StatusOr<std::shared_ptr<ProcessGroup>> NewGroupOfAll(
    ConformanceRank& rank);

// What an error may take above the deadline of the call, on a machine where
// the ranks are many and the cores are few.
inline constexpr absl::Duration kPatience = absl::Seconds(10);
// Of calls that are to run into it: far more than it takes a rank to come from
// a barrier to the next call.
inline constexpr absl::Duration kShortTimeout = absl::Seconds(1);
// Of calls whose peer is there no more or calls something else: far more than
// the error takes.
absl::Duration LongTimeout();

class Stopwatch {
 public:
  // A fault if more than `limit` has passed.
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

// A group that an operation broke refuses everything at once, and says why.
absl::Status ExpectPoisoned(ProcessGroup& group, int failed_rank);

// The ranks but `failed_rank` go on without it.
absl::Status SurvivorsGoOn(ConformanceRank& rank, int failed_rank);

// So that a rank which was stopped can be ended.
absl::Status TellOwnProcess(Store& store, int rank);
absl::Status EndProcess(Store& store, int rank);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_CONFORMANCE_CONFORMANCE_CASE_H_
