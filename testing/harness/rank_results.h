#ifndef SHERD_TESTING_HARNESS_RANK_RESULTS_H_
#define SHERD_TESTING_HARNESS_RANK_RESULTS_H_

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/testing/harness/run_outcome.h"

namespace sherd::testing::internal {

// Records the results of one rank in this process: failures and skips of
// GoogleTest, and the phase that it reached. They become part of the verdict
// about all ranks, not of the result of the running test.
//
// Threads. Safe from any thread.
class RankResults {
 public:
  // `start` is the start of the run.
  explicit RankResults(Deadline::Clock::time_point start) : start_(start) {}

  // The results of the rank that this thread runs, null outside of ranks.
  static RankResults* Current();

  void Add(const ::testing::TestPartResult& result);
  void Phase(absl::string_view phase);

  bool HasFatalFailure() const;
  bool HasFailure() const;
  bool HasNonfatalFailure() const;
  bool IsSkipped() const;

  // Called when the rank has returned: it ends with the exit code of the table
  // in exit_codes.h, as failed, skipped or passed.
  void End();
  // Called if the rank does not end by itself. Later reports do not count.
  void Stop();
  bool HasEnded() const;

  // So far.
  RankOutcome outcome() const;

 private:
  absl::Duration Now() const;

  const Deadline::Clock::time_point start_;
  mutable absl::Mutex mutex_;
  RankOutcome outcome_ ABSL_GUARDED_BY(mutex_);
  bool fatal_ ABSL_GUARDED_BY(mutex_) = false;
  bool nonfatal_ ABSL_GUARDED_BY(mutex_) = false;
};

// While it exists, this thread is the rank of `results`, which receive
// GoogleTest's results: of this thread, or of all threads that do not belong to
// another rank. Neither the test's own result nor any printer receives them.
class ScopedRankResults final
    : public ::testing::ScopedFakeTestPartResultReporter {
 public:
  ScopedRankResults(RankResults& results, InterceptMode mode);
  ~ScopedRankResults() override;

  void ReportTestPartResult(const ::testing::TestPartResult& result) override;

 private:
  RankResults& results_;
  RankResults* const before_;
};

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_HARNESS_RANK_RESULTS_H_
