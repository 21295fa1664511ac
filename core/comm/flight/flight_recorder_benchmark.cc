#include "absl/status/status.h"
#include "benchmark/benchmark.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/flight/flight_clock.h"
#include "sherd/core/comm/flight/flight_recorder.h"

// The recorder's overhead per operation. Compare with BM_SteadyClock: Begin and
// End read the time once each.

namespace sherd::internal {
namespace {

Collective MakeCall(uint64_t sequence) {
  return {.op = CollectiveOp::kAllReduce,
          .bytes = 8,
          .dtype = DType::kFloat32,
          .reduction = ReduceOp::kSum,
          .sequence = sequence,
          .deadline = Deadline::Infinite()};
}

void BM_BeginAndEnd(benchmark::State& state) {
  FlightRecorder recorder(static_cast<size_t>(state.range(0)));
  const GroupTag group(recorder, {.name = "default"});
  uint64_t sequence = 0;
  for (auto _ : state) {
    const FlightTicket ticket = recorder.Begin(group, MakeCall(++sequence));
    recorder.End(ticket, absl::StatusCode::kOk);
  }
}
BENCHMARK(BM_BeginAndEnd)->Arg(64)->Arg(2048);

void BM_BeginStartAndEnd(benchmark::State& state) {
  FlightRecorder recorder(2048);
  const GroupTag group(recorder, {.name = "default"});
  uint64_t sequence = 0;
  for (auto _ : state) {
    const FlightTicket ticket =
        recorder.Begin(group, MakeCall(++sequence), OperationPath::kNative,
                       /*started=*/false);
    recorder.MarkStarted(ticket);
    recorder.End(ticket, absl::StatusCode::kOk);
  }
}
BENCHMARK(BM_BeginStartAndEnd);

// Ranks that are threads share the ring, but not the counters.
void BM_RanksAreThreads(benchmark::State& state) {
  static auto* const recorder = new FlightRecorder(2048);
  const GroupTag group(*recorder, {.name = "default",
                                   .rank = state.thread_index(),
                                   .size = state.threads()});
  uint64_t sequence = 0;
  for (auto _ : state) {
    const FlightTicket ticket = recorder->Begin(group, MakeCall(++sequence));
    recorder->End(ticket, absl::StatusCode::kOk);
  }
}
BENCHMARK(BM_RanksAreThreads)->Threads(2);

void BM_SteadyClock(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(FlightClock::MonotonicNow());
  }
}
BENCHMARK(BM_SteadyClock);

void BM_FlightClock(benchmark::State& state) {
  const FlightClock clock;
  for (auto _ : state) benchmark::DoNotOptimize(clock.Now());
}
BENCHMARK(BM_FlightClock);

void BM_SnapshotOfFullRing(benchmark::State& state) {
  FlightRecorder recorder(2048);
  const GroupTag group(recorder, {.name = "default"});
  for (uint64_t i = 0; i < recorder.capacity(); ++i) {
    recorder.End(recorder.Begin(group, MakeCall(i)), absl::StatusCode::kOk);
  }
  for (auto _ : state) benchmark::DoNotOptimize(recorder.Snapshot());
}
BENCHMARK(BM_SnapshotOfFullRing)->Unit(benchmark::kMicrosecond);

// The watchdog's work every 100 ms.
void BM_LookForOutstanding(benchmark::State& state) {
  FlightRecorder recorder(2048);
  const GroupTag group(recorder, {.name = "default"});
  const FlightTicket ticket = recorder.Begin(group, MakeCall(1));
  for (auto _ : state) {
    recorder.VisitOutstanding(
        [](const FlightEntry& entry) { benchmark::DoNotOptimize(entry); });
  }
  recorder.End(ticket, absl::StatusCode::kOk);
}
BENCHMARK(BM_LookForOutstanding)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace sherd::internal
