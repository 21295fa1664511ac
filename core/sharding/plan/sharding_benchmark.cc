#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/spec/shard_validation.h"

// Code that does not move data: validation and planning. Compare validation
// with BM_PlainSweep, which does only the overlap check, in two dimensions, on
// plain numbers.

namespace sherd {
namespace {

// Boxes of 4 x 4 in rows of the power of two at or above sqrt(count); with
// `bricks`, every second row is shifted by half a box, so that they are not a
// grid.
std::vector<ShardMetadata> SquareBoxes(int64_t count, bool bricks) {
  int64_t side = 1;
  while (side * side < count) side *= 2;
  std::vector<ShardMetadata> shards;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = i / side;
    const int64_t shift = bricks ? row % 2 * 2 : 0;
    shards.push_back({{4 * row, 4 * (i % side) + shift},
                      {4, 4},
                      Placement::OnRank(static_cast<int>(i % 64))});
  }
  return shards;
}

void BM_ValidateGrid(benchmark::State& state) {
  const auto shards = SquareBoxes(state.range(0), /*bricks=*/false);
  for (auto _ : state) {
    benchmark::DoNotOptimize(ValidateNonOverlapping(shards));
  }
}
BENCHMARK(BM_ValidateGrid)->Arg(1024)->Arg(16384)->Arg(1 << 20);

void BM_ValidateBricks(benchmark::State& state) {
  const auto shards = SquareBoxes(state.range(0), /*bricks=*/true);
  for (auto _ : state) {
    benchmark::DoNotOptimize(ValidateNonOverlapping(shards));
  }
}
BENCHMARK(BM_ValidateBricks)->Arg(1024)->Arg(16384)->Arg(1 << 20);

struct PlainBox {
  int64_t offsets[2];
  int64_t sizes[2];
};

bool PlainSweep(const std::vector<PlainBox>& boxes) {
  struct Event {
    int64_t at;
    int kind;
    uint32_t box;
  };
  std::vector<Event> events;
  events.reserve(2 * boxes.size());
  for (uint32_t i = 0; i < boxes.size(); ++i) {
    events.push_back({boxes[i].offsets[0], 1, i});
    events.push_back({boxes[i].offsets[0] + boxes[i].sizes[0], 0, i});
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.at != b.at ? a.at < b.at : a.kind < b.kind;
  });
  std::map<int64_t, int64_t> active;
  for (const Event& event : events) {
    const PlainBox& box = boxes[event.box];
    if (event.kind == 0) {
      active.erase(box.offsets[1]);
      continue;
    }
    const int64_t lo = box.offsets[1];
    const int64_t hi = lo + box.sizes[1];
    const auto next = active.lower_bound(lo);
    if (next != active.end() && next->first < hi) return false;
    if (next != active.begin() && std::prev(next)->second > lo) return false;
    active.emplace_hint(next, lo, hi);
  }
  return true;
}

void BM_PlainSweep(benchmark::State& state) {
  std::vector<PlainBox> boxes;
  for (const ShardMetadata& shard :
       SquareBoxes(state.range(0), /*bricks=*/false)) {
    boxes.push_back({{shard.offsets[0], shard.offsets[1]},
                     {shard.sizes[0], shard.sizes[1]}});
  }
  for (auto _ : state) benchmark::DoNotOptimize(PlainSweep(boxes));
}
BENCHMARK(BM_PlainSweep)->Arg(1024)->Arg(16384)->Arg(1 << 20);

void BM_ChunkMetadata(benchmark::State& state) {
  const auto spec = ChunkShardingSpec::Create(
                        0, PlacementsOnRanks(static_cast<int>(state.range(0))))
                        .value();
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        spec->BuildMetadata({4 * state.range(0), 16}, TensorProperties()));
  }
}
BENCHMARK(BM_ChunkMetadata)->Arg(1024)->Arg(16384);

// A grid of `range(0)` boxes to one in which rows are twice as long, for one of
// `range(1)` ranks.
void BM_Plan(benchmark::State& state, bool bricks) {
  const int ranks = static_cast<int>(state.range(1));
  const auto boxes = [&](int64_t count) {
    std::vector<ShardMetadata> shards = SquareBoxes(count, bricks);
    for (size_t i = 0; i < shards.size(); ++i) {
      shards[i].placement =
          Placement::OnRank(static_cast<int>(i % static_cast<size_t>(ranks)));
    }
    return PlacedBoxes(shards, AllRanks(ranks)).value();
  };
  const std::vector<PlacedBox> from = boxes(state.range(0));
  std::vector<PlacedBox> to = from;
  std::reverse(to.begin(), to.end());
  for (size_t i = 0; i < to.size(); ++i) to[i].rank = from[i].rank;
  for (auto _ : state) {
    benchmark::DoNotOptimize(ReshardPlan::Create(from, to, 7).value());
  }
}
BENCHMARK_CAPTURE(BM_Plan, grid, false)
    ->Args({1024, 16})
    ->Args({1 << 20, 10'000})
    ->Args({1 << 20, 16})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Plan, bricks, true)
    ->Args({1024, 16})
    ->Args({1 << 20, 10'000})
    ->Args({1 << 20, 16})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sherd
