#include <array>
#include <complex>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/partial_tensor.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/sharded_comparison.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharded_tensor_like.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/persistent_test.h"
#include "sherd/testing/placed_fixture.h"
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

// Defects of PyTorch 2.15 in its default configuration, reproduced there on
// four ranks with Gloo: one test for each defect of ShardedTensor and DTensor
// that concerns layout, dtype or agreement. The comment describes the behavior
// of PyTorch.

namespace sherd {
namespace {

using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::sherd::testing::TensorEq;
using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

class KnownDefectsTest : public sherd::testing::PlacedFixture<
                             sherd::testing::PersistentDistributedTest> {
 protected:
  // A tensor with elements that depend on their place.
  ShardedTensor Pattern(const ShardingSpecPtr& spec,
                        absl::Span<const int64_t> size, DType dtype = kFloat32,
                        std::shared_ptr<ProcessGroup> in = nullptr) {
    const ShardedTensor tensor =
        ShardedTensor::Empty(spec, size,
                             {.dtype = dtype, .group = std::move(in)})
            .value();
    FillPattern(tensor);
    return tensor;
  }

  // Every rank has each of `values`; the first rank gathers them.
  template <typename T>
  void ExpectGatheredExactly(const std::vector<T>& values) {
    SCOPED_TRACE(Name(DTypeOf<T>()));
    const int64_t count = static_cast<int64_t>(values.size());
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Tensor whole,
        Tensor::FromSpan<T>(absl::MakeConstSpan(values), {count}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardTensor(whole, Chunks(0)));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor gathered, tensor.Gather(0));
    if (rank() != 0) return;
    EXPECT_EQ(gathered.dtype(), DTypeOf<T>());
    EXPECT_THAT(gathered, TensorBitwiseEq(whole));
  }

  // Cuts a tensor, moves it to `target` and back and gathers it.
  void ExpectThereAndBack(const ShardingSpecPtr& spec,
                          const ShardingSpecPtr& target,
                          absl::Span<const int64_t> size,
                          DType dtype = kFloat32) {
    SCOPED_TRACE(absl::StrCat(Name(dtype), FormatDims(size), " ",
                              spec->ToString(), " ", target->ToString()));
    const Tensor whole = PatternTensor(size, dtype);
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor, ShardTensor(whole, spec));
    EXPECT_TRUE(HasPattern(tensor));
    for (const ShardingSpecPtr& next : {target, spec}) {
      ASSERT_THAT(tensor.Reshard(next), IsOk());
      EXPECT_TRUE(HasPattern(tensor));
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor gathered, tensor.Gather(2));
    if (rank() == 2) {
      EXPECT_THAT(gathered, TensorBitwiseEq(whole));
    }
  }
};

// ShardedTensor

// Buffers have the default dtype, float32: such numbers are returned rounded,
// without an error.
SHERD_DIST_TEST_F(KnownDefectsTest, GatherKeepsNumbersThatFloat32CannotHold) {
  ExpectGatheredExactly<double>({1.0 / 3, 1e300, 16777217.0, -1e-300, 0.1});
  ExpectGatheredExactly<int64_t>(
      {16777217, int64_t{1} << 53, INT64_MAX, INT64_MIN, -16777217});
  ExpectGatheredExactly<uint64_t>({UINT64_MAX, 1, 2, 3, 16777217});
  ExpectGatheredExactly<int32_t>({16777217, INT32_MAX, INT32_MIN, 5, 6});
  ExpectGatheredExactly<std::complex<float>>(
      {{1, 2}, {3, -4}, {0, 5}, {-6, 7}, {8, 9}});
  ExpectGatheredExactly<std::complex<double>>(
      {{1.0 / 3, 2e200}, {3, -4}, {0.1, 5}, {-6, 0.7}, {8, 9}});
}

// SIGABRT for 14 of 24 orders: splits are filed under the destination.
SHERD_DIST_TEST_F(KnownDefectsTest, ReshardRotatesChunksOfOneDimension) {
  for (const std::vector<int>& order : std::vector<std::vector<int>>{
           {1, 2, 3, 0}, {3, 0, 1, 2}, {1, 2, 0, 3}, {0, 2, 3, 1}}) {
    ExpectThereAndBack(Chunks(0), Chunks(0, order), {13, 4});
  }
}

