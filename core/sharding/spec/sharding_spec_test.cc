#include "sherd/core/sharding/sharding_spec.h"

#include <concepts>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

// A dimension is a whole number, and a size a list of them: what the reference
// rejects when it runs does not compile here.
template <typename Dim>
concept IsDim = requires(Dim dim) {
  ChunkShardingSpec::Create(dim, std::vector<Placement>());
};
static_assert(IsDim<int>);
static_assert(!IsDim<const char*>);
static_assert(!IsDim<std::string>);
static_assert(!IsDim<double>);
static_assert(!IsDim<std::nullptr_t>);
template <typename Size>
concept IsSize = requires(const ShardingSpec& spec, Size size) {
  spec.BuildMetadata(size, TensorProperties());
};
static_assert(IsSize<std::vector<int64_t>>);
static_assert(!IsSize<const char*>);
static_assert(!IsSize<std::vector<std::string>>);
static_assert(!IsSize<std::vector<double>>);
// Specs are immutable.
static_assert(!std::assignable_from<ChunkShardingSpec&, ChunkShardingSpec>);

ShardingSpecPtr Chunks(int dim, int ranks) {
  return ChunkShardingSpec::Create(dim, PlacementsOnRanks(ranks)).value();
}

// Sizes and offsets in the only dimension.
struct Cut {
  std::vector<int64_t> sizes;
  std::vector<int64_t> offsets;
};

Cut CutOf(int64_t size, int chunks) {
  Cut cut;
  const ShardedTensorMetadata metadata =
      Chunks(0, chunks)->BuildMetadata({size}, {}).value();
  for (const ShardMetadata& shard : metadata.shards) {
    cut.sizes.push_back(shard.sizes[0]);
    cut.offsets.push_back(shard.offsets[0]);
  }
  return cut;
}

TEST(ChunkShardingSpecTest, CutsByTheTableForFourRanks) {
  const std::pair<int64_t, std::vector<int64_t>> table[] = {
      {0, {0, 0, 0, 0}},  {1, {1, 0, 0, 0}},  {2, {1, 1, 0, 0}},
      {5, {2, 2, 1, 0}},  {9, {3, 3, 3, 0}},  {10, {3, 3, 3, 1}},
      {11, {3, 3, 3, 2}}, {12, {3, 3, 3, 3}}, {13, {4, 4, 4, 1}},
      {14, {4, 4, 4, 2}}, {15, {4, 4, 4, 3}}, {17, {5, 5, 5, 2}},
      {19, {5, 5, 5, 4}}, {21, {6, 6, 6, 3}}, {23, {6, 6, 6, 5}},
      {26, {7, 7, 7, 5}}, {28, {7, 7, 7, 7}}, {29, {8, 8, 8, 5}},
  };
  for (const auto& [size, sizes] : table) {
    SCOPED_TRACE(size);
    const Cut cut = CutOf(size, 4);
    EXPECT_EQ(cut.sizes, sizes);
    const int64_t split = (size + 3) / 4;
    EXPECT_THAT(cut.offsets, ElementsAre(0, split, 2 * split, 3 * split));
  }
}

TEST(ChunkShardingSpecTest, CutsByTheTableForOtherNumbersOfRanks) {
  EXPECT_THAT(CutOf(10, 2).sizes, ElementsAre(5, 5));
  EXPECT_THAT(CutOf(10, 5).sizes, ElementsAre(2, 2, 2, 2, 2));
  EXPECT_THAT(CutOf(16, 8).sizes, ElementsAre(2, 2, 2, 2, 2, 2, 2, 2));
  EXPECT_THAT(CutOf(24, 10).sizes, ElementsAre(3, 3, 3, 3, 3, 3, 3, 3, 0, 0));
  EXPECT_THAT(CutOf(24, 10).offsets,
              ElementsAre(0, 3, 6, 9, 12, 15, 18, 21, 24, 27));
  EXPECT_THAT(CutOf(11, 1).sizes, ElementsAre(11));
  EXPECT_THAT(CutOf(11, 11).sizes, ::testing::Each(1));
  EXPECT_THAT(CutOf(5, 2).sizes, ElementsAre(3, 2));
}

