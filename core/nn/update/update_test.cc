#include "sherd/core/nn/update.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/update/update_cases.h"
#include "sherd/core/nn/value.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"
#include "sherd/testing/tensor_matchers.h"

// Updates on one to five ranks, on both paths, against updates of whole tables
// on one rank.

namespace sherd {
namespace {

using ::sherd::testing::CaseCount;
using ::sherd::testing::CheckRandomUpdate;
using ::sherd::testing::IsOk;
using ::sherd::testing::RandomSeed;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::TensorBitwiseEq;

TEST(UpdateTest, ReplicasInOneProcessStayEqual) {
  for (const SparseRule rule :
       {SparseRule::kAdagrad, SparseRule::kRowWiseAdagrad}) {
    ShardedTensorMetadata metadata;
    metadata.size = {4, 2};
    std::vector<Shard> shards;
    for (const char* const placement : {"rank:0/cpu", "rank:1/cpu"}) {
      metadata.shards.push_back(
          {.offsets = {0, 0}, .sizes = {4, 2}, .placement = placement});
      shards.push_back({Tensor::Ones({4, 2}).value(), metadata.shards.back()});
    }
    const ShardedTensor table =
        ShardedTensor::WithoutGroup(
            shards, metadata,
            EnumerableShardingSpec::CreateWithReplicas(metadata.shards).value())
            .value();
    const Tensor ids = Tensor::FromSpan<int64_t>({3, 1}, {2, 1}).value();
    for (int step = 0; step < 2; ++step) {
      ASSERT_THAT(Update({{table, {ids}}}, {Tensor::Ones({2, 2}).value()},
                         {.rule = rule, .learning_rate = 0.1}),
                  IsOk());
    }
    EXPECT_THAT(table.local_shards()[0].tensor,
                TensorBitwiseEq(table.local_shards()[1].tensor));
  }
}

std::weak_ptr<Storage> MemoryOfAccumulator(const EmbeddingTable& table) {
  return GetAccumulator(table).get_if<Tensor>()->storage();
}

TEST(UpdateTest, AnAccumulatorIsReleasedAfterItsTable) {
  const Tensor ids = Tensor::FromSpan<int64_t>({3, 1}, {2, 1}).value();
  const auto train = [&](const Tensor& table) {
    ASSERT_THAT(Update({{table, {ids}}}, {Tensor::Ones({2, 2}).value()},
                       {.rule = SparseRule::kAdagrad}),
                IsOk());
  };
  const Tensor kept = Tensor::Ones({4, 2}).value();
  train(kept);
  const std::weak_ptr<Storage> of_kept = MemoryOfAccumulator(kept);
  std::vector<std::weak_ptr<Storage>> of_gone;
  for (int i = 0; i < 10; ++i) {
    const Tensor table = Tensor::Ones({4, 2}).value();
    train(table);
    of_gone.push_back(MemoryOfAccumulator(table));
  }
  // No other table is trained.
  for (int i = 0; i < 1000; ++i) (void)GetAccumulator(kept);
  for (const std::weak_ptr<Storage>& gone : of_gone) {
    EXPECT_TRUE(gone.expired());
  }
  EXPECT_FALSE(of_kept.expired());
}

TEST(UpdateTest, ViewsOfOtherRowsHaveTheirOwnAccumulators) {
  const Tensor memory = Tensor::Ones({8, 2}).value();
  const auto& storage = memory.storage();
  const Tensor first =
      Tensor::FromStorageStrided(storage, 0, {4, 2}, {2, 1}, kFloat32).value();
  const Tensor even =
      Tensor::FromStorageStrided(storage, 0, {4, 2}, {4, 1}, kFloat32).value();
  const Tensor ids = Tensor::FromSpan<int64_t>({3, 1}, {2, 1}).value();
  ASSERT_THAT(Update({{first, {ids}}}, {Tensor::Ones({2, 2}).value()},
                     {.rule = SparseRule::kAdagrad}),
              IsOk());
  EXPECT_FALSE(GetAccumulator(first).is_none());
  EXPECT_FALSE(GetAccumulator(first.Narrow({0, 0}, {4, 2}).value()).is_none());
  EXPECT_TRUE(GetAccumulator(even).is_none());
}

TEST(UpdateTest, AnAccumulatorGoesWhereReshardMovesItsTable) {
  RunLocalRanks(2, [](ProcessGroup&) {
    const auto rows =
        ChunkShardingSpec::Create(0, PlacementsOnRanks(2)).value();
    const auto columns =
        ChunkShardingSpec::Create(1, PlacementsOnRanks(2)).value();
    const Tensor ids = Tensor::FromSpan<int64_t>({3, 1}, {2, 1}).value();
    for (const SparseRule rule :
         {SparseRule::kAdagrad, SparseRule::kRowWiseAdagrad}) {
      ShardedTensor moved = ShardedTensor::Ones(rows, {4, 2}).value();
      const ShardedTensor stays = moved.Clone().value();
      for (const auto& next : {columns, rows, rows}) {
        for (const ShardedTensor& table : {moved, stays}) {
          ASSERT_THAT(Update({{table, {ids}}}, {Tensor::Ones({2, 2}).value()},
                             {.rule = rule, .learning_rate = 0.1}),
                      IsOk());
        }
        EXPECT_THAT(moved.AllGather().value(),
                    TensorBitwiseEq(stays.AllGather()));
        ASSERT_THAT(moved.Reshard(next), IsOk());
        EXPECT_FALSE(GetAccumulator(moved).is_none());
      }
      // Copies have none, as those of a parameter.
      EXPECT_TRUE(GetAccumulator(moved.Clone().value()).is_none());
      EXPECT_TRUE(GetAccumulator(moved.Resharded(columns).value()).is_none());
    }
  });
}

// The memory of an accumulator on this rank.
std::vector<std::shared_ptr<Storage>> MemoryOf(const Value& accumulator) {
  if (const auto* const tensor = accumulator.get_if<Tensor>()) {
    return {tensor->storage()};
  }
  std::vector<std::shared_ptr<Storage>> result;
  for (const Shard& shard :
       accumulator.get_if<ShardedTensor>()->local_shards()) {
    if (shard.tensor.numel() > 0) result.push_back(shard.tensor.storage());
  }
  return result;
}

TEST(UpdateTest, AnAccumulatorThatWasMadeIsThatOfTheFirstUpdate) {
  RunLocalRanks(2, [](ProcessGroup&) {
    const Tensor ids = Tensor::FromSpan<int64_t>({3, 1}, {2, 1}).value();
    for (const SparseRule rule :
         {SparseRule::kSgd, SparseRule::kAdagrad, SparseRule::kRowWiseAdagrad})
      for (const DType dtype : {kFloat64, kFloat32, kBFloat16})
        for (const int dim : {-1, 0, 1}) {
          const auto make = [&]() -> EmbeddingTable {
            if (dim < 0) return Tensor::Ones({4, 2}, {.dtype = dtype}).value();
            return ShardedTensor::Ones(
                       ChunkShardingSpec::Create(dim, PlacementsOnRanks(2))
                           .value(),
                       {4, 2}, {.dtype = dtype})
                .value();
          };
          const EmbeddingTable table = make();
          const EmbeddingTable other = make();
          ASSERT_THAT(MakeAccumulator(table, rule), IsOk());
          const Value made = GetAccumulator(table);
          ASSERT_EQ(made.is_none(), rule == SparseRule::kSgd);
          for (const EmbeddingTable& trained : {table, other}) {
            const Tensor gradient =
                Tensor::Ones({2, 2}, {.dtype = dtype}).value();
            ASSERT_THAT(Update({{trained, {ids}}}, {gradient}, {.rule = rule}),
                        IsOk());
          }
          if (made.is_none()) continue;
          const Value used = GetAccumulator(table);
          EXPECT_EQ(MemoryOf(used), MemoryOf(made));
          EXPECT_EQ(used.ToString(), GetAccumulator(other).ToString());
          // Again it stays, and so do its values.
          ASSERT_THAT(MakeAccumulator(table, rule), IsOk());
          EXPECT_EQ(MemoryOf(GetAccumulator(table)), MemoryOf(made));
        }
  });
}

TEST(UpdateTest, AHandleThatReshardMovedAwayHasAnAccumulatorOfItsOwn) {
  RunLocalRanks(2, [](ProcessGroup&) {
    const auto rows =
        ChunkShardingSpec::Create(0, PlacementsOnRanks(2)).value();
    const auto columns =
        ChunkShardingSpec::Create(1, PlacementsOnRanks(2)).value();
    const Tensor ids = Tensor::FromSpan<int64_t>({3, 1}, {2, 1}).value();
    const auto train = [&](const ShardedTensor& table) {
      ASSERT_THAT(Update({{table, {ids}}}, {Tensor::Ones({2, 2}).value()},
                         {.rule = SparseRule::kAdagrad}),
                  IsOk());
    };
    const auto sums = [](const ShardedTensor& table) {
      return GetAccumulator(table).get_if<ShardedTensor>()->AllGather().value();
    };
    const ShardedTensor table = ShardedTensor::Ones(rows, {4, 2}).value();
    train(table);
    const Tensor before = sums(table);
    ShardedTensor moved = table;
    ASSERT_THAT(moved.Reshard(columns), IsOk());
    ASSERT_THAT(moved.Reshard(rows), IsOk());
    train(moved);
    EXPECT_THAT(sums(table), TensorBitwiseEq(before));
    EXPECT_FALSE(sums(moved).AllClose(before, 0, 0));
    train(table);
    EXPECT_THAT(sums(table), TensorBitwiseEq(sums(moved)));
    // In the same layout the elements stay those of `table`.
    ShardedTensor same = table;
    ASSERT_THAT(same.Reshard(rows), IsOk());
    train(same);
    EXPECT_THAT(sums(table), TensorBitwiseEq(sums(same)));
  });
}

TEST(UpdateTest, RandomTablesAndBagsHaveTheBitsOfTheModel) {
  const uint64_t seed = RandomSeed();
  const int64_t cases = CaseCount(1000);
  constexpr int64_t kCasesPerGroup = 50;
  for (int64_t first = 0; first < cases; first += kCasesPerGroup) {
    const int ranks = 1 + static_cast<int>((first / kCasesPerGroup) % 5);
    RunLocalRanks(ranks, [&](ProcessGroup& group) {
      for (int64_t i = first; i < std::min(first + kCasesPerGroup, cases);
           ++i) {
        CheckRandomUpdate(group, seed + static_cast<uint64_t>(i));
        if (HasFailure()) return;
      }
    });
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace sherd