// An error: 13 rows over 4 ranks leave 1 for the last.
SHERD_DIST_TEST_F(KnownDefectsTest, ReshardTakesUnevenRowsToColumns) {
  ExpectThereAndBack(Chunks(0), Chunks(1), {13, 11});
}

// An index error in reshard; -1 is another dimension than 1.
SHERD_DIST_TEST_F(KnownDefectsTest, NegativeDimensionsCountFromTheEnd) {
  ExpectThereAndBack(Chunks(-2), Chunks(-1), {13, 11});
  ExpectThereAndBack(Chunks(-1), Chunks(1, {3, 2, 1, 0}), {13, 11});
  ShardedTensor columns = Pattern(Chunks(1), {6, 8});
  const void* const data = columns.local_shards()[0].tensor.data();
  ReshardStats stats;
  ASSERT_THAT(columns.Reshard(Chunks(-1), {.stats = &stats}), IsOk());
  EXPECT_EQ(stats.bytes_sent + stats.bytes_received + stats.bytes_local, 0);
  EXPECT_EQ(columns.local_shards()[0].tensor.data(), data);
}

// Offsets of empty chunks lie past the end of the tensor, where the check of
// the cover refuses them and gather's narrow fails.
SHERD_DIST_TEST_F(KnownDefectsTest, FewRowsOnFourRanksAreCutAndGathered) {
  for (const int64_t rows : {0, 1, 2, 3, 5, 6, 9}) {
    ExpectThereAndBack(Chunks(0), Chunks(1), {rows, 6});
    ExpectThereAndBack(Chunks(0), Chunks(0, {2, 3, 1, 0}), {rows, 6});
  }
}

// An index error: lists of the group are indexed by global rank.
SHERD_DIST_TEST_F(KnownDefectsTest, SubGroupsGatherAndReshard) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto part, group().NewGroup({1, 3}));
  if (!part->is_member()) return;
  ShardedTensor tensor = Pattern(Chunks(0, {1, 3}), {7, 5}, kFloat32, part);
  ASSERT_THAT(tensor.Reshard(Chunks(1, {3, 1})), IsOk());
  EXPECT_TRUE(HasPattern(tensor));
  // Ranks of arguments are those of the group.
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor gathered, tensor.Gather(1));
  EXPECT_EQ(gathered.defined(), rank() == 3);
  if (gathered.defined()) {
    EXPECT_TRUE(HasPattern(gathered, {0, 0}, {7, 5}));
  }
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor cut,
      ShardTensor(rank() == 3 ? PatternTensor({7, 5}, kInt8) : Tensor(),
                  Chunks(0, {1, 3}), 1, part));
  EXPECT_TRUE(HasPattern(cut));
}

// The same where the group's order is not that of the world.
SHERD_DIST_TEST_F(KnownDefectsTest, GroupsInAnotherOrderGatherAndReshard) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto reversed, group().Split(0, -rank()));
  ASSERT_THAT(reversed->world_ranks(), ElementsAre(3, 2, 1, 0));
  ShardedTensor tensor = Pattern(Chunks(0), {7, 5}, kFloat32, reversed);
  ASSERT_THAT(tensor.Reshard(Chunks(1, {2, 0, 1, 3})), IsOk());
  EXPECT_TRUE(HasPattern(tensor));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor gathered, tensor.Gather(0));
  EXPECT_EQ(gathered.defined(), rank() == 3);
  if (gathered.defined()) {
    EXPECT_TRUE(HasPattern(gathered, {0, 0}, {7, 5}));
  }
}

// The flag is built on the current CUDA device: without one, an error.
SHERD_DIST_TEST_F(KnownDefectsTest, EqualNeedsNoGpu) {
  const ShardedTensor a = Pattern(Chunks(0), {5, 3}, kInt32);
  ShardedTensor b = Pattern(Chunks(0), {5, 3}, kInt32);
  EXPECT_THAT(Equal(a, b), IsOkAndHolds(true));
  EXPECT_THAT(AllClose(a, b), IsOkAndHolds(true));
  // One element on one rank; every rank learns it.
  if (rank() == 1) {
    Tensor shard = b.local_shards()[0].tensor;
    ASSERT_THAT(shard.Select(0, 0)->Select(0, 0)->Fill(7), IsOk());
  }
  EXPECT_THAT(Equal(a, b), IsOkAndHolds(false));
}