TEST(ChunkShardingSpecTest, LengthOfAChunkIsCeilWithoutOverflow) {
  EXPECT_EQ(ChunkLength(11, 4), 3);
  EXPECT_EQ(ChunkLength(12, 4), 3);
  EXPECT_EQ(ChunkLength(13, 4), 4);
  EXPECT_EQ(ChunkLength(5, 4), 2);
  EXPECT_EQ(ChunkLength(11, 1), 11);
  EXPECT_EQ(ChunkLength(11, 11), 1);
  EXPECT_EQ(ChunkLength(0, 4), 0);
  EXPECT_EQ(ChunkLength(INT64_MAX, 2), int64_t{1} << 62);
}

TEST(ChunkShardingSpecTest, OffsetsOfEmptyChunksAreNotCutOff) {
  EXPECT_THAT(CutOf(2, 4).offsets, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(CutOf(5, 4).offsets, ElementsAre(0, 2, 4, 6));
}

TEST(ChunkShardingSpecTest, DescribesEveryPlacementInItsOrder) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto spec,
      ChunkShardingSpec::Create(
          -1, {"rank:3/cpu", "rank:1/cuda:1", "rank:3/cpu", "trainer/cpu"}));
  TensorProperties properties;
  properties.dtype = kInt16;
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensorMetadata metadata,
                             spec->BuildMetadata({2, 5}, properties));
  EXPECT_THAT(
      metadata.shards,
      ElementsAre(ShardMetadata{{0, 0}, {2, 2}, Placement("rank:3/cpu")},
                  ShardMetadata{{0, 2}, {2, 2}, Placement("rank:1/cuda:1")},
                  ShardMetadata{{0, 4}, {2, 1}, Placement("rank:3/cpu")},
                  ShardMetadata{{0, 6}, {2, 0}, Placement("trainer/cpu")}));
  EXPECT_THAT(metadata.size, ElementsAre(2, 5));
  EXPECT_EQ(metadata.properties, properties);
}

TEST(ChunkShardingSpecTest, RefusesDimsOutsideTheTensor) {
  for (const int dim : {2, 3, -3, 100, INT32_MIN, INT32_MAX}) {
    EXPECT_THAT(Chunks(dim, 4)->BuildMetadata({4, 4}, {}),
                StatusIs(kInvalid, "Invalid sharding dim"));
  }
  for (const int dim : {0, 1, -1, -2}) {
    EXPECT_THAT(Chunks(dim, 4)->BuildMetadata({4, 4}, {}), IsOk());
  }
  EXPECT_THAT(Chunks(0, 1)->BuildMetadata({}, {}),
              StatusIs(kInvalid, "Invalid sharding dim"));
}

TEST(ChunkShardingSpecTest, RefusesSizesThatAreNone) {
  EXPECT_THAT(Chunks(0, 2)->BuildMetadata({-1}, {}), StatusIs(kInvalid));
  EXPECT_THAT(Chunks(0, 2)->BuildMetadata({int64_t{1} << 40, 1 << 30}, {}),
              StatusIs(kInvalid));
}

TEST(ChunkShardingSpecTest, CutsTheLargestSizeThereIs) {
  const Cut cut = CutOf(INT64_MAX, 4);
  constexpr int64_t kQuarter = int64_t{1} << 61;
  EXPECT_THAT(cut.sizes,
              ElementsAre(kQuarter, kQuarter, kQuarter, kQuarter - 1));
  EXPECT_THAT(cut.offsets,
              ElementsAre(0, kQuarter, 2 * kQuarter, 3 * kQuarter));
}

