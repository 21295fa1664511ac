#include "sherd/core/comm/counters.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace sherd::internal {
namespace {

TEST(CounterTableTest, EachOperationHasItsOwnCounts) {
  const FlightClock clock;
  CounterTable table;
  table.Add(CollectiveOp::kAllReduce, 100, 5, true);
  table.Add(CollectiveOp::kAllReduce, 20, 6, false);
  table.Add(CollectiveOp::kRecv, 7, 8, true);
  const GroupCounters counters = table.Read(clock.Measure());
  EXPECT_EQ(counters.Of(CollectiveOp::kAllReduce).calls, 2u);
  EXPECT_EQ(counters.Of(CollectiveOp::kAllReduce).bytes, 120u);
  EXPECT_EQ(counters.Of(CollectiveOp::kAllReduce).errors, 1u);
  EXPECT_EQ(counters.Of(CollectiveOp::kRecv).calls, 1u);
  EXPECT_EQ(counters.Of(CollectiveOp::kRecv).errors, 0u);
  EXPECT_EQ(counters.Of(CollectiveOp::kBarrier).calls, 0u);
  EXPECT_EQ(counters.Total().calls, 3u);
  EXPECT_EQ(counters.Total().bytes, 127u);
  EXPECT_EQ(counters.Total().errors, 1u);
}

TEST(CounterTableTest, SecondsAreThoseOfTheClock) {
  const FlightClock clock;
  CounterTable table;
  const int64_t begin_ns = FlightClock::MonotonicNow();
  const int64_t begin = clock.Now();
  while (FlightClock::MonotonicNow() - begin_ns < 20'000'000) {
  }
  const int64_t ticks = clock.Now() - begin;
  const int64_t end_ns = FlightClock::MonotonicNow();
  table.Add(CollectiveOp::kBarrier, 0, ticks, true);
  const double seconds =
      table.Read(clock.Measure()).Of(CollectiveOp::kBarrier).seconds;
  EXPECT_GE(seconds, 0.0199);
  EXPECT_LE(seconds, 1.001e-9 * static_cast<double>(end_ns - begin_ns));
}

TEST(CounterTableTest, CallsOfAllThreadsAreCounted) {
  constexpr int kThreads = 4;
  constexpr uint64_t kCalls = 20'000;
  const FlightClock clock;
  CounterTable table;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&table, t] {
      for (uint64_t i = 0; i < kCalls; ++i) {
        table.Add(CollectiveOp::kSend, static_cast<uint64_t>(t), 1, i % 2 == 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const OperationCount count =
      table.Read(clock.Measure()).Of(CollectiveOp::kSend);
  EXPECT_EQ(count.calls, kThreads * kCalls);
  EXPECT_EQ(count.bytes, (0 + 1 + 2 + 3) * kCalls);
  EXPECT_EQ(count.errors, kThreads * kCalls / 2);
}

TEST(FlightClockTest, TicksBecomeMonotonicTime) {
  const FlightClock clock;
  int64_t before[3], ticks[3], after[3];
  for (int i = 0; i < 3; ++i) {
    before[i] = FlightClock::MonotonicNow();
    ticks[i] = clock.Now();
    after[i] = FlightClock::MonotonicNow();
  }
  const FlightClock::Scale scale = clock.Measure();
  // The pair of readings that the scale is based on was read within less than
  // this.
  constexpr int64_t kTolerance = 20'000;
  for (int i = 0; i < 3; ++i) {
    EXPECT_GE(scale.ToMonotonic(ticks[i]), before[i] - kTolerance);
    EXPECT_LE(scale.ToMonotonic(ticks[i]), after[i] + kTolerance);
  }
}

}  // namespace
}  // namespace sherd::internal
