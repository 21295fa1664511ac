#ifndef SHERD_TESTING_RANK_THREADS_H_
#define SHERD_TESTING_RANK_THREADS_H_

#include <deque>
#include <functional>
#include <semaphore>

#include "absl/status/status.h"

namespace sherd::testing::internal {

// Threads that stand for ranks, kept from one test to the next: thread r runs
// rank r, bears its name and has its rank in log lines.
//
// Threads. For one thread at a time.
class RankThreads {
 public:
  // Those of this process. Lives forever.
  static RankThreads& Global();

  // Starts threads until there are `n`.
  //   kResourceExhausted  The system gives no more.
  absl::Status Reserve(int n);

  // Has threads 0 to n - 1 call `job` with their number, and does not wait for
  // it. They must be idle, and as many reserved.
  void Run(int n, const std::function<void(int)>& job);

 private:
  struct Thread {
    std::binary_semaphore start{0};
    std::function<void(int)> job;
  };

  // Of addresses that stay.
  std::deque<Thread> threads_;
};

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_RANK_THREADS_H_
