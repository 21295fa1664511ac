#ifndef SHERD_TESTING_HARNESS_RANK_REPORTER_H_
#define SHERD_TESTING_HARNESS_RANK_REPORTER_H_

#include <sys/types.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "sherd/testing/harness/result_frames.h"

namespace sherd::testing::internal {

class RankCommands;

// The rank's end of the result pipe, in a process that the harness started as a
// rank: forwards GoogleTest's results, and ends the process with the exit code
// of its table when the test failed or was skipped.
//
// Installed before main(), which need not know of it; main() must only pass its
// arguments to InitGoogleTest.
//
// A persistent rank (see RankSupervisor) has a pipe for commands too. Its
// arguments name the tests that it may have to run. Before the first test and
// after each that it ran, it waits for a line with the name of the next; it
// skips the others that GoogleTest reaches. At the end of the pipe it runs no
// more tests and ends.
//
// A process that the rank forks is not a rank: its results are ignored.
//
// Threads. Safe from any thread, except where noted.
class RankReporter {
 public:
  // The reporter of this process, or null if it is not a rank.
  static RankReporter* Get();

  ~RankReporter();

  // Reports the rank's current phase.
  void Phase(absl::string_view phase);

  void ExpectDeath(int rank, int signal);

  void Send(ResultFrame frame);

  // Returns in the rank itself; ends a process that it has forked, as exit()
  // would, but without the destructors that belong to the rank.
  void EndForkedProcess() const;

  bool IsPersistent() const { return commands_ != nullptr; }

  // The rest is for persistent ranks, on the thread that runs the tests.

  // GoogleTest has reached a test that this rank was not asked to run.
  bool IsPassingBy() const;
  // The rank is replaced after the running test.
  void CannotGoOn();
  // `leave` is called when no test follows, before TearDownTestSuite: with
  // `in_step`, or after the test whose rank is replaced.
  void OnLeave(std::function<void(bool in_step)> leave);

 private:
  friend class RankListener;

  explicit RankReporter(int fd);
  static RankReporter* Install();
  bool IsForkedProcess() const { return getpid() != pid_; }

  absl::Mutex mutex_;
  const int fd_ ABSL_GUARDED_BY(mutex_);
  const pid_t pid_;
  std::unique_ptr<RankCommands> commands_;
};

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_HARNESS_RANK_REPORTER_H_
