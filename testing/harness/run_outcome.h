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

// How the failure begins that a rank reports if its barrier behind the body
// fails. Where that is because another rank failed and left, it is left out.
inline constexpr absl::string_view kFinalBarrier =
    "barrier at the end of the test";

// A result frame and when it came, counted from the start of the run.
struct TimedFrame {
  absl::Duration when;
  ResultFrame frame;
};

// What became of one rank.
struct RankOutcome {
  // kFailure frames; of very many only the first.
  std::vector<TimedFrame> failures;
  int failures_dropped = 0;
  std::optional<ResultFrame> skip;
  std::string phase = "start";
  // The kDone frame.
  std::optional<ResultFrame> done;
  // Damage of the result pipe.
  absl::Status pipe;
  // How it ended and when; unset only if it was never started, or vanished.
  std::optional<ExitStatus> exit;
  // Of a rank whose end nobody saw: how one knows that it is gone.
  std::string vanished;
  absl::Duration ended;
  // The harness ended it.
  bool stopped = false;
  // In which phase it stood still because of a signal such as SIGSTOP, if it
  // did when the harness came to ask for its stacks.
  std::optional<std::string> suspended_in;
  // The launcher ended it, as it does with all ranks when one is killed.
  bool ended_by_launcher = false;
  // Standard output and error; of very much only beginning and end.
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
  // What a launcher itself printed.
  std::string launcher_output;
  // What the ranks remember of their collectives; of a run that was ended.
  std::optional<FlightSummary> flight;
  // Where whole outputs and dumps are kept; empty: nowhere.
  std::string kept_in;
};

// True if the rank ended other than announced or by returning from main() with
// 0, its result pipe in order.
bool EndedAbnormally(const RunOutcome& run, int rank);

// What the test in the parent process says. All texts are printable (see
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
  // Of a failure: the root cause, how each rank ended, and what the flight
  // recorders say. Of a skip: why.
  std::string text;
  // The root cause first. The same failure on several ranks stands here once.
  std::vector<Failure> failures;
};

// Decides about a run.
//
// Root cause. A crash outranks a failed expectation or a wrong exit, which
// outrank a rank that stands still because of a signal, which outranks a lost
// peer, which outranks a timeout; the earlier one of two alike. Of timeouts it
// is that of a rank that others wait for, if the flight recorders know one.
//
// Skips must be unanimous: with the same reason on all ranks. Otherwise the
// test fails and the text lists who skipped.
Verdict Judge(const RunOutcome& run);

// Each line of `output` behind "[rank R] ", printable.
std::string PrefixLines(int rank, absl::string_view output);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_HARNESS_RUN_OUTCOME_H_