TEST(ChunkShardingSpecTest, RefusesNoOrMalformedPlacements) {
  EXPECT_THAT(ChunkShardingSpec::Create(0, std::vector<Placement>()),
              StatusIs(kInvalid, "at least one placement"));
  EXPECT_THAT(ChunkShardingSpec::Create(0, {"rank:0", "rank:a"}),
              StatusIs(kInvalid, "Could not parse remote_device"));
  EXPECT_THAT(
      ChunkShardingSpec::Create(0, {"rank:0", "rank:1/cpu2"}),
      StatusIs(absl::StatusCode::kFailedPrecondition, "Invalid device string"));
  EXPECT_THAT(ChunkShardingSpec::Create(
                  0, std::vector<std::string>({"rank:0", "rank:a"})),
              StatusIs(kInvalid, "Could not parse remote_device"));
}

TEST(ShardingSpecTest, EqualityIsOfClassAndParameters) {
  const ShardingSpecPtr chunks = Chunks(0, 2);
  EXPECT_EQ(*chunks, *Chunks(0, 2));
  EXPECT_FALSE(*chunks == *Chunks(1, 2));
  EXPECT_FALSE(*Chunks(1, 2) == *Chunks(-1, 2));
  EXPECT_FALSE(*chunks == *Chunks(0, 3));
  EXPECT_EQ(*chunks, *ChunkShardingSpec::Create(
                          0, std::vector<std::string>{"rank:0", "rank:1"})
                          .value());
  const ShardedTensorMetadata metadata = chunks->BuildMetadata({4}, {}).value();
  const ShardingSpecPtr boxes =
      EnumerableShardingSpec::Create(metadata.shards).value();
  EXPECT_FALSE(*chunks == *boxes);
  EXPECT_FALSE(*boxes == *chunks);
  EXPECT_EQ(*boxes, *EnumerableShardingSpec::Create(metadata.shards).value());
}

TEST(ShardingSpecTest, PrintsItsParameters) {
  EXPECT_EQ(Chunks(1, 2)->ToString(),
            "ChunkShardingSpec(dim=1, placements=[rank:0/cpu, rank:1/cpu])");
  const ShardMetadata shard = {{0}, {2}, Placement("rank:0")};
  EXPECT_EQ(EnumerableShardingSpec::Create({shard}).value()->ToString(),
            "EnumerableShardingSpec(shards=[" + shard.ToString() + "])");
}

TEST(EnumerableShardingSpecTest, GivesBackItsShards) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto spec,
      EnumerableShardingSpec::Create({
          {.offsets = {0, 0}, .sizes = {5, 4}, .placement = "rank:1/cpu"},
          {.offsets = {0, 4}, .sizes = {5, 6}, .placement = "rank:0/cpu"},
          {.offsets = {9, 9}, .sizes = {0, 6}, .placement = "rank:0/cpu"},
      }));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensorMetadata metadata,
                             spec->BuildMetadata({5, 10}, {}));
  EXPECT_THAT(metadata.shards, ElementsAreArray(spec->shards()));
  EXPECT_THAT(metadata.size, ElementsAre(5, 10));
}

TEST(EnumerableShardingSpecTest, HoldsAScalarInOneShard) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto spec,
      EnumerableShardingSpec::Create({{.placement = "rank:2/cpu"}}));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensorMetadata metadata,
                             spec->BuildMetadata({}, {}));
  EXPECT_EQ(metadata.shards.size(), 1u);
  EXPECT_THAT(EnumerableShardingSpec::Create(
                  {{.placement = "rank:0"}, {.placement = "rank:1"}}),
              StatusIs(kInvalid, "overlap"));
}

TEST(EnumerableShardingSpecTest, RefusesArgumentsThatDoNotFit) {
  EXPECT_THAT(EnumerableShardingSpec::Create({}),
              StatusIs(kInvalid, "Empty shard list provided"));
  EXPECT_THAT(
      EnumerableShardingSpec::Create({{.offsets = {0}, .sizes = {1}},
                                      {.offsets = {1, 0}, .sizes = {1, 1}}}),
      StatusIs(kInvalid, "Found inconsistent ranks for shards"));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto spec,
      EnumerableShardingSpec::Create({{.offsets = {0, 0}, .sizes = {5, 5}},
                                      {.offsets = {5, 0}, .sizes = {5, 5}}}));
  EXPECT_THAT(spec->BuildMetadata({10, 5}, {}), IsOk());
  EXPECT_THAT(spec->BuildMetadata({10, 10}, {}),
              StatusIs(kInvalid, "does not match tensor volume"));
  EXPECT_THAT(spec->BuildMetadata({9, 5}, {}),
              StatusIs(kInvalid, "exceeds tensor dim"));
  EXPECT_THAT(spec->BuildMetadata({10}, {}),
              StatusIs(kInvalid, "Rank of tensor is 1, but shards rank is 2"));
}

