#include "sherd/serialization/checkpoint/async/save_snapshot.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint/async/staging_ring.h"
#include "sherd/serialization/checkpoint/save/kept_plans.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::RandomSeed;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;

constexpr int64_t kRoom = StagingRing::kAlignment;
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

TEST(StagingRingTest, GivesRoomInOnePieceAndTakesItBackInOrder) {
  StagingRing ring;
  EXPECT_EQ(ring.Take(1), nullptr);
  ASSERT_THAT(ring.Reserve(10 * kRoom, kNoLimit, nullptr), IsOk());
  std::byte* const first = ring.Take(4 * kRoom);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(ring.Take(3 * kRoom + 1), first + 4 * kRoom);
  EXPECT_EQ(ring.Take(3 * kRoom), nullptr);
  EXPECT_EQ(ring.Take(kRoom), first + 8 * kRoom);
  ring.FreeOldest();
  // One unit is left at the end, four at the beginning.
  EXPECT_EQ(ring.Take(2 * kRoom), first);
  EXPECT_EQ(ring.Take(2 * kRoom), first + 2 * kRoom);
  EXPECT_EQ(ring.Take(1), nullptr) << "it is full";
  ring.FreeOldest();
  EXPECT_EQ(ring.Take(4 * kRoom), first + 4 * kRoom);
  for (int i = 0; i < 4; ++i) ring.FreeOldest();
  EXPECT_TRUE(ring.empty());
  EXPECT_EQ(ring.Take(10 * kRoom), first) << "an empty ring has all its room";
}

TEST(StagingRingTest, KeepsItsMemoryUnlessMoreIsNeeded) {
  StagingRing ring;
  ASSERT_THAT(ring.Reserve(100 * kRoom, kNoLimit, nullptr), IsOk());
  const auto memory = ring.storage();
  ASSERT_THAT(ring.Reserve(50 * kRoom, kNoLimit, nullptr), IsOk());
  EXPECT_EQ(ring.storage(), memory);
  ASSERT_THAT(ring.Reserve(101 * kRoom, kNoLimit, nullptr), IsOk());
  EXPECT_NE(ring.storage(), memory);
  EXPECT_EQ(ring.capacity(), 101 * kRoom);
  ASSERT_THAT(ring.Reserve(10 * kRoom, 20 * kRoom, nullptr), IsOk());
  EXPECT_EQ(ring.capacity(), 10 * kRoom) << "what is kept has a bound, too";
  ring.Release();
  EXPECT_EQ(ring.capacity(), 0);
}

TEST(StagingRingTest, CopiesDoNotOverlap) {
  std::mt19937_64 random(RandomSeed());
  StagingRing ring;
  ASSERT_THAT(ring.Reserve(64 * kRoom, kNoLimit, nullptr), IsOk());
  // Begin and end of each copy, the oldest first.
  std::vector<std::pair<std::byte*, std::byte*>> live;
  for (int i = 0; i < 10000; ++i) {
    const int64_t bytes = 1 + static_cast<int64_t>(random() % (24 * kRoom));
    std::byte* const copy = ring.Take(bytes);
    if (copy == nullptr || random() % 3 == 0) {
      if (copy != nullptr) live.emplace_back(copy, copy + bytes);
      ASSERT_FALSE(live.empty());
      ring.FreeOldest();
      live.erase(live.begin());
      continue;
    }
    for (const auto& [begin, end] : live) {
      ASSERT_TRUE(copy + bytes <= begin || copy >= end);
    }
    live.emplace_back(copy, copy + bytes);
  }
}

absl::Status NoProgress() { return absl::OkStatus(); }

// The tensors of one rank, and their plan.
struct Part {
  std::shared_ptr<SaveJob::Tensors> tensors;
  std::shared_ptr<const SavePlan> plan;

