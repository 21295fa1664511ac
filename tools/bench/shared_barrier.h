#ifndef SHERD_TOOLS_BENCH_SHARED_BARRIER_H_
#define SHERD_TOOLS_BENCH_SHARED_BARRIER_H_

#include <atomic>
#include <cstdint>

namespace sherd {

// Lets a fixed number of processes meet, any number of times. Lies in memory
// that all of them map, and begins as zeros. A process that dies leaves the
// others waiting: whoever started them ends them.
class SharedBarrier {
 public:
  // Returns once `members` processes called it, all within microseconds of one
  // another. Those that wait keep asking for the processor, but let others go
  // first.
  void MeetAwake(uint32_t members);

  // The same for processes that may wait long: they sleep, and leave the
  // processors to those that still work.
  void MeetAsleep(uint32_t members);

 private:
  // True for the last one, which has opened the barrier.
  bool Arrive(uint32_t members, uint32_t& generation);

  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
};

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_SHARED_BARRIER_H_