TEST(EnumerableShardingSpecTest, HoldsReplicasIfAskedTo) {
  const std::vector<ShardMetadata> shards = {
      {{0, 0}, {5, 4}, Placement("rank:1/cpu")},
      {{0, 4}, {5, 6}, Placement("rank:0/cpu")},
      {{0, 4}, {5, 6}, Placement("rank:2/cpu")},
      {{0, 4}, {5, 6}, Placement("rank:2/cuda:0")},
      {{9, 9}, {0, 6}, Placement("rank:0/cpu")},
      {{9, 9}, {0, 6}, Placement("rank:0/cpu")}};
  EXPECT_THAT(EnumerableShardingSpec::Create(shards),
              StatusIs(kInvalid, "overlap"));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto spec, EnumerableShardingSpec::CreateWithReplicas(shards));
  EXPECT_TRUE(spec->has_replicas());
  EXPECT_THAT(spec->shards(), ElementsAreArray(shards));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensorMetadata metadata,
                             spec->BuildMetadata({5, 10}, {}));
  EXPECT_THAT(metadata.shards, ElementsAreArray(shards));
  EXPECT_THAT(spec->BuildMetadata({5, 16}, {}),
              StatusIs(kInvalid, "does not match tensor volume"));
  EXPECT_THAT(spec->BuildMetadata({5, 9}, {}),
              StatusIs(kInvalid, "exceeds tensor dim"));
}

TEST(EnumerableShardingSpecTest, RefusesReplicasInOnePlaceAndOtherOverlaps) {
  EXPECT_THAT(
      EnumerableShardingSpec::CreateWithReplicas(
          {{{0}, {4}, Placement("rank:1")}, {{0}, {4}, Placement("rank:1")}}),
      StatusIs(kInvalid, "overlap"));
  EXPECT_THAT(EnumerableShardingSpec::CreateWithReplicas(
                  {{{0}, {4}, Placement("rank:0")},
                   {{0}, {4}, Placement("rank:1")},
                   {{0}, {3}, Placement("rank:2")}}),
              StatusIs(kInvalid, "overlap"));
  EXPECT_THAT(EnumerableShardingSpec::CreateWithReplicas({}),
              StatusIs(kInvalid, "Empty shard list provided"));
}

TEST(EnumerableShardingSpecTest, IsTheSameSpecIfThereAreNoReplicas) {
  const std::vector<ShardMetadata> shards = {{{0}, {4}, Placement("rank:0")},
                                             {{4}, {1}, Placement("rank:1")}};
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto spec, EnumerableShardingSpec::CreateWithReplicas(shards));
  EXPECT_FALSE(spec->has_replicas());
  EXPECT_EQ(*spec, **EnumerableShardingSpec::Create(shards));
}

Placement ToCuda(const Placement& placement) {
  return Placement::OnRank(*placement.rank(), {DeviceType::kCuda, 0});
}

TEST(ShardingSpecTest, GoesToOtherPlaces) {
  EXPECT_EQ(Chunks(-1, 2)->WithPlacements(ToCuda)->ToString(),
            "ChunkShardingSpec(dim=-1, placements=[rank:0/cuda:0, "
            "rank:1/cuda:0])");
  // A shard without an owner stays so.
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto boxes, EnumerableShardingSpec::Create(
                            {{{0}, {4}, Placement("rank:0")}, {{4}, {1}, {}}}));
  const ShardingSpecPtr moved = boxes->WithPlacements(ToCuda);
  ASSERT_NE(moved, nullptr);
  EXPECT_EQ(*moved,
            **EnumerableShardingSpec::Create(
                {{{0}, {4}, Placement("rank:0/cuda:0")}, {{4}, {1}, {}}}));
  // Two replicas in one place are none.
  SHERD_ASSERT_OK_AND_ASSIGN(const auto replicas,
                             EnumerableShardingSpec::CreateWithReplicas(
                                 {{{0}, {4}, Placement("rank:0/cpu")},
                                  {{0}, {4}, Placement("rank:0/cuda:0")}}));
  EXPECT_EQ(replicas->WithPlacements(ToCuda), nullptr);
}