  Part(ProcessGroup& group, const std::map<std::string, Dims>& sizes)
      : tensors(std::make_shared<SaveJob::Tensors>()) {
    const auto spec = ChunkShardingSpec::Create(0, {"rank:0/cpu"});
    EXPECT_THAT(spec, IsOk());
    for (const auto& [name, size] : sizes) {
      auto tensor = ShardedTensor::Zeros(*spec, size);
      EXPECT_THAT(tensor, IsOk());
      FillSample(*tensor, 1);
      tensors->emplace(name, *tensor);
    }
    Replan(group);
  }
  void Replan(ProcessGroup& group) {
    const auto made =
        KeptPlans::Get().PlanFor(tensors->begin()->second.group(), *tensors,
                                 /*find_replicas=*/false);
    EXPECT_THAT(made, IsOk());
    EXPECT_EQ(&group, tensors->begin()->second.group().get());
    plan = *made;
  }
};

TEST(SaveSnapshotTest, CopiesWithAnyNumberOfThreads) {
  RunLocalRanks(1, [](ProcessGroup& group) {
    Part part(group, {{"a", {5}}, {"large", {4100, 1025}}, {"z", {70, 30}}});
    // Rows that are not contiguous, of more than a unit together.
    auto view = part.tensors->at("large").Narrow(1, 1, 700);
    ASSERT_THAT(view, IsOk());
    part.tensors->emplace("view", *view);
    part.Replan(group);
    // By one thread.
    std::vector<std::string> expected;
    for (const int threads : {1, 2, 5}) {
      StagingRing ring;
      CopyStreams streams;
      SaveSnapshot snapshot(part.tensors, part.plan, 0);
      const auto wave = snapshot.Place(ring);
      ASSERT_THAT(wave, IsOk());
      ASSERT_TRUE(snapshot.all_placed());
      ASSERT_THAT(snapshot.Copy(*wave, threads, streams, NoProgress), IsOk());
      EXPECT_TRUE(snapshot.complete());
      for (size_t i = 0; i < part.plan->shards.size(); ++i) {
        const auto copy = snapshot.Elements(i);
        ASSERT_THAT(copy, IsOk());
        auto it = part.tensors->begin();
        std::advance(it, part.plan->shards[i].tensor);
        EXPECT_EQ(snapshot.NumberOf(part.plan->shards[i]), i);
        const bool is_view = it->first == "view";
        EXPECT_TRUE(copy->is_contiguous());
        const std::string bytes(static_cast<const char*>(copy->data()),
                                static_cast<size_t>(copy->nbytes()));
        if (threads > 1) {
          EXPECT_TRUE(bytes == expected[i]) << it->first << " by " << threads;
          continue;
        }
        expected.push_back(bytes);
        EXPECT_EQ(CountWrong(*copy, {0, is_view ? 1 : 0},
                             is_view ? Dims{4100, 1025}
                                     : Dims(it->second.size().begin(),
                                            it->second.size().end()),
                             1),
                  0)
            << it->first;
      }
      snapshot.ReleaseAll(ring);
      EXPECT_TRUE(ring.empty());
    }
  });
}

// The other ranks wait as long as this one shows that it goes on.
TEST(SaveSnapshotTest, ReportsProgressAfterEachUnit) {
  RunLocalRanks(1, [](ProcessGroup& group) {
    // 16 MiB and a little, of which a thread takes 1 MiB at a time.
    const Part part(group, {{"a", {5}}, {"large", {4100, 1024}}});
    for (const int stop : {1000, 3}) {
      StagingRing ring;
      CopyStreams streams;
      SaveSnapshot snapshot(part.tensors, part.plan, 0);
      const auto wave = snapshot.Place(ring);
      ASSERT_THAT(wave, IsOk());
      int calls = 0;
      const absl::Status copied =
          snapshot.Copy(*wave, 1, streams, [&]() -> absl::Status {
            return ++calls == stop ? absl::AbortedError("a rank has died")
                                   : absl::OkStatus();
          });
      if (stop == 3) {
        EXPECT_THAT(copied, StatusIs(absl::StatusCode::kAborted));
        EXPECT_EQ(calls, 3);
      } else {
        EXPECT_THAT(copied, IsOk());
        EXPECT_GE(calls, 17);
      }
      snapshot.ReleaseAll(ring);
    }
  });
}

