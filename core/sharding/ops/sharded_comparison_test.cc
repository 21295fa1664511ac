#include "sherd/core/sharding/sharded_comparison.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharded_tensor_like.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kState = absl::StatusCode::kFailedPrecondition;

constexpr EqualOptions kAnyLayout = {.layouts = CompareLayouts::kNotAtAll};

ShardingSpecPtr Chunks(int dim, int ranks) {
  return ChunkShardingSpec::Create(dim, PlacementsOnRanks(ranks)).value();
}

// The same numbers in every layout.
ShardedTensor Numbers(const ShardingSpecPtr& spec, const Dims& size = {7, 5},
                      const ShardedTensorOptions& options = {}) {
  Generator generator(5);
  return ShardedTensor::Rand(
             spec, size, options,
             {.stream = RandomStream::kGlobal, .generator = &generator})
      .value();
}

// Changes one element, which is on one rank or on those that have replicas.
void Disturb(const ShardedTensor& tensor, int rank, double by) {
  if (tensor.rank() != rank || tensor.local_shards().empty()) return;
  Tensor shard = tensor.local_shards().back().tensor;
  if (shard.numel() == 0) return;
  shard.mutable_data_as<float>()[shard.numel() - 1] += static_cast<float>(by);
}

TEST(ShardedComparisonTest, EveryRankGetsTheSameAnswer) {
  for (const int ranks : {1, 2, 3, 4, 5}) {
    RunLocalRanks(ranks, [&](ProcessGroup&) {
      for (const int dim : {0, 1}) {
        const ShardedTensor a = Numbers(Chunks(dim, ranks));
        const ShardedTensor b = Numbers(Chunks(dim, ranks));
        EXPECT_THAT(Equal(a, b), IsOkAndHolds(true));
        EXPECT_THAT(Equal(a, a), IsOkAndHolds(true));
        EXPECT_THAT(AllClose(a, b), IsOkAndHolds(true));
        for (int rank = 0; rank < ranks; ++rank) {
          const ShardedTensor c = Numbers(Chunks(dim, ranks));
          const auto& box =
              c.metadata().shards[static_cast<size_t>(rank)].sizes;
          const bool is_empty = box[0] * box[1] == 0;
          Disturb(c, rank, 1e-3);
          EXPECT_THAT(Equal(a, c), IsOkAndHolds(is_empty));
          EXPECT_THAT(AllClose(a, c), IsOkAndHolds(is_empty));
          EXPECT_THAT(AllClose(a, c, {.atol = 1e-2}), IsOkAndHolds(true));
          EXPECT_THAT(AllClose(a, c, {.rtol = 0, .atol = 0}),
                      IsOkAndHolds(is_empty));
        }
      }
    });
  }
}

TEST(ShardedComparisonTest, ComparesMetadataByDefault) {
  RunLocalRanks(3, [](ProcessGroup&) {
    const ShardedTensor a = Numbers(Chunks(0, 3));
    const ShardingSpecPtr replicas =
        MeshShardingSpec::FromPlacements(
            {.shape = {3}, .placements = PlacementsOnRanks(3)},
            {MeshPlacement::Replicate()})
            .value();
    const struct {
      const char* what;
      ShardedTensor b;
      bool same_elements;
    } cases[] = {
        {"another dim", Numbers(Chunks(1, 3)), true},
        {"other ranks",
         Numbers(ChunkShardingSpec::Create(0, PlacementsOn({2, 0, 1})).value()),
         true},
        {"replicas", Numbers(replicas), true},
        {"one rank", Numbers(ChunkShardingSpec::Create(0, {"rank:2"}).value()),
         true},
        {"another size", Numbers(Chunks(0, 3), {7, 6}), false},
        {"another dtype", Numbers(Chunks(0, 3), {7, 5}, {.dtype = kFloat64}),
         false},
        {"requires_grad",
         Numbers(Chunks(0, 3), {7, 5}, {.requires_grad = true}), true},
    };
    for (const auto& c : cases) {
      EXPECT_THAT(Equal(a, c.b), IsOkAndHolds(false)) << c.what;
      EXPECT_THAT(AllClose(a, c.b), IsOkAndHolds(false)) << c.what;
      EXPECT_THAT(Equal(a, c.b, kAnyLayout), IsOkAndHolds(c.same_elements))
          << c.what;
      EXPECT_THAT(Equal(c.b, a, kAnyLayout), IsOkAndHolds(c.same_elements))
          << c.what;
      EXPECT_THAT(AllClose(a, c.b, {.layouts = CompareLayouts::kNotAtAll}),
                  IsOkAndHolds(c.same_elements))
          << c.what;
      // If replicas differ, any of them may be read.
      if (!c.same_elements || c.b.spec() == replicas) continue;
      Disturb(c.b, 2, 0.5);
      EXPECT_THAT(Equal(a, c.b, kAnyLayout), IsOkAndHolds(false)) << c.what;
    }
    EXPECT_THAT(Equal(a, Numbers(Chunks(-2, 3))), IsOkAndHolds(true));
  });
}