TEST(InferShardingSpecTest, FindsChunksInAnyOrderOfShards) {
  std::mt19937 random(20240607);
  for (const int dim : {0, 1, 2}) {
    for (const int64_t length : {4, 5, 10, 24}) {
      for (const int ranks : {2, 4, 10}) {
        Dims size = {3, 4, 5};
        size[dim] = length;
        std::vector<Placement> placements = PlacementsOnRanks(ranks);
        std::shuffle(placements.begin(), placements.end(), random);
        const ShardingSpecPtr spec =
            ChunkShardingSpec::Create(dim, placements).value();
        ShardedTensorMetadata metadata = spec->BuildMetadata(size, {}).value();
        std::shuffle(metadata.shards.begin(), metadata.shards.end(), random);
        SHERD_ASSERT_OK_AND_ASSIGN(const ShardingSpecPtr inferred,
                                   InferShardingSpec(metadata.shards));
        EXPECT_EQ(*inferred, *spec) << *inferred << " and " << *spec;
      }
    }
  }
}

TEST(InferShardingSpecTest, KeepsOtherShardsAsTheyAre) {
  const std::vector<std::vector<ShardMetadata>> cases = {
      // One shard, or all at 0, do not determine a dimension.
      {{{0, 0}, {4, 4}, Placement("rank:0")}},
      {{{0}, {4}, Placement("rank:0")}, {{0}, {0}, Placement("rank:1")}},
      // Not the rule of chunks: 1 + 3, cut-off offset, gap, other sizes.
      {{{0}, {1}, Placement("rank:0")}, {{1}, {3}, Placement("rank:1")}},
      {{{0}, {2}, Placement("rank:0")},
       {{2}, {2}, Placement("rank:1")},
       {{4}, {1}, Placement("rank:2")},
       {{5}, {0}, Placement("rank:3")}},
      {{{0}, {2}, Placement("rank:0")}, {{3}, {2}, Placement("rank:1")}},
      {{{0, 0}, {2, 3}, Placement("rank:0")},
       {{2, 0}, {2, 4}, Placement("rank:1")}},
      // No owner.
      {{{0}, {2}, {}}, {{2}, {2}, {}}},
      // Two dimensions.
      {{{0, 0}, {2, 2}, Placement("rank:0")},
       {{0, 2}, {2, 2}, Placement("rank:1")},
       {{2, 0}, {2, 4}, Placement("rank:2")}},
  };
  for (const std::vector<ShardMetadata>& shards : cases) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardingSpecPtr inferred,
                               InferShardingSpec(shards));
    EXPECT_EQ(*inferred, *EnumerableShardingSpec::Create(shards).value())
        << *inferred;
  }
}

TEST(InferShardingSpecTest, PassesErrorsOn) {
  EXPECT_THAT(InferShardingSpec({}),
              StatusIs(kInvalid, "Empty shard list provided"));
  const std::vector<ShardMetadata> overlapping = {
      {{0}, {2}, Placement("rank:0")}, {{1}, {2}, Placement("rank:1")}};
  EXPECT_THAT(InferShardingSpec(overlapping), StatusIs(kInvalid, "overlap"));
}