// *_like functions lose dtype, group and requires_grad.
SHERD_DIST_TEST_F(KnownDefectsTest, LikeFunctionsKeepDtypeAndProperties) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto part, group().NewGroup({0, 2}));
  if (!part->is_member()) return;
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor source,
      ShardedTensor::Zeros(
          Chunks(1, {2, 0}), {4, 6},
          {.dtype = kFloat64, .group = part, .requires_grad = true}));
  for (const auto& like :
       {OnesLike(source), ZerosLike(source), EmptyLike(source),
        RandLike(source), RandnLike(source), FullLike(source, 2.5)}) {
    ASSERT_THAT(like, IsOk());
    EXPECT_EQ(like->dtype(), kFloat64);
    EXPECT_EQ(like->group(), part);
    EXPECT_TRUE(like->requires_grad());
    EXPECT_EQ(like->metadata(), source.metadata());
    EXPECT_EQ(*like->spec(), *source.spec());
  }
}

// Ranks that are seeded alike draw equal shards, and what they draw depends on
// their number.
SHERD_DIST_TEST_F(KnownDefectsTest, RandomNumbersNeedNotDependOnTheLayout) {
  const auto draw = [&](const ShardingSpecPtr& spec,
                        const std::shared_ptr<ProcessGroup>& in) {
    ManualSeed(99);
    const ShardedTensor tensor =
        ShardedTensor::Rand(spec, {8, 6}, {.group = in},
                            {.stream = RandomStream::kGlobal})
            .value();
    return tensor.Gather(0).value();
  };
  const Tensor rows = draw(Chunks(0), nullptr);
  const Tensor columns = draw(Chunks(1, {3, 1, 0, 2, 1}), nullptr);
  SHERD_ASSERT_OK_AND_ASSIGN(const auto one, group().NewGroup({0}));
  if (rank() != 0) return;
  EXPECT_THAT(columns, TensorBitwiseEq(rows));
  EXPECT_THAT(draw(Chunks(0, {0}), one), TensorBitwiseEq(rows));
  // Equally seeded ranks have different shards.
  const auto shard = [&](int r) { return rows.Narrow(0, 2 * r, 2).value(); };
  for (int r = 1; r < 4; ++r) EXPECT_FALSE(shard(r).Equal(shard(0)));
}

// DTensor

// Shards are placed at wrong positions, rows of uneven tensors are dropped,
// without an error.
SHERD_DIST_TEST_F(KnownDefectsTest, AMeshMayHaveItsRanksInAnyOrder) {
  for (const std::vector<int>& order :
       std::vector<std::vector<int>>{{3, 2, 1, 0}, {1, 3, 0, 2}}) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardingSpecPtr line,
                               MeshShardingSpec::FromPlacements(
                                   {.shape = {4}, .placements = At(order)},
                                   {MeshPlacement::Shard(0)}));
    ExpectThereAndBack(line, Chunks(1), {13, 3});
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardTensor(PatternTensor({13, 3}, kFloat32), line));
    // Part i is on the rank at position i.
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(tensor.metadata().shards[i].placement, At(order[i]));
      EXPECT_EQ(tensor.metadata().shards[i].offsets[0], 4 * i);
    }
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardingSpecPtr square,
        MeshShardingSpec::FromPlacements(
            {.shape = {2, 2}, .placements = At(order)},
            {MeshPlacement::Shard(1), MeshPlacement::Shard(0)}));
    ExpectThereAndBack(square, line, {13, 3});
  }
}

// redistribute to another mesh with equal placements returns its input.
SHERD_DIST_TEST_F(KnownDefectsTest, ReshardToAnotherMeshMovesTheData) {
  const auto rows_on = [&](const std::vector<int>& ranks) -> ShardingSpecPtr {
    return MeshShardingSpec::FromPlacements(
               {.shape = {static_cast<int64_t>(ranks.size())},
                .placements = At(ranks)},
               {MeshPlacement::Shard(0)})
        .value();
  };
  ShardedTensor tensor = Pattern(rows_on({0, 1}), {6, 4});
  ASSERT_THAT(tensor.Reshard(rows_on({2, 3})), IsOk());
  EXPECT_THAT(tensor.local_shards(), SizeIs(rank() < 2 ? 0 : 1));
  EXPECT_TRUE(HasPattern(tensor));
  // And to one of another shape: unsupported there.
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardingSpecPtr square,
      MeshShardingSpec::FromPlacements(
          {.shape = {2, 2}, .placements = At({2, 0, 3, 1})},
          {MeshPlacement::Shard(1), MeshPlacement::Replicate()}));
  ASSERT_THAT(tensor.Reshard(square), IsOk());
  EXPECT_TRUE(HasPattern(tensor));
}

