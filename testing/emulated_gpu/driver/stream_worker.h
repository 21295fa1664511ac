#ifndef SHERD_TESTING_EMULATED_GPU_DRIVER_STREAM_WORKER_H_
#define SHERD_TESTING_EMULATED_GPU_DRIVER_STREAM_WORKER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace sherd::testing {

// Runs the work queued on one stream, in order, on a thread of its own and
// later than it was queued. The delay is drawn from the seed, the number of the
// stream and the position in it.
//
// Threads. Safe. The thread starts with the first task and is detached: a task
// that never ends does not keep the process from exiting.
class StreamWorker : public std::enable_shared_from_this<StreamWorker> {
 public:
  // The task'th of a worker, counted from 1.
  using Place = std::pair<std::shared_ptr<StreamWorker>, uint64_t>;

  explicit StreamWorker(uint64_t number) : number_(number) {}

  // Queues; `run` begins once all of `after` have run.
  void Push(std::vector<Place> after, std::function<void()> run);

  // The thread ends when all work has run; nothing may be pushed afterwards.
  void Close();

  bool HasRun(uint64_t place);
  void WaitFor(uint64_t place);

  static void SetSeed(uint64_t seed);
  // Adds `change` to a counter and returns it. No task begins while it is above
  // 0.
  static int Hold(int change);

 private:
  struct Task {
    std::vector<Place> after;
    std::function<void()> run;
  };

  void Run();

  const uint64_t number_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  uint64_t completed_ = 0;
  bool has_thread_ = false;
  bool is_closed_ = false;
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_DRIVER_STREAM_WORKER_H_
