#include "sherd/core/nn/lookup.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/counters.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/lookup/lookup_cases.h"
#include "sherd/core/nn/lookup/lookup_model.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_op_registry.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"
#include "sherd/testing/tensor_matchers.h"

// Lookups on one to five ranks, by reading peers' memory and by messages,
// against lookups in whole tables on one rank.

namespace sherd {
namespace {

using ::sherd::testing::CaseCount;
using ::sherd::testing::CheckRandomLookUp;
using ::sherd::testing::CheckReferenceLookUps;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::ModelLookUp;
using ::sherd::testing::ModelRenormalize;
using ::sherd::testing::RandomSeed;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::ShardsOf;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::testing::ElementsAre;

TEST(LookUpTest, RandomTablesAndBagsEqualTheModel) {
  const uint64_t seed = RandomSeed();
  const int64_t cases = CaseCount(2000);
  constexpr int64_t kCasesPerGroup = 50;
  for (int64_t first = 0; first < cases; first += kCasesPerGroup) {
    const int ranks = 1 + static_cast<int>((first / kCasesPerGroup) % 5);
    RunLocalRanks(ranks, [&](ProcessGroup& group) {
      for (int64_t i = first; i < std::min(first + kCasesPerGroup, cases);
           ++i) {
        CheckRandomLookUp(group, seed + static_cast<uint64_t>(i),
                          /*reachable=*/true);
        if (::testing::Test::HasFailure()) return;
      }
    });
    if (HasFailure()) return;
  }
}

constexpr BagMode kMax = BagMode::kMax;
constexpr BagMode kNone = BagMode::kNone;

Tensor Weights(int64_t rows, int64_t columns, DType dtype = kFloat32) {
  std::mt19937_64 random(5);
  Tensor tensor = Tensor::Empty({rows, columns}).value();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    tensor.mutable_data_as<float>()[i] =
        std::normal_distribution<float>()(random);
  }
  return tensor.To(dtype).value();
}

TEST(LookUpTest, EveryCaseOfTheReferenceInThreeOrdersOfRanks) {
  RunLocalRanks(4, [](ProcessGroup& group) {
    CheckReferenceLookUps(group, /*reachable=*/true);
  });
}

TEST(LookUpTest, ATableMayBeAViewAndOccurSeveralTimes) {
  RunLocalRanks(3, [&](ProcessGroup& group) {
    const Tensor whole = Weights(20, 9);
    const ShardedTensor table = ShardsOf(
        whole, ChunkShardingSpec::Create(0, PlacementsOnRanks(3)).value());
    const ShardedTensor part = table.Narrow({5, 2}, {11, 4}).value();
    const Tensor whole_part =
        whole.Narrow({5, 2}, {11, 4})->Contiguous().value();
    const int64_t r = group.rank();
    const Bags bags = {
        Tensor::FromSpan<int64_t>({r, 10, 7, r, r, 3}, {2, 3}).value()};
    for (const bool direct : {true, false}) {
      const auto y = LookUp({{part, bags, {.mode = kMax}},
                             {table, bags, {.mode = kMax}},
                             {part, bags, {.mode = kNone}}},
                            {.direct = direct});
      ASSERT_THAT(y, IsOk());
      EXPECT_THAT(
          *y,
          ElementsAre(
              TensorBitwiseEq(ModelLookUp(whole_part, bags, {.mode = kMax})),
              TensorBitwiseEq(ModelLookUp(whole, bags, {.mode = kMax})),
              TensorBitwiseEq(ModelLookUp(whole_part, bags, {.mode = kNone}))));
    }
  });
}

TEST(LookUpTest, MessagesHaveTheIdsAndRowsThatAreNeededAndLittleElse) {
  constexpr int64_t kRows = 4000;
  constexpr int64_t kColumns = 32;
  RunLocalRanks(4, [&](ProcessGroup& group) {
    const ShardedTensor table =
        ShardsOf(Weights(kRows, kColumns),
                 ChunkShardingSpec::Create(0, PlacementsOnRanks(4)).value());
    std::vector<int64_t> ids(kRows);
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int64_t>(i * 7 + 1) % kRows;
    }
    for (const BagMode mode : {kNone, BagMode::kSum}) {
      SCOPED_TRACE(Name(mode));
      const int64_t per_bag = mode == kNone ? 1 : 10;
      // Of other ranks: ids, and pairs of a bag and an owner of its rows.
      int64_t ids_there = 0;
      std::set<std::pair<int64_t, int64_t>> parts;
      for (int64_t i = 0; i < kRows; ++i) {
        const int64_t owner = ids[static_cast<size_t>(i)] / (kRows / 4);
        if (owner == group.rank()) continue;
        ++ids_there;
        parts.emplace(i / per_bag, owner);
      }
      const auto count = static_cast<int64_t>(parts.size());
      const int64_t id_bytes = 4 * ids_there + (mode == kNone ? 0 : 4 * count);
      const int64_t row_bytes = 4 * kColumns * count;
      const Dims size =
          mode == kNone ? Dims{kRows} : Dims{kRows / per_bag, per_bag};
      const Bags bags = {
          Tensor::FromSpan(absl::MakeConstSpan(ids), size).value()};
      LookUpStats stats;
      ASSERT_THAT(LookUp({{table, bags, {.mode = mode}}},
                         {.direct = false, .stats = &stats}),
                  IsOk());
      EXPECT_FALSE(stats.direct);
      EXPECT_GE(stats.id_bytes_sent, id_bytes);
      EXPECT_LE(stats.id_bytes_sent, id_bytes * 21 / 20);
      EXPECT_GE(stats.row_bytes_received, row_bytes);
      EXPECT_LE(stats.row_bytes_received, row_bytes * 21 / 20);
    }
  });
}