// from_local of an arbitrary split: 40 of 52 elements are wrong, without an
// error.
SHERD_DIST_TEST_F(KnownDefectsTest, LocalShardsMaySplitATensorAnyWay) {
  const std::array<int64_t, 5> begins = {0, 1, 7, 9, 13};
  const int64_t begin = begins[rank()];
  const int64_t rows = begins[rank() + 1] - begin;
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor local, Tensor::Empty({rows, 4}));
  FillPattern(local, {begin, 0}, {13, 4});
  SHERD_ASSERT_OK_AND_ASSIGN(const Shard shard, Shard::FromTensorAndOffsets(
                                                    local, {begin, 0}, rank()));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardedTensor::FromLocalShards({shard}, {13, 4}));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor gathered, tensor.Gather(0));
  if (rank() == 0) {
    EXPECT_TRUE(HasPattern(gathered, {0, 0}, {13, 4}));
  }
}

// Strided shards (several meshes' dimensions, or blocks in turn, over one
// dimension) are refused if they are uneven.
SHERD_DIST_TEST_F(KnownDefectsTest, UnevenBlocksGoRoundTheRanks) {
  const auto blocks = [&](int count) {
    std::vector<int> ranks;
    for (int i = 0; i < count; ++i) ranks.push_back(i % 4);
    return Chunks(0, ranks);
  };
  ExpectThereAndBack(blocks(12), blocks(6), {29, 3});
  ExpectThereAndBack(blocks(10), Chunks(1), {29, 3});
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardingSpecPtr twice,
      MeshShardingSpec::FromPlacements(
          {.shape = {2, 2}, .placements = At({0, 1, 2, 3})},
          {MeshPlacement::Shard(0), MeshPlacement::Shard(0)}));
  ExpectThereAndBack(twice, Chunks(1), {29, 3});
}

// Shapes and dtypes that differ between ranks are accepted.
SHERD_DIST_TEST_F(KnownDefectsTest, ShapesAndDtypesMustAgreeBetweenRanks) {
  const auto put_together = [&](Dims size, DType dtype, Dims whole) {
    const Tensor local = Tensor::Zeros(size, {.dtype = dtype}).value();
    const Shard shard =
        Shard::FromTensorAndOffsets(local, {2 * rank(), 0}, rank()).value();
    return ShardedTensor::FromLocalShards({shard}, whole).status();
  };
  const bool odd = rank() == 2;
  absl::Status status = put_together({2, 3}, odd ? kFloat64 : kFloat32, {8, 3});
  EXPECT_THAT(status, StatusIs(kInvalid, "dtype property does not match"));
  EXPECT_EQ(ErrorRank(status), 2);
  status = put_together({2, 3}, kFloat32, odd ? Dims{9, 3} : Dims{8, 3});
  EXPECT_THAT(status,
              StatusIs(kInvalid, "global_size property does not match"));
  EXPECT_EQ(ErrorRank(status), 2);
  EXPECT_THAT(put_together({2, odd ? 2 : 3}, kFloat32, {8, 3}),
              StatusIs(kInvalid, "does not match tensor volume"));
  // Tensors that each rank made for itself.
  for (const auto& [size, dtype] :
       {std::pair(Dims{8, 3}, kFloat64), std::pair(Dims{9, 3}, kFloat32)}) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor tensor,
        ShardedTensor::Zeros(Chunks(0), odd ? size : Dims{8, 3},
                             {.dtype = odd ? dtype : kFloat32}));
    EXPECT_THAT(tensor.Reshard(Chunks(1)),
                StatusIs(kInvalid, "rank 2 was called with other arguments"));
    EXPECT_THAT(tensor.Gather(),
                StatusIs(kInvalid, "rank 2 was called with other arguments"));
  }
}