TEST(ShardedComparisonTest, ReadsAllReplicas) {
  RunLocalRanks(2, [](ProcessGroup&) {
    const ShardingSpecPtr replicas =
        MeshShardingSpec::FromPlacements(
            {.shape = {2}, .placements = PlacementsOnRanks(2)},
            {MeshPlacement::Replicate()})
            .value();
    const ShardedTensor a = Numbers(replicas);
    const ShardedTensor b = Numbers(replicas);
    EXPECT_THAT(Equal(a, b), IsOkAndHolds(true));
    Disturb(b, 1, 1);
    EXPECT_THAT(Equal(a, b), IsOkAndHolds(false));
  });
}

TEST(ShardedComparisonTest, HasTheRulesOfTensorsForNan) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor nan,
        ShardedTensor::Full(Chunks(0, 2), {4},
                            std::numeric_limits<double>::quiet_NaN()));
    EXPECT_THAT(Equal(nan, nan), IsOkAndHolds(false));
    EXPECT_THAT(AllClose(nan, nan), IsOkAndHolds(false));
    EXPECT_THAT(AllClose(nan, nan, {.equal_nan = true}), IsOkAndHolds(true));
  });
}

TEST(ShardedComparisonTest, AnErrorOnOneRankIsTheSameErrorOnAll) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    const std::vector<int> all = {0, 1, 2};
    SHERD_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ProcessGroup> other,
                               group.NewGroup(all));
    const bool here = group.rank() == 1;
    const ShardedTensor a = Numbers(Chunks(0, 3));
    const ShardedTensor elsewhere =
        Numbers(Chunks(0, 3), {7, 5}, {.group = other});
    const ShardedTensor missing;
    const ShardedTensor smaller = Numbers(Chunks(0, 3), {5, 4});
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor meta,
        ShardedTensor::Empty(
            ChunkShardingSpec::Create(
                0, {"rank:0/meta", "rank:1/meta", "rank:2/meta"})
                .value(),
            {7, 5}));
    EXPECT_THAT(Equal(a, here ? elsewhere : a),
                StatusIs(kState,
                         "All distributed tensors should use the same "
                         "ProcessGroup"));
    EXPECT_THAT(Equal(a, here ? missing : a), StatusIs(kState, "not created"));
    EXPECT_THAT(Equal(here ? missing : a, a), StatusIs(kState, "not created"));
    EXPECT_THAT(Equal(a, here ? smaller : a),
                StatusIs(kInvalid, "rank 1 was called with other arguments"));
    EXPECT_THAT(Equal(a, a, here ? kAnyLayout : EqualOptions()),
                StatusIs(kInvalid, "rank 1 was called with other arguments"));
    EXPECT_THAT(AllClose(a, a, {.atol = here ? 1e-3 : 1e-4}),
                StatusIs(kInvalid, "rank 1 was called with other arguments"));
    EXPECT_THAT(AllClose(a, a, {.rtol = here ? -1 : 0.5}),
                StatusIs(kInvalid, "rank 1: rtol is -1"));
    EXPECT_THAT(
        AllClose(a, a, {.atol = std::numeric_limits<double>::quiet_NaN()}),
        StatusIs(kInvalid, "atol is nan"));
    EXPECT_THAT(Equal(meta, meta), StatusIs(kState, "host memory"));
    // The group is as usable as before.
    EXPECT_THAT(Equal(a, a), IsOkAndHolds(true));
  });
}

TEST(ShardedComparisonTest, KeepsToTheRanksOfASubgroup) {
  RunLocalRanks(4, [](ProcessGroup& group) {
    const std::vector<int> some = {1, 3};
    SHERD_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ProcessGroup> pair,
                               group.NewGroup(some));
    const ShardingSpecPtr spec =
        ChunkShardingSpec::Create(0, PlacementsOn({3, 1})).value();
    const ShardedTensor a = Numbers(spec, {7, 5}, {.group = pair});
    const ShardedTensor b = Numbers(spec, {7, 5}, {.group = pair});
    if (pair->rank() == 0) Disturb(b, 0, 1);
    // A rank that holds no part of the tensors returns true.
    EXPECT_THAT(Equal(a, b), IsOkAndHolds(!pair->is_member()));
    EXPECT_THAT(Equal(a, a), IsOkAndHolds(true));
  });
}

TEST(ShardedComparisonTest, NeedsNoGroup) {
  const ShardedTensorMetadata metadata = {
      .shards = {{{0, 0}, {2, 3}, Placement("rank:0/cpu")},
                 {{2, 0}, {2, 3}, Placement("rank:1/cpu")}},
      .size = {4, 3},
      .properties = {}};
  const auto make = [&](double second) {
    return ShardedTensor::WithoutGroup(
               {{Tensor::Full({2, 3}, 1.0).value(), metadata.shards[0]},
                {Tensor::Full({2, 3}, second).value(), metadata.shards[1]}},
               metadata)
        .value();
  };
  EXPECT_THAT(Equal(make(2), make(2)), IsOkAndHolds(true));
  EXPECT_THAT(Equal(make(2), make(2.5)), IsOkAndHolds(false));
  EXPECT_THAT(AllClose(make(2), make(2.5), {.rtol = 0.5}), IsOkAndHolds(true));
  EXPECT_THAT(Equal(make(2), ShardedTensor()), StatusIs(kState, "not created"));
}

}  // namespace
}  // namespace sherd
