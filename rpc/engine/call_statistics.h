#ifndef SHERD_RPC_ENGINE_CALL_STATISTICS_H_
#define SHERD_RPC_ENGINE_CALL_STATISTICS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "sherd/core/base/deadline.h"
#include "sherd/rpc/transfer/tensor_source.h"
#include "sherd/rpc/worker_statistics.h"

namespace sherd::internal {

// A histogram of durations with a fixed relative width of its buckets.
//
// Threads. Safe from any thread. Cost. Add: one atomic addition.
class LatencyHistogram {
 public:
  void Add(absl::Duration duration) {
    counts_[BucketOf(absl::ToInt64Nanoseconds(duration))].fetch_add(
        1, std::memory_order_relaxed);
  }
  // The duration that a part of `quantile` of all do not exceed: the middle of
  // its bucket. Zero if there are none.
  absl::Duration Quantile(double quantile) const;

 private:
  // Eight buckets for each power of two, from a microsecond to an hour.
  static constexpr int kSubBuckets = 8;
  static constexpr int kFirstPower = 10;
  static constexpr int kPowers = 32;
  static constexpr size_t kBuckets = kPowers * kSubBuckets;

  static size_t BucketOf(int64_t nanoseconds);
  static double MiddleOf(size_t bucket);

  std::array<std::atomic<uint32_t>, kBuckets> counts_{};
};

// The counters of one worker; see WorkerStatistics.
struct alignas(64) WorkerCounters {
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> errors{0};
  std::atomic<uint64_t> outstanding{0};
  std::atomic<uint64_t> bytes_sent{0};
  std::atomic<uint64_t> bytes_received{0};
  // Of bytes received, those read in its memory, by MemoryPath.
  std::array<std::atomic<uint64_t>, kNumMemoryPaths> bytes_read{};
  // Requests sent to it; the agreement of a drain relies on them.
  std::atomic<uint64_t> requests_sent{0};
  std::atomic<uint64_t> requests_received{0};
  LatencyHistogram latency;
};

// A call that has not ended, on one of its two workers.
struct CallUnderWay {
  // Made by the other worker; otherwise by this one.
  bool incoming = false;
  int peer = 0;
  uint64_t id = 0;
  std::string method;
  // "queued", "sent" and "landing" for the caller; "arriving", "waiting" for a
  // thread and "running" for the callee.
  const char* state = "";
  Deadline::Clock::time_point started;
  Deadline deadline = Deadline::Infinite();
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_ENGINE_CALL_STATISTICS_H_
