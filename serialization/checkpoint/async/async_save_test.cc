// Saves that run beside the program; for processes that die see
// async_kill_test.cc.

#include "sherd/serialization/checkpoint/async/async_save.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/save/kept_plans.h"
#include "sherd/serialization/checkpoint_async.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/async_save_fixture.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::CountPassages;
using sherd::testing::IsOk;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::HasSubstr;

class AsyncSaveTest : public AsyncSaveFixture {};

TEST_F(AsyncSaveTest, SavesTheValuesOfTheCallThoughTensorsChange) {
  for (const int ranks : {1, 2, 3}) {
    RunLocalRanks(ranks, [&](ProcessGroup&) {
      Tensors tensors = MakeTensors(ranks, 1);
      auto save = SaveCheckpointAsync(Path(ranks), tensors);
      ASSERT_THAT(save, IsOk());
      EXPECT_THAT(save->Copied(), IsOk());
      Change(tensors, 2);
      EXPECT_THAT(save->Durable(), IsOk());
      EXPECT_THAT(save->Durable(), IsOk());
      EXPECT_THAT(FlushSaves(), IsOk());
    });
    ExpectHolds(Path(ranks), 1);
  }
}

TEST_F(AsyncSaveTest, NeitherTheCallNorCopiedWaitsForTheDisk) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    Tensors tensors = MakeTensors(2, 1);
    std::optional<WriterGate> gate;
    if (group.rank() == 0) gate.emplace("create", 0, "*/shard-*");
    ASSERT_THAT(group.Barrier(), IsOk());
    auto save = SaveCheckpointAsync(Path(), tensors);
    ASSERT_THAT(save, IsOk());
    EXPECT_THAT(save->Copied(), IsOk());
    Change(tensors, 2);
    if (group.rank() == 0) gate->AwaitReached();
    // The program's own collectives go on.
    EXPECT_THAT(group.Barrier(), IsOk());
    if (group.rank() == 0) gate->Open();
    EXPECT_THAT(save->Durable(), IsOk());
  });
  ExpectHolds(Path(), 1);
}

TEST_F(AsyncSaveTest, SavesInWavesWhateverTheBudget) {
  // Less than any tensor but the smallest, less than the largest, and less than
  // all of them.
  for (const int64_t budget : {1, 200, 5000, 100'000, 600'000}) {
    for (const int ranks : {1, 3}) {
      RunLocalRanks(ranks, [&](ProcessGroup&) {
        Tensors tensors = MakeTensors(ranks, 1);
        for (int i = 1; i <= 3; ++i) {
          auto save = SaveCheckpointAsync(Path(), tensors, nullptr,
                                          {.staging_budget = budget});
          ASSERT_THAT(save, IsOk());
          ASSERT_THAT(save->Copied(), IsOk());
          Change(tensors, i + 1);
        }
        EXPECT_THAT(FlushSaves(), IsOk());
      });
      ExpectHolds(Path(), 3);
    }
  }
}

TEST_F(AsyncSaveTest, TensorsGoWhenTheLastWaveHasBeenCopied) {
  RunLocalRanks(1, [&](ProcessGroup&) {
    Tensors tensors;
    std::weak_ptr<Storage> elements;
    for (const char* name : {"a", "b", "c", "d"}) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          ShardedTensor tensor,
          ShardedTensor::Zeros(*SampleSpec(0, {100, 100}, 1), {100, 100}));
      elements = tensor.local_shards()[0].tensor.storage();
      tensors.emplace(name, std::move(tensor));
    }
    WriterGate gate("close", 0, "*/shard-*");
    auto save = SaveCheckpointAsync(Path(), tensors, nullptr,
                                    {.staging_budget = 50'000});
    ASSERT_THAT(save, IsOk());
    tensors.clear();
    // All were written, but the save has not ended.
    gate.AwaitReached();
    EXPECT_TRUE(elements.expired());
    gate.Open();
    EXPECT_THAT(save->Durable(), IsOk());
  });
  EXPECT_THAT(VerifyCheckpoint(Path()), IsOk());
}