TEST(InferShardingSpecTest, KeepsReplicasIfTheyAreAllowed) {
  const std::vector<ShardMetadata> replicas = {{{0}, {2}, Placement("rank:0")},
                                               {{2}, {2}, Placement("rank:1")},
                                               {{0}, {2}, Placement("rank:2")},
                                               {{2}, {2}, Placement("rank:3")}};
  EXPECT_THAT(InferShardingSpec(replicas), StatusIs(kInvalid, "overlap"));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardingSpecPtr inferred,
                             InferShardingSpec(replicas, Replicas::kAllowed));
  EXPECT_EQ(*inferred, **EnumerableShardingSpec::CreateWithReplicas(replicas));
  // Where there are none, nothing is different.
  const auto metadata = Chunks(0, 4)->BuildMetadata({5}, {}).value();
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardingSpecPtr chunks,
      InferShardingSpec(metadata.shards, Replicas::kAllowed));
  EXPECT_EQ(*chunks, *Chunks(0, 4));
}

// Users may bring their own rule.
class EveryRowOnRankZero final : public ShardingSpec {
 public:
  absl::StatusOr<ShardedTensorMetadata> BuildMetadata(
      absl::Span<const int64_t> size,
      const TensorProperties& properties) const override {
    ShardedTensorMetadata metadata = {.size = Dims(size.begin(), size.end()),
                                      .properties = properties};
    for (int64_t row = 0; row < size[0]; ++row) {
      metadata.shards.push_back({{row}, {1}, Placement("rank:0")});
    }
    return metadata;
  }
  std::string ToString() const override { return "EveryRowOnRankZero"; }

 protected:
  bool Equals(const ShardingSpec&) const override { return true; }
};

TEST(ShardingSpecTest, CanBeAUsersOwnClass) {
  const ShardingSpecPtr spec = std::make_shared<EveryRowOnRankZero>();
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensorMetadata metadata,
                             spec->BuildMetadata({3}, {}));
  EXPECT_EQ(metadata.shards.size(), 3u);
  EXPECT_EQ(*spec, EveryRowOnRankZero());
  EXPECT_FALSE(*spec == *Chunks(0, 2));
}

TEST(ShardingSpecTest, OfAUserNeedNotKnowOtherPlaces) {
  EXPECT_EQ(EveryRowOnRankZero().WithPlacements(ToCuda), nullptr);
}

// Or add to one that is there.
class NamedChunks : public ChunkShardingSpec {
 public:
  NamedChunks(const ChunkShardingSpec& chunks, std::string name)
      : ChunkShardingSpec(chunks), name_(std::move(name)) {}

  std::string ToString() const override {
    return name_ + " " + ChunkShardingSpec::ToString();
  }

 protected:
  bool Equals(const ShardingSpec& other) const override {
    return ChunkShardingSpec::Equals(other) &&
           static_cast<const NamedChunks&>(other).name_ == name_;
  }

 private:
  const std::string name_;
};

class OtherBoxes : public EnumerableShardingSpec {
 public:
  explicit OtherBoxes(const EnumerableShardingSpec& boxes)
      : EnumerableShardingSpec(boxes) {}
};

// Only specs that have been checked can be derived from.
static_assert(!std::copy_constructible<ChunkShardingSpec>);
static_assert(!std::default_initializable<ChunkShardingSpec>);

TEST(ShardingSpecTest, OfAUserMayBeDerivedFromABuiltInOne) {
  const auto chunks =
      ChunkShardingSpec::Create(0, PlacementsOnRanks(3)).value();
  const NamedChunks named(*chunks, "embeddings");
  EXPECT_EQ(named.BuildMetadata({7, 2}, {}).value(),
            chunks->BuildMetadata({7, 2}, {}).value());
  EXPECT_EQ(named, NamedChunks(*chunks, "embeddings"));
  EXPECT_FALSE(named == NamedChunks(*chunks, "logits"));
  // One of another class is another spec, from either side.
  EXPECT_FALSE(*chunks == named);
  EXPECT_FALSE(named == *chunks);

  const auto boxes =
      EnumerableShardingSpec::Create({{{0}, {4}, Placement("rank:0")}}).value();
  EXPECT_EQ(OtherBoxes(*boxes), OtherBoxes(*boxes));
  EXPECT_FALSE(*boxes == OtherBoxes(*boxes));
  EXPECT_EQ(OtherBoxes(*boxes).BuildMetadata({4}, {}).value(),
            boxes->BuildMetadata({4}, {}).value());
}

}  // namespace
}  // namespace sherd
