#include "sherd/tools/bench/harness/shared_barrier.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace sherd {
namespace {

static_assert(std::atomic<uint32_t>::is_always_lock_free,
              "a lock would be private to a process");

void Futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  // Errors are wake-ups without a cause, and callers look again.
  syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

}  // namespace

void SharedBarrier::Meet(uint32_t members) {
  const uint32_t generation = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_release);
    Futex(generation_, FUTEX_WAKE, INT_MAX);
    return;
  }
  while (generation_.load(std::memory_order_acquire) == generation) {
    Futex(generation_, FUTEX_WAIT, generation);
  }
}

}  // namespace sherd