TEST(LookUpTest, ATableWithoutAGroupIsEachRanksOwn) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    Tensor whole = Weights(8, 4);
    const auto rows =
        ChunkShardingSpec::Create(0, PlacementsOnRanks(2)).value();
    const ShardedTensor shared = ShardsOf(whole, rows);
    std::vector<Shard> all;
    for (const int64_t begin : {0, 4}) {
      all.push_back({whole.Narrow(0, begin, 4)->Clone().value(),
                     shared.metadata().shards[begin == 0 ? 0 : 1]});
    }
    const ShardedTensor own =
        ShardedTensor::WithoutGroup(all, shared.metadata()).value();
    const Bags bags = {
        Tensor::FromSpan<int64_t>({group.rank(), 7}, {2, 1}).value()};
    const BagOptions options = {.max_norm = 0.5};
    ModelRenormalize(whole, absl::MakeConstSpan(&bags, 1), options);
    for (const bool direct : {true, false}) {
      const auto y =
          LookUp({{own, bags, options}, {shared, bags}}, {.direct = direct});
      ASSERT_THAT(y, IsOk());
      EXPECT_THAT((*y)[0], TensorBitwiseEq(ModelLookUp(whole, bags, options)));
    }
    EXPECT_THAT(LookUp({{own, bags, options}}), IsOk());
    // A Tensor, which has other rows on another rank.
    const Tensor plain = Weights(9 + group.rank(), 4);
    const auto y = LookUp({{plain, bags}, {shared, bags}});
    ASSERT_THAT(y, IsOk());
    EXPECT_THAT((*y)[0], TensorBitwiseEq(ModelLookUp(plain, bags, {})));
    all.pop_back();
    const ShardedTensor half =
        ShardedTensor::WithoutGroup(all, shared.metadata()).value();
    EXPECT_THAT(LookUp({{half, bags}}).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "its shard 1 is not in this process"));
  });
}

TEST(LookUpTest, ATableThatMovedIsReadWhereItIsNow) {
  RunLocalRanks(4, [&](ProcessGroup& group) {
    const Tensor whole = Weights(40, 8);
    const auto rows =
        ChunkShardingSpec::Create(0, PlacementsOnRanks(4)).value();
    const auto columns =
        ChunkShardingSpec::Create(1, PlacementsOnRanks(4)).value();
    ShardedTensor table = ShardsOf(whole, rows);
    const Bags bags = {
        Tensor::FromSpan<int64_t>({group.rank(), 39, 0, 17}, {4}).value()};
    for (int i = 0; i < 30; ++i) {
      const auto y = LookUp({{table, bags, {.mode = kNone}}});
      ASSERT_THAT(y, IsOk());
      EXPECT_THAT((*y)[0],
                  TensorBitwiseEq(ModelLookUp(whole, bags, {.mode = kNone})));
      // Memory of before is freed, and used again.
      ASSERT_THAT(table.Reshard(i % 2 == 0 ? columns : rows), IsOk());
    }
  });
}

TEST(LookUpTest, TablesInTheSameMemoryMayDifferInTheirStrides) {
  RunLocalRanks(1, [&](ProcessGroup&) {
    const Tensor memory = Weights(4, 8);
    const auto rows =
        ChunkShardingSpec::Create(0, PlacementsOnRanks(1)).value();
    const ShardedTensorMetadata metadata =
        ShardedTensor::Empty(rows, {4, 4}).value().metadata();
    const Bags bags = {Tensor::FromSpan<int64_t>({3, 1}, {2}).value()};
    for (const Tensor& part :
         {memory.Narrow(1, 0, 4).value(),
          Tensor::FromStorage(memory.storage(), 0, {4, 4}, kFloat32).value()}) {
      const ShardedTensor table =
          ShardedTensor::WithoutGroup({{part, metadata.shards[0]}}, metadata)
              .value();
      const auto y = LookUp({{table, bags, {.mode = kNone}}});
      ASSERT_THAT(y, IsOk());
      EXPECT_THAT((*y)[0],
                  TensorBitwiseEq(ModelLookUp(part.Contiguous().value(), bags,
                                              {.mode = kNone})));
    }
  });
}

