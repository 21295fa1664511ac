#ifndef SHERD_CORE_BASE_PARALLEL_RUN_H_
#define SHERD_CORE_BASE_PARALLEL_RUN_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace sherd {

struct ParallelOptions {
  // At most so many threads, the calling one included.
  int threads = 1;
  // Of the other threads; see StartNamedThread.
  std::string name;
  // Called after progress of any thread, on the calling thread only; its error
  // ends the work. May be null.
  std::function<absl::Status()> progress = nullptr;
};

// Work in numbered parts that several threads do at the same time: the calling
// thread, and others that are started for it and end with it.
//
//   ParallelRun run({.threads = 4, .name = "sherd-read",
//                    .progress = [&] { return step.MadeProgress(); }});
//   absl::Status status = run.Run(parts, [&](int64_t part) -> absl::Status {
//     for (…) {
//       …
//       SHERD_RETURN_IF_ERROR(run.MadeProgress());
//     }
//     return absl::OkStatus();
//   });
//
// Or the calling thread does something else first, and joins them at the end:
//
//   run.Start(parts, …);
//   …
//   absl::Status status = run.Finish();
class ParallelRun {
 public:
  explicit ParallelRun(ParallelOptions options);
  ParallelRun(const ParallelRun&) = delete;
  ParallelRun& operator=(const ParallelRun&) = delete;
  // After Start without Finish, ends the work as an error does, and waits.
  ~ParallelRun();

  // Calls `work` once with each part of [0, parts). A thread that has finished
  // a part takes the next one, so that parts begin in ascending order. With one
  // thread or one part, all of it happens on the calling thread. Called once.
  //
  // Completion. No other thread works once it returns, after an error too.
  // Errors. The first in time, of `work` or of `progress`. After it no part
  //   begins, and MadeProgress returns it in the parts that run. That a thread
  //   cannot be started is not an error: fewer threads do the work.
  // Threads. The others have the log rank of the calling thread.
  // Cost. Some 50 us for each thread that is started.
  absl::Status Run(int64_t parts,
                   absl::FunctionRef<absl::Status(int64_t part)> work);

  // The two halves of Run. From Start to Finish the other threads work alone;
  // `work` is borrowed until then. Finish does what is left, all of it if there
  // is no other thread, and waits for the rest. Called on one thread.
  void Start(int64_t parts, absl::FunctionRef<absl::Status(int64_t part)> work);
  absl::Status Finish();

  // Called by `work`, on its thread, after each operation that takes a while.
  // Returns the error with which the part is to end.
  //
  // Cost. Two loads, and `progress` on the calling thread.
  absl::Status MadeProgress();

 private:
  void StartThreads(int64_t count);
  // Takes parts until there are none.
  void Work();
  absl::Status Progress();
  void Fail(const absl::Status& status);

  const ParallelOptions options_;
  // Set by Run and Start, before they start threads.
  std::thread::id caller_;
  int64_t parts_ = 0;
  std::function<absl::Status(int64_t)> work_;
  std::vector<std::thread> threads_;

  // Read without the lock, which most calls of MadeProgress do not take.
  std::atomic<bool> failed_ = false;
  std::atomic<bool> caller_waits_ = false;
  std::atomic<int64_t> next_part_ = 0;

  absl::Mutex mutex_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  // How often the other threads have made progress while the caller waited.
  int64_t steps_ ABSL_GUARDED_BY(mutex_) = 0;
  // How many of the other threads have not ended.
  int working_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sherd

#endif  // SHERD_CORE_BASE_PARALLEL_RUN_H_