// Rows to columns is an all-gather and a cut: eight times the shard in extra
// memory and four times the bytes.
SHERD_DIST_TEST_F(KnownDefectsTest, RowsToColumnsSendsWhatMovesOnly) {
  ShardedTensor tensor = Pattern(Chunks(0), {512, 256});
  constexpr int64_t kShardBytes = 512 * 256 / 4 * 4;
  for (const bool direct : {true, false}) {
    ReshardStats stats;
    ASSERT_THAT(
        tensor.Reshard(
            Chunks(direct ? 1 : 0),
            {.max_staging_bytes = 64 << 10, .direct = direct, .stats = &stats}),
        IsOk());
    EXPECT_EQ(stats.bytes_received, kShardBytes * 3 / 4);
    EXPECT_EQ(stats.bytes_received, stats.lower_bound_bytes);
    EXPECT_EQ(stats.bytes_local, kShardBytes / 4);
    EXPECT_LE(stats.staging_bytes, 64 << 10);
    EXPECT_TRUE(HasPattern(tensor));
  }
}

// There are no arbitrary boxes and no two shards on one rank.
SHERD_DIST_TEST_F(KnownDefectsTest, BoxesMayLieAnywhereSeveralOnARank) {
  // A pinwheel: no cut goes through the whole tensor.
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardingSpecPtr pinwheel,
      EnumerableShardingSpec::Create(
          {{.offsets = {0, 0}, .sizes = {3, 6}, .placement = At(2)},
           {.offsets = {0, 6}, .sizes = {6, 3}, .placement = At(0)},
           {.offsets = {3, 0}, .sizes = {6, 3}, .placement = At(2)},
           {.offsets = {6, 3}, .sizes = {3, 6}, .placement = At(3)},
           {.offsets = {3, 3}, .sizes = {3, 3}, .placement = At(2)}}));
  ExpectThereAndBack(pinwheel, Chunks(0), {9, 9});
  ExpectThereAndBack(Chunks(1, {1, 0, 1, 3, 3}), pinwheel, {9, 9});
}

// int16, uint16, uint32, uint64 and float8 have no collectives on Gloo.
SHERD_DIST_TEST_F(KnownDefectsTest, EveryDtypeMoves) {
  for (int32_t number = 0; number < kNumDTypes; ++number) {
    ExpectThereAndBack(Chunks(0), Chunks(1), {5, 6},
                       static_cast<DType>(number));
  }
}

// There is no `rand` on a mesh of CPUs.
SHERD_DIST_TEST_F(KnownDefectsTest, RandomTensorsOnAMesh) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardingSpecPtr square,
      MeshShardingSpec::FromPlacements(
          {.shape = {2, 2}, .placements = At({0, 1, 2, 3})},
          {MeshPlacement::Shard(0), MeshPlacement::Replicate()}));
  for (const auto& tensor :
       {ShardedTensor::Rand(square, {6, 5}, {},
                            {.stream = RandomStream::kGlobal}),
        ShardedTensor::Randn(square, {6, 5}, {},
                             {.stream = RandomStream::kGlobal})}) {
    ASSERT_THAT(tensor, IsOk());
    // Replicas are equal: ranks 0 and 1 have the first rows, 2 and 3 the last.
    const Tensor mine = tensor->local_tensor().value();
    std::array<float, 4> firsts;
    ASSERT_THAT(
        group().AllGather(
            {static_cast<const std::byte*>(mine.data()), sizeof(float)},
            {reinterpret_cast<std::byte*>(firsts.data()), sizeof(firsts)}),
        IsOk());
    EXPECT_EQ(firsts[0], firsts[1]);
    EXPECT_EQ(firsts[2], firsts[3]);
    EXPECT_NE(firsts[0], firsts[2]);
  }
}

// flatten of an uneven dimension is refused.
SHERD_DIST_TEST_F(KnownDefectsTest, UnevenRowsAreFlattenedInPlace) {
  const ShardedTensor rows = Pattern(Chunks(0), {13, 3});
  std::vector<Shard> flat;
  for (const Shard& shard : rows.local_shards()) {
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor line, shard.tensor.Flatten());
    SHERD_ASSERT_OK_AND_ASSIGN(
        flat.emplace_back(),
        Shard::FromTensorAndOffsets(line, {3 * shard.metadata.offsets[0]},
                                    rank()));
  }
  SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor line,
                             ShardedTensor::FromLocalShards(flat, {39}));
  EXPECT_EQ(line.local_shards()[0].tensor.data(),
            rows.local_shards()[0].tensor.data());
  EXPECT_TRUE(HasPattern(line));
  ASSERT_THAT(line.Reshard(Chunks(0, {3, 0, 2, 1})), IsOk());
  EXPECT_TRUE(HasPattern(line));
}