TEST(LookUpTest, RanksThatMixUpEqualTablesReadTheirOwn) {
  // Each rank has plans for both; those of one pair do not belong together.
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const auto rows =
        ChunkShardingSpec::Create(0, PlacementsOnRanks(2)).value();
    const ShardedTensor ones = ShardedTensor::Ones(rows, {4, 2}).value();
    const ShardedTensor twos = ShardedTensor::Full(rows, {4, 2}, 2).value();
    const Bags bags = {Tensor::FromSpan<int64_t>({0, 3}, {2}).value()};
    const auto call = [&](const ShardedTensor& table) {
      const Tensor y = LookUp({{table, bags, {.mode = kNone}}}).value()[0];
      return std::pair(y.data_as<float>()[0], y.data_as<float>()[2]);
    };
    EXPECT_EQ(call(ones), std::pair(1.0f, 1.0f));
    EXPECT_EQ(call(twos), std::pair(2.0f, 2.0f));
    EXPECT_EQ(call(group.rank() == 0 ? ones : twos), std::pair(1.0f, 2.0f));
    EXPECT_EQ(call(ones), std::pair(1.0f, 1.0f));
  });
}

TEST(LookUpTest, ARankWithoutShardsTellsEqualTablesApart) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const auto first =
        ChunkShardingSpec::Create(0, {Placement::OnRank(0)}).value();
    const std::vector<ShardedTensor> tables = {
        ShardedTensor::Ones(first, {4, 2}).value(),
        ShardedTensor::Full(first, {4, 2}, 2).value()};
    const Bags bags = {Tensor::FromSpan<int64_t>({0, 3}, {2}).value()};
    for (int call = 0; call < 6; ++call) {
      const uint64_t before = group.counters().Total().calls;
      const auto y =
          LookUp({{tables[call % 2 == 0 ? 0 : 1], bags, {.mode = kNone}}});
      ASSERT_THAT(y, IsOk());
      EXPECT_EQ((*y)[0].data_as<float>()[3], call % 2 + 1);
      // Addresses are exchanged once for each.
      if (call >= 2) {
        EXPECT_EQ(group.counters().Total().calls - before, 2u) << call;
      }
    }
  });
}

TEST(LookUpTest, FillsOutputsThatAreGiven) {
  RunLocalRanks(2, [&](ProcessGroup&) {
    const Tensor whole = Weights(6, 5);
    const ShardedTensor table = ShardsOf(
        whole, ChunkShardingSpec::Create(0, PlacementsOnRanks(2)).value());
    const Bags bags = {Tensor::FromSpan<int32_t>({5, 0}, {1, 2}).value()};
    std::vector<Tensor> outputs(2);
    outputs[0] = Tensor::Zeros({1, 5}).value();
    const void* const memory = outputs[0].data();
    ASSERT_THAT(
        LookUpInto({{table, bags}, {whole, bags}}, absl::MakeSpan(outputs)),
        IsOk());
    EXPECT_EQ(outputs[0].data(), memory);
    const Tensor expected = ModelLookUp(whole, bags, {});
    EXPECT_THAT(outputs, ElementsAre(TensorBitwiseEq(expected),
                                     TensorBitwiseEq(expected)));
    EXPECT_THAT(LookUp({}), IsOkAndHolds(ElementsAre()));
  });
}

// A spec of a user, whose lookups return the number of ids.
class CountingSpec : public ChunkShardingSpec {
 public:
  explicit CountingSpec(const ChunkShardingSpec& chunks)
      : ChunkShardingSpec(chunks) {}
};

TEST(LookUpTest, ASpecBringsItsOwnLookup) {
  RegisterShardedOp<LookUpOp, CountingSpec>(
      [](const CountingSpec&, const ShardedTensor&, const Bags& bags,
         const BagOptions&) -> absl::StatusOr<Tensor> {
        return Tensor::Scalar(bags.ids.numel());
      });
  RunLocalRanks(2, [&](ProcessGroup&) {
    const Tensor whole = Weights(6, 5);
    const auto rows =
        ChunkShardingSpec::Create(0, PlacementsOnRanks(2)).value();
    const ShardedTensor own =
        ShardsOf(whole, std::make_shared<const CountingSpec>(*rows));
    const Bags bags = {Tensor::FromSpan<int32_t>({5, 0}, {1, 2}).value()};
    const auto y = LookUp({{own, bags}, {ShardsOf(whole, rows), bags}});
    ASSERT_THAT(y, IsOk());
    EXPECT_EQ((*y)[0].data_as<int64_t>()[0], 2);
    EXPECT_THAT((*y)[1], TensorBitwiseEq(ModelLookUp(whole, bags, {})));
  });
  EXPECT_TRUE((UnregisterShardedOp<LookUpOp, CountingSpec>()));
}

}  // namespace
}  // namespace sherd
