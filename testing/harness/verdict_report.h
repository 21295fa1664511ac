#ifndef SHERD_TESTING_HARNESS_VERDICT_REPORT_H_
#define SHERD_TESTING_HARNESS_VERDICT_REPORT_H_

#include "sherd/testing/harness/kept_outputs.h"
#include "sherd/testing/harness/run_outcome.h"

namespace sherd::testing::internal {

// Keeps `files` (see KeepOutputs) if the run fails the running test, and
// records where.
void KeepIfFailed(RunOutcome& run, const RunFiles& files);

// Makes `verdict` the result of the running test, which is at `file` and
// `line`, and on failure prints the output of all ranks and the summary of
// their flight recorders.
void ReportVerdict(const RunOutcome& run, const Verdict& verdict,
                   const char* file, int line);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_HARNESS_VERDICT_REPORT_H_
