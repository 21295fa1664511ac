#ifndef SHERD_TOOLS_BENCH_HARNESS_SHARED_BARRIER_H_
#define SHERD_TOOLS_BENCH_HARNESS_SHARED_BARRIER_H_

#include <atomic>
#include <cstdint>

namespace sherd {

// Lets a fixed number of processes meet, any number of times. Lies in memory
// that all of them map, and begins as zeros. A process that dies leaves the
// others waiting: whoever started them ends them.
class SharedBarrier {
 public:
  // Returns once `members` processes called it, to all within about 50 us.
  //
  // Who waits sleeps. Asking for the processor again and again (sched_yield)
  // would bring the processes closer together, but the scheduler counts each
  // time against the caller, who then waits for milliseconds during the work
  // that follows.
  void Meet(uint32_t members);

 private:
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
};

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_HARNESS_SHARED_BARRIER_H_