TEST_F(AsyncSaveTest, TheBudgetBoundsTheMemory) {
  RunLocalRanks(1, [&](ProcessGroup&) {
    const Tensors tensors = MakeTensors(1, 1);
    constexpr int64_t kBudget = 100'000;
    const CountPassages larger("tensor/allocate",
                               {.min_bytes = kBudget + 1, .optional = true});
    ASSERT_THAT(SaveCheckpointAsync(Path(), tensors, nullptr,
                                    {.staging_budget = kBudget}),
                IsOk());
    EXPECT_THAT(FlushSaves(), IsOk());
    EXPECT_EQ(larger.count(), 0);
  });
  ExpectHolds(Path(), 1);
}

TEST_F(AsyncSaveTest, ASmallerBudgetBoundsWhatAnEarlierSaveTook) {
  RunLocalRanks(1, [&](ProcessGroup&) {
    const Tensors tensors = MakeTensors(1, 1);
    constexpr int64_t kBudget = 100'000;
    const auto save = [&](int64_t budget) {
      auto handle = SaveCheckpointAsync(Path(), tensors, nullptr,
                                        {.staging_budget = budget});
      ASSERT_THAT(handle, IsOk());
      ASSERT_THAT(handle->Durable(), IsOk());
    };
    save(0);
    // It goes, and less is taken; then that is kept.
    const CountPassages copies("tensor/allocate",
                               {.min_bytes = 4 << 10, .optional = true});
    const CountPassages larger("tensor/allocate",
                               {.min_bytes = kBudget + 1, .optional = true});
    save(kBudget);
    EXPECT_EQ(copies.count(), 1);
    save(kBudget);
    EXPECT_EQ(copies.count(), 1);
    EXPECT_EQ(larger.count(), 0);
    EXPECT_THAT(FlushSaves(), IsOk());
  });
  ExpectHolds(Path(), 1);
}

TEST_F(AsyncSaveTest, FiftySavesTakeNoMoreMemoryThanOne) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    Tensors tensors = MakeTensors(2, 0);
    const auto save = [&](int seed) {
      FillSample(tensors.at("weight"), seed);
      auto handle = SaveCheckpointAsync(Path(), tensors);
      ASSERT_THAT(handle, IsOk());
      ASSERT_THAT(handle->Copied(), IsOk());
    };
    save(0);
    ASSERT_THAT(group.Barrier(), IsOk());
    const int64_t plans = KeptPlans::Get().plans_made();
    const uint64_t calls = Calls(group);
    const CountPassages allocations(
        "tensor/allocate",
        {.rank = group.rank(), .min_bytes = 4 << 10, .optional = true});
    for (int i = 1; i <= 50; ++i) save(i);
    EXPECT_EQ(allocations.count(), 0);
    EXPECT_EQ(KeptPlans::Get().plans_made(), plans);
    EXPECT_EQ(Calls(group), calls) << "collectives of the program's group";
    EXPECT_THAT(FlushSaves(), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto loaded,
        LoadCheckpoint(Path(), {{"weight", tensors.at("weight").spec()}}));
    EXPECT_EQ(CountWrong(loaded.at("weight"), 50), 0);
  });
}

TEST_F(AsyncSaveTest, FlushFreesTheMemory) {
  const size_t before = GetHeapStatistics().live_bytes;
  RunLocalRanks(1, [&](ProcessGroup&) {
    auto spec = ChunkShardingSpec::Create(0, {"rank:0/cpu"});
    // Large enough to be counted.
    const auto tensor = ShardedTensor::Zeros(*spec, {1 << 20});
    ASSERT_THAT(tensor, IsOk());
    const size_t tensor_bytes = GetHeapStatistics().live_bytes;
    ASSERT_THAT(SaveCheckpointAsync(Path(), {{"t", *tensor}}), IsOk());
    EXPECT_GT(GetHeapStatistics().live_bytes, tensor_bytes);
    EXPECT_THAT(FlushSaves(), IsOk());
    EXPECT_EQ(GetHeapStatistics().live_bytes, tensor_bytes);
  });
  EXPECT_EQ(GetHeapStatistics().live_bytes, before);
}

