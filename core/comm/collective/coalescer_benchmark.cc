#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "benchmark/benchmark.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/comm/coalescer.h"
#include "sherd/testing/local_ranks.h"

// 100 all_reduces of 64 bytes over ranks that are threads: one by one, started
// together, and coalesced. Times are those of rank 0 for all 100.

namespace sherd {
namespace {

constexpr int kOperations = 100;
constexpr int kRounds = 50;

using Numbers = std::vector<float>;

MutableBytes BytesOf(Numbers& numbers) {
  return MutableBytes(reinterpret_cast<std::byte*>(numbers.data()),
                      numbers.size() * sizeof(float));
}

// Runs `round(group, arrays)` on range(0) ranks and reports the mean time.
template <typename Round>
void TimeRounds(benchmark::State& state, const Round& round) {
  for (auto _ : state) {
    absl::Duration elapsed;
    testing::RunLocalRanks(
        static_cast<int>(state.range(0)), [&](ProcessGroup& group) {
          std::vector<Numbers> arrays(kOperations, Numbers(16, 1.0f));
          SHERD_CHECK(round(group, arrays).ok());
          SHERD_CHECK(group.Barrier().ok());
          const absl::Time start = absl::Now();
          for (int i = 0; i < kRounds; ++i) {
            const absl::Status status = round(group, arrays);
            SHERD_CHECK(status.ok()) << status;
          }
          if (group.rank() == 0) elapsed = absl::Now() - start;
        });
    state.SetIterationTime(absl::ToDoubleSeconds(elapsed) / kRounds);
  }
}

void BM_OneByOne(benchmark::State& state) {
  TimeRounds(state, [](ProcessGroup& group, std::vector<Numbers>& arrays) {
    for (Numbers& numbers : arrays) {
      const absl::Status status = group.AllReduce(
          BytesOf(numbers), BytesOf(numbers), kFloat32, ReduceOp::kMax);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  });
}
BENCHMARK(BM_OneByOne)->Arg(2)->Arg(4)->UseManualTime();

void BM_StartedTogether(benchmark::State& state) {
  TimeRounds(state, [](ProcessGroup& group, std::vector<Numbers>& arrays) {
    std::vector<Work> works;
    for (Numbers& numbers : arrays) {
      works.push_back(group.AllReduceAsync(BytesOf(numbers), BytesOf(numbers),
                                           kFloat32, ReduceOp::kMax));
    }
    return WhenAll(std::move(works)).Wait();
  });
}
BENCHMARK(BM_StartedTogether)->Arg(2)->Arg(4)->UseManualTime();

absl::Status AddAll(Coalescer& batch, std::vector<Numbers>& arrays) {
  for (Numbers& numbers : arrays) {
    const absl::Status status = batch.AllReduce(
        BytesOf(numbers), BytesOf(numbers), kFloat32, ReduceOp::kMax);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void BM_Coalesced(benchmark::State& state) {
  TimeRounds(state, [](ProcessGroup& group, std::vector<Numbers>& arrays) {
    Coalescer batch(group);
    const absl::Status status = AddAll(batch, arrays);
    return status.ok() ? batch.Launch() : status;
  });
}
BENCHMARK(BM_Coalesced)->Arg(2)->Arg(4)->UseManualTime();

void BM_CoalescedAsync(benchmark::State& state) {
  TimeRounds(state, [](ProcessGroup& group, std::vector<Numbers>& arrays) {
    Coalescer batch(group);
    const absl::Status status = AddAll(batch, arrays);
    return status.ok() ? batch.LaunchAsync().Wait() : status;
  });
}
BENCHMARK(BM_CoalescedAsync)->Arg(2)->Arg(4)->UseManualTime();

}  // namespace
}  // namespace sherd
