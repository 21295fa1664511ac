#ifndef SHERD_TESTING_HARNESS_RUN_OUTCOME_H_
#define SHERD_TESTING_HARNESS_RUN_OUTCOME_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sherd/core/process/exit_status.h"
#include "sherd/testing/harness/flight_report.h"
#include "sherd/testing/harness/result_frames.h"

namespace sherd::testing::internal {

// The beginning of the failure that a rank reports if its barrier after the
// body fails. It is omitted if another rank failed and left.
inline constexpr absl::string_view kFinalBarrier =
    "barrier at the end of the test";

// A result frame and its arrival time, counted from the start of the run.
struct TimedFrame {
  absl::Duration when;
  ResultFrame frame;
};

// The result of one rank.
struct RankOutcome {
  // kFailure frames; only the first if there are very many.
  std::vector<TimedFrame> failures;
  int failures_dropped = 0;
  std::optional<ResultFrame> skip;
  std::string phase = "start";
  // The kDone frame.
  std::optional<ResultFrame> done;
  // An error of the result pipe.
  absl::Status pipe;
  // How and when it ended; unset only if it was never started, or vanished.
  std::optional<ExitStatus> exit;
  // Of a rank whose end was not observed: how its end was detected.
  std::string vanished;
  absl::Duration ended;
  // The harness ended it.
  bool stopped = false;
  // The phase in which a signal such as SIGSTOP had stopped it when the harness
  // asked for its stacks.
  std::optional<std::string> suspended_in;
  // The launcher ended it, as it does with all ranks when one is killed.
  bool ended_by_launcher = false;
  // Standard output and error; only beginning and end if they are very long.
  std::string output;
};

struct RunOutcome {
  std::vector<RankOutcome> ranks;
  // Signal by rank, as announced with ExpectRankDies.
  std::map<int, int> expected_deaths;
  // The run took longer than `timeout`.
  bool timed_out = false;
  absl::Duration timeout;
  // Why the ranks could not be started.
  absl::Status start;
  // The output of the launcher itself.
  std::string launcher_output;
  // The ranks' flight recorders; of a run that was ended.
  std::optional<FlightSummary> flight;
  // Where whole outputs and dumps are kept; empty: nowhere.
  std::string kept_in;
};

// Whether the rank ended other than announced or by returning from main() with
// 0 and an intact result pipe.
bool EndedAbnormally(const RunOutcome& run, int rank);

// The test's result in the parent process. All texts are printable (see
// core/base/printable_text.h), whatever the ranks sent.
struct Verdict {
  enum class Kind { kPassed, kSkipped, kFailed };

  struct Failure {
    std::string file;
    int line;
    // Begins with the ranks: "[rank 2] …", "[ranks 0, 2-3] …".
    std::string text;
  };

  Kind kind = Kind::kPassed;
  // Of a failure: the root cause, how each rank ended, and the summary of the
  // flight recorders. Of a skip: its reason.
  std::string text;
  // The root cause first. A failure that several ranks share is listed once.
  std::vector<Failure> failures;
};

// Decides about a run.
//
// Root cause. A crash outranks a failed expectation or a wrong exit, which
// outrank a rank that a signal stopped, which outranks a lost peer, which
// outranks a timeout; of two alike the earlier one. Among timeouts it is that
// of a rank that others wait for, if the flight recorders show one.
//
// Skips must be unanimous: with the same reason on all ranks. Otherwise the
// test fails and the text lists who skipped.
Verdict Judge(const RunOutcome& run);

// Each line of `output` after "[rank R] ", printable.
std::string PrefixLines(int rank, absl::string_view output);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_HARNESS_RUN_OUTCOME_H_