TEST_F(AsyncSaveTest, RunsInTheOrderOfTheCalls) {
  std::vector<std::string> order;
  absl::Mutex mutex;
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const auto tensors = std::make_shared<const Tensors>(MakeTensors(2, 1));
    std::optional<WriterGate> gate;
    if (group.rank() == 0) gate.emplace("create", 0, "*/shard-*");
    std::vector<SaveHandle> saves;
    for (int i = 0; i < 4; ++i) {
      auto save = StartAsyncSave(
          {.path = Path(i),
           .tensors = tensors,
           .group = DefaultGroup().value()},
          {.ended = [&, i, rank = group.rank()](const absl::Status& status) {
            EXPECT_THAT(status, IsOk());
            absl::MutexLock lock(&mutex);
            if (rank == 0) order.push_back(Path(i));
          }});
      ASSERT_THAT(save, IsOk()) << "no call waits for a former save";
      saves.push_back(*save);
    }
    if (group.rank() == 0) {
      gate->AwaitReached();
      gate->Open();
    }
    for (SaveHandle& save : saves) EXPECT_THAT(save.Durable(), IsOk());
    absl::MutexLock lock(&mutex);
    if (group.rank() == 0) {
      EXPECT_THAT(order,
                  ::testing::ElementsAre(Path(0), Path(1), Path(2), Path(3)));
    }
  });
  for (int i = 0; i < 4; ++i) ExpectHolds(Path(i), 1);
}

TEST_F(AsyncSaveTest, ReplicasAreComparedAsTheyWereAtTheCall) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const auto everywhere = MeshShardingSpec::FromPlacements(
        {.shape = {2}, .placements = PlacementsOnRanks(2)},
        {MeshPlacement::Replicate()});
    ASSERT_THAT(everywhere, IsOk());
    auto tensor = ShardedTensor::Zeros(*everywhere, {1000});
    ASSERT_THAT(tensor, IsOk());
    FillSample(*tensor, 1);
    const AsyncSaveOptions options = {.save = {.check_replicas = true}};
    auto same = SaveCheckpointAsync(Path(), {{"t", *tensor}}, nullptr, options);
    ASSERT_THAT(same, IsOk());
    EXPECT_THAT(same->Copied(), IsOk());
    FillSample(*tensor, 2 + group.rank());
    EXPECT_THAT(same->Durable(), IsOk());
    auto differ =
        SaveCheckpointAsync(Path(1), {{"t", *tensor}}, nullptr, options);
    ASSERT_THAT(differ, IsOk());
    EXPECT_THAT(differ->Durable(),
                StatusIs(absl::StatusCode::kDataLoss,
                         HasSubstr("tensor \"t\": expected equal replicas")));
  });
}

TEST_F(AsyncSaveTest, TheEndOfTheGroupFinishesItsSaves) {
  for (const int ranks : {1, 3}) {
    std::vector<SaveHandle> saves(static_cast<size_t>(ranks));
    RunLocalRanks(ranks, [&](ProcessGroup& group) {
      Tensors tensors = MakeTensors(ranks, 1);
      auto save = SaveCheckpointAsync(Path(ranks), tensors);
      ASSERT_THAT(save, IsOk());
      saves[static_cast<size_t>(group.rank())] = *save;
      EXPECT_THAT(group.Destroy(), IsOk());
      ExpectHolds(Path(ranks), 1);
      EXPECT_THAT(
          SaveCheckpointAsync(Path(ranks), tensors, tensors.at("bias").group()),
          StatusIs(absl::StatusCode::kFailedPrecondition,
                   HasSubstr("destroyed")));
    });
    for (SaveHandle& save : saves) EXPECT_THAT(save.Durable(), IsOk());
  }
}

