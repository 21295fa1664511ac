#ifndef SHERD_TOOLS_BENCH_HARNESS_SHARED_BARRIER_H_
#define SHERD_TOOLS_BENCH_HARNESS_SHARED_BARRIER_H_

#include <atomic>
#include <cstdint>

namespace sherd {

// A reusable barrier of a fixed number of processes, in memory that all of them
// map, initially zeros. A process that dies leaves the others waiting: the
// process that started them must end them.
class SharedBarrier {
 public:
  // Returns once `members` processes called it, to all within about 50 us.
  //
  // Waiting processes sleep. Polling with sched_yield would wake the processes
  // closer together, but the scheduler charges it to the caller, who then waits
  // for milliseconds during the work that follows.
  void Meet(uint32_t members);

 private:
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
};

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_HARNESS_SHARED_BARRIER_H_
