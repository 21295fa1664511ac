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

// The rank's end of the result pipe, in a process that the harness started as
// a rank: forwards what GoogleTest records, and ends the process with the exit
// code of its table when the test failed or was skipped.
//
// It takes its place before main(), so that the program's main() need not know
// of it; the only thing asked of main() is to hand its arguments to
// InitGoogleTest.
//
// A persistent rank (see RankSupervisor) has a pipe for commands too. Its
// arguments name the tests that it may be told to run. Before the first test
// and behind each that it ran it waits for a line with the name of the next;
// others that GoogleTest comes to are passed by. At the end of the pipe it goes
// on to its end without running any.
//
// A process that the rank forks is none: whatever it reports is left out.
//
// Threads. Safe from any thread, but for what says otherwise.
class RankReporter {
 public:
  // The reporter of this process, or null if it is no rank.
  static RankReporter* Get();

  ~RankReporter();

  // What the rank does from now on.
  void Phase(absl::string_view phase);

  void ExpectDeath(int rank, int signal);

  void Send(ResultFrame frame);

  // Returns in the rank itself; ends a process that it has forked, as exit()
  // would, but with the rank's share of destructors left to the rank.
  void EndForkedProcess() const;

  bool IsPersistent() const { return commands_ != nullptr; }

  // The rest is for persistent ranks, on the thread that runs the tests.

  // GoogleTest has come to a test that this rank was not told to run.
  bool IsPassingBy() const;
  // The rank is replaced behind the running test.
  void CannotGoOn();
  // `leave` is called when no test follows, before TearDownTestSuite:
  // `in_step`, or behind the test after which the rank is replaced.
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
