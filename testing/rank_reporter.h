#ifndef SHERD_TESTING_RANK_REPORTER_H_
#define SHERD_TESTING_RANK_REPORTER_H_

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "sherd/testing/exit_codes.h"
#include "sherd/testing/result_frames.h"

namespace sherd::testing::internal {

// The rank's end of the result pipe, in a process that the harness started as
// a rank: forwards what GoogleTest records, and ends the process with the exit
// code of its table when the test failed or was skipped.
//
// It takes its place before main(), so that the program's main() need not know
// of it; the only thing asked of main() is to hand its arguments to
// InitGoogleTest.
//
// Threads. Safe from any thread.
class RankReporter {
 public:
  // The reporter of this process, or null if it is no rank.
  static RankReporter* Get();

  // What the rank does from now on.
  void Phase(absl::string_view phase);

  void ExpectDeath(int rank, int signal);

  void Send(ResultFrame frame);

 private:
  friend class RankListener;

  explicit RankReporter(int fd) : fd_(fd) {}
  static RankReporter* Install();

  absl::Mutex mutex_;
  const int fd_ ABSL_GUARDED_BY(mutex_);
};

// The reason that the next skip on this thread carries; returns its text.
absl::string_view AnnounceSkip(SkipReason reason);

// Takes the announced reason, kGeneric if there is none.
SkipReason TakeAnnouncedSkip();

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_RANK_REPORTER_H_