// In the order of the file, which begins with the largest.
const std::map<std::string, Dims> kFour = {
    {"a", {1024}}, {"b", {512}}, {"c", {256}}, {"d", {128}}};

TEST(SaveSnapshotTest, TheNextWaveReusesTheMemoryOfWrittenCopies) {
  RunLocalRanks(1, [](ProcessGroup& group) {
    const Part part(group, kFour);
    StagingRing ring;
    CopyStreams streams;
    // "a" is larger and stays where it is; b and c leave no room for d.
    SaveSnapshot snapshot(part.tensors, part.plan, 2048 + 1024);
    const auto expect_wave = [&](size_t begin, size_t end) {
      const auto wave = snapshot.Place(ring);
      ASSERT_THAT(wave, IsOk());
      EXPECT_EQ(wave->begin, begin);
      EXPECT_EQ(wave->end, end);
      EXPECT_THAT(snapshot.Copy(*wave, 1, streams, NoProgress), IsOk());
    };
    expect_wave(0, 3);
    EXPECT_EQ(ring.capacity(), 3072);
    EXPECT_FALSE(snapshot.all_placed());
    const auto a = snapshot.Elements(0);
    ASSERT_THAT(a, IsOk());
    EXPECT_EQ(a->data(), part.tensors->at("a").local_shards()[0].tensor.data());
    const auto b = snapshot.Elements(1);
    ASSERT_THAT(b, IsOk());
    FillSample(part.tensors->at("b"), 2);
    EXPECT_EQ(CountWrong(*b, {0}, {512}, 1), 0);
    snapshot.ReleaseBefore(1, ring);
    expect_wave(3, 3);
    EXPECT_FALSE(snapshot.complete());
    snapshot.ReleaseBefore(2, ring);
    expect_wave(3, 4);
    EXPECT_TRUE(snapshot.complete());
    const auto d = snapshot.Elements(3);
    ASSERT_THAT(d, IsOk());
    EXPECT_EQ(CountWrong(*d, {0}, {128}, 1), 0);
    snapshot.ReleaseAll(ring);
    EXPECT_TRUE(ring.empty());
  });
}

TEST(SaveSnapshotTest, IsCompleteOnceTensorsThatAreNotCopiedAreWritten) {
  RunLocalRanks(1, [](ProcessGroup& group) {
    const Part part(group, kFour);
    StagingRing ring;
    CopyStreams streams;
    SaveSnapshot snapshot(part.tensors, part.plan, 2048 + 1024 + 512);
    const auto wave = snapshot.Place(ring);
    ASSERT_THAT(wave, IsOk());
    ASSERT_THAT(snapshot.Copy(*wave, 1, streams, NoProgress), IsOk());
    EXPECT_TRUE(snapshot.all_placed());
    EXPECT_FALSE(snapshot.complete());
    snapshot.ReleaseBefore(1, ring);
    EXPECT_TRUE(snapshot.complete());
    const std::weak_ptr<Storage> elements =
        part.tensors->at("b").local_shards()[0].tensor.storage();
    snapshot.MaybeDropTensors();
    EXPECT_TRUE(elements.expired());
    snapshot.ReleaseAll(ring);
    EXPECT_TRUE(ring.empty());
  });
}

TEST(SaveSnapshotTest, GivesUpRoomAfterAnErrorToo) {
  RunLocalRanks(1, [](ProcessGroup& group) {
    const Part part(group, kFour);
    StagingRing ring;
    SaveSnapshot first(part.tensors, part.plan, 0);
    ASSERT_THAT(first.Place(ring), IsOk());
    first.ReleaseBefore(2, ring);
    SaveSnapshot second(part.tensors, part.plan, 0);
    const auto wave = second.Place(ring);
    ASSERT_THAT(wave, IsOk());
    EXPECT_EQ(wave->end, 2u);
    first.ReleaseAll(ring);
    second.ReleaseAll(ring);
    EXPECT_TRUE(ring.empty());
  });
}

}  // namespace
}  // namespace sherd