TEST_F(AsyncSaveTest, ASaveMayKeepTheLastHandleOfItsGroup) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    std::optional<WriterGate> gate;
    if (group.rank() == 0) gate.emplace("create", 0, "*/shard-*");
    auto own = group.NewGroup({0, 1});
    ASSERT_THAT(own, IsOk());
    auto spec = ChunkShardingSpec::Create(0, PlacementsOnRanks(2));
    auto tensor = ShardedTensor::Zeros(*spec, {100}, {.group = *own});
    ASSERT_THAT(tensor, IsOk());
    auto save = SaveCheckpointAsync(Path(), {{"t", *tensor}}, *own);
    ASSERT_THAT(save, IsOk());
    const std::weak_ptr<ProcessGroup> last = *own;
    tensor = ShardedTensor();
    own = std::shared_ptr<ProcessGroup>();
    EXPECT_FALSE(last.expired());
    if (group.rank() == 0) gate->Open();
    EXPECT_THAT(save->Durable(), IsOk());
    // Joins the thread that ended by itself.
    ASSERT_THAT(SaveCheckpointAsync(Path(1), MakeTensors(2, 1)), IsOk());
    EXPECT_THAT(FlushSaves(), IsOk());
    EXPECT_TRUE(last.expired());
  });
  ExpectHolds(Path(1), 1);
}

TEST_F(AsyncSaveTest, ReportsTheSameErrorsAsSaveCheckpoint) {
  RunLocalRanks(2, [&](ProcessGroup&) {
    const Tensors tensors = MakeTensors(2, 1);
    CheckpointStats expected, stats;
    ASSERT_THAT(SaveCheckpoint(Path(), tensors, nullptr, {.stats = &expected}),
                IsOk());
    auto save = SaveCheckpointAsync(Path(1), tensors, nullptr,
                                    {.save = {.stats = &stats}});
    ASSERT_THAT(save, IsOk());
    ASSERT_THAT(save->Durable(), IsOk());
    EXPECT_GT(stats.file_bytes, stats.tensor_bytes);
    EXPECT_EQ(stats.tensor_bytes, expected.tensor_bytes);
    EXPECT_EQ(stats.file_bytes, expected.file_bytes);
  });
}

TEST_F(AsyncSaveTest, SavesAStateAsItWasAtTheCall) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    // Ranks have different names, and values of their own.
    const auto make = [&](int seed) {
      ShardedTensor weight = MakeTensors(2, seed).at("weight");
      auto own = Tensor::Full({3}, static_cast<float>(seed + group.rank()));
      EXPECT_THAT(own, IsOk());
      StateDict state;
      EXPECT_THAT(state.Set("model.weight", weight), IsOk());
      EXPECT_THAT(state.Set("step", seed), IsOk());
      EXPECT_THAT(state.Set(absl::StrCat("stage", group.rank()), *own), IsOk());
      EXPECT_THAT(state.Set("rng.position", 10 * seed + group.rank()), IsOk());
      return state;
    };
    const AsyncSaveOptions options = {.save = {.per_rank = {"rng"}}};
    StateDict state = make(1);
    auto save = SaveCheckpointAsync(Path(), state, nullptr, options);
    ASSERT_THAT(save, IsOk());
    ASSERT_THAT(save->Copied(), IsOk());
    ShardedTensor weight = state.Get<ShardedTensor>("model.weight").value();
    FillSample(weight, 2);
    ASSERT_THAT(state.Set("step", 2), IsOk());
    EXPECT_THAT(save->Durable(), IsOk());
    StateDict loaded = make(3);
    ASSERT_THAT(LoadCheckpointInto(Path(), loaded), IsOk());
    EXPECT_EQ(loaded.Difference(make(1)), "");
  });
}

}  // namespace
}  // namespace sherd