// Cases that DTensor handles correctly: all pairs of placements on a mesh of 2
// × 2, uneven and empty shards among them.
SHERD_DIST_TEST_F(KnownDefectsTest, AllPairsOfPlacementsOnASquareMesh) {
  std::vector<ShardingSpecPtr> specs;
  std::vector<MeshPlacement> placements = {MeshPlacement::Replicate()};
  for (int d = 0; d < 3; ++d) placements.push_back(MeshPlacement::Shard(d));
  for (const MeshPlacement& first : placements) {
    for (const MeshPlacement& second : placements) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          specs.emplace_back(),
          MeshShardingSpec::FromPlacements(
              {.shape = {2, 2}, .placements = OnAllRanks()}, {first, second}));
    }
  }
  for (const Dims& size : {Dims{5, 1, 3}, Dims{2, 4, 7}}) {
    for (const ShardingSpecPtr& from : specs) {
      const ShardedTensor tensor = Pattern(from, size, kInt16);
      for (const ShardingSpecPtr& to : specs) {
        ShardedTensor moved = tensor;
        ReshardStats stats;
        ASSERT_THAT(moved.Reshard(to, {.stats = &stats}), IsOk());
        ASSERT_TRUE(HasPattern(moved)) << *from << " to " << *to;
        ASSERT_EQ(stats.bytes_received, stats.lower_bound_bytes);
      }
    }
  }
}

// And partial sums, to every placement.
SHERD_DIST_TEST_F(KnownDefectsTest, PartialSumsOnASquareMesh) {
  std::vector<MeshPlacement> placements = {MeshPlacement::Replicate(),
                                           MeshPlacement::Shard(0),
                                           MeshPlacement::Shard(1)};
  for (const Dims& size : {Dims{5, 3}, Dims{1, 6}}) {
    // Rank r has (r + 1) times the place of each element.
    const int64_t count = size[0] * size[1];
    std::vector<int32_t> mine, sums;
    for (int32_t i = 0; i < count; ++i) {
      mine.push_back((rank() + 1) * i);
      sums.push_back(10 * i);
    }
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Tensor summand,
        Tensor::FromSpan<int32_t>(absl::MakeConstSpan(mine), size));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Tensor whole,
        Tensor::FromSpan<int32_t>(absl::MakeConstSpan(sums), size));
    SHERD_ASSERT_OK_AND_ASSIGN(const PartialTensor partial,
                               PartialTensor::Create(summand));
    for (const MeshPlacement& first : placements) {
      for (const MeshPlacement& second : placements) {
        SHERD_ASSERT_OK_AND_ASSIGN(
            const ShardingSpecPtr spec,
            MeshShardingSpec::FromPlacements(
                {.shape = {2, 2}, .placements = OnAllRanks()},
                {first, second}));
        SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor sum,
                                   partial.Reshard(spec));
        for (const Shard& shard : sum.local_shards()) {
          EXPECT_THAT(shard.tensor,
                      TensorEq(whole.Narrow(shard.metadata.offsets,
                                            shard.metadata.sizes)))
              << *spec;
        }
      }
    }
  }
}

// And sub-meshes: rows of the mesh, each with a tensor of its own.
SHERD_DIST_TEST_F(KnownDefectsTest, SubMeshesWorkByThemselves) {
  const int row = rank() / 2;
  SHERD_ASSERT_OK_AND_ASSIGN(const auto part, group().Split(row, rank()));
  const ShardingSpecPtr rows = Chunks(0, {2 * row, 2 * row + 1});
  const ShardingSpecPtr columns = Chunks(1, {2 * row + 1, 2 * row});
  ShardedTensor tensor = Pattern(rows, {5 + row, 3}, kInt64, part);
  ASSERT_THAT(tensor.Reshard(columns), IsOk());
  EXPECT_TRUE(HasPattern(tensor));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, tensor.AllGather());
  EXPECT_TRUE(HasPattern(whole, {0, 0}, {5 + row, 3}));
}

}  // namespace
}  // namespace sherd
