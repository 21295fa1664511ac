#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharded_comparison.h"
#include "sherd/core/sharding/sharded_init.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/spec/shard_validation.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/persistent_test.h"
#include "sherd/testing/placed_fixture.h"
#include "sherd/testing/tensor_pattern.h"

// Defects found by reading the reference's source, beside those of
// known_defects_test.cc: one test for each defect. The comment describes the
// behavior of the reference.

namespace sherd {
namespace {

using ::sherd::testing::FillPattern;
using ::sherd::testing::HasErrorRank;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

class DerivedDefectsTest : public sherd::testing::PlacedFixture<
                               sherd::testing::PersistentDistributedTest> {
 protected:
  ShardedTensor Pattern(const ShardingSpecPtr& spec,
                        absl::Span<const int64_t> size,
                        DType dtype = kFloat32) {
    const ShardedTensor tensor =
        ShardedTensor::Empty(spec, size, {.dtype = dtype}).value();
    FillPattern(tensor);
    return tensor;
  }
};

// Offsets of empty trailing chunks lie past the end, and the check of the cover
// refuses them: on eight ranks 1 – 6, 9 – 13, 17 – 20, 25 – 27, 33, 34 and 41
// rows. Eight placements make eight chunks here.
SHERD_DIST_TEST_F(DerivedDefectsTest, EveryNumberOfRowsFitsEightChunks) {
  const ShardingSpecPtr rows = Chunks(0, {0, 1, 2, 3, 3, 2, 1, 0});
  for (int64_t n = 0; n <= 42; ++n) {
    SCOPED_TRACE(n);
    ShardedTensor tensor = Pattern(rows, {n, 2}, kInt8);
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor clone, tensor.Clone());
    EXPECT_TRUE(HasPattern(clone));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, tensor.AllGather());
    EXPECT_TRUE(HasPattern(whole, {0, 0}, {n, 2}));
    ASSERT_THAT(tensor.Reshard(Chunks(0)), IsOk());
    EXPECT_TRUE(HasPattern(tensor));
  }
}

// reshard clamps offsets and construction does not, so that a tensor that was
// resharded is taken for boxes after cpu() or to().
SHERD_DIST_TEST_F(DerivedDefectsTest, AReshardedTensorKeepsItsSpec) {
  ShardedTensor tensor = Pattern(Chunks(0), {13, 5});
  ASSERT_THAT(tensor.Reshard(Chunks(1)), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor made,
                             ShardedTensor::Empty(Chunks(1), {13, 5}));
  EXPECT_EQ(tensor.metadata(), made.metadata());
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor wide, tensor.To(kFloat64));
  EXPECT_EQ(*wide.spec(), *Chunks(1));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor here, tensor.Cpu());
  EXPECT_EQ(*here.spec(), *Chunks(1));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardingSpecPtr inferred,
                             InferShardingSpec(tensor.metadata().shards));
  EXPECT_EQ(*inferred, *Chunks(1));
}

// The recalculation of offsets uses the global rank as an index, so that it
// fails in sub-groups.
SHERD_DIST_TEST_F(DerivedDefectsTest, OffsetsAreRecalculatedInASubGroup) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto part, group().NewGroup({1, 2, 3}));
  if (!part->is_member()) return;
  const int64_t rows = 2 * rank();
  const int64_t begins[] = {0, 0, 2, 6};
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor local, Tensor::Empty({rows, 3}));
  FillPattern(local, {begins[rank()], 0}, {12, 3});
  SHERD_ASSERT_OK_AND_ASSIGN(
      const Shard shard, Shard::FromTensorAndOffsets(local, {0, 0}, rank()));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardedTensor::FromLocalShards(
                                 {shard}, {kUnknownSize, 3}, {.group = part}));
  EXPECT_THAT(tensor.size(), ElementsAre(12, 3));
  EXPECT_TRUE(HasPattern(tensor));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, tensor.AllGather());
  EXPECT_TRUE(HasPattern(whole, {0, 0}, {12, 3}));
}

// The check on other ranks takes the truth value of a tensor: `out` there is
// another error than the one that is meant.
SHERD_DIST_TEST_F(DerivedDefectsTest, AResultElsewhereIsNamedAsWhatItIs) {
  const ShardedTensor tensor = Pattern(Chunks(0), {6, 4});
  Tensor out;
  if (rank() == 2) out = Tensor::Zeros({6, 4}).value();
  EXPECT_THAT(tensor.Gather(0, out),
              AllOf(StatusIs(kInvalid,
                             "must NOT be specified on non-destination ranks"),
                    HasErrorRank(2)));
  EXPECT_TRUE(HasPattern(tensor));
}

// Ranks with empty shards return early, and the others hang.
SHERD_DIST_TEST_F(DerivedDefectsTest, GatherWithEmptyShardsOnAnyRank) {
  for (const std::vector<int>& order : std::vector<std::vector<int>>{
           {0, 1, 2, 3}, {3, 2, 1, 0}, {1, 0, 3, 2}}) {
    const ShardedTensor tensor = Pattern(Chunks(0, order), {2, 3});
    for (int destination = 0; destination < 4; ++destination) {
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole,
                                 tensor.Gather(destination));
      ASSERT_EQ(whole.defined(), rank() == destination);
      if (whole.defined()) {
        EXPECT_TRUE(HasPattern(whole, {0, 0}, {2, 3}));
      }
    }
  }
}

// half and bfloat16 need the dtype as an argument.
SHERD_DIST_TEST_F(DerivedDefectsTest, GatherNeedsNoDtype) {
  for (const DType dtype : {kFloat16, kBFloat16, kFloat8E4M3, kBool}) {
    const ShardedTensor tensor = Pattern(Chunks(1), {3, 6}, dtype);
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, tensor.Gather(3));
    if (rank() != 3) continue;
    EXPECT_EQ(whole.dtype(), dtype);
    EXPECT_TRUE(HasPattern(whole, {0, 0}, {3, 6}));
  }
}

// The scatter wants exactly one placement on each rank.
SHERD_DIST_TEST_F(DerivedDefectsTest, AnyNumberOfPlacementsOnARank) {
  for (const std::vector<int>& ranks : std::vector<std::vector<int>>{
           {2}, {3, 3, 3}, {0, 2}, {1, 0, 1, 0, 3, 3, 2}}) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardTensor(PatternTensor({11, 2}, kInt32), Chunks(0, ranks), 1));
    EXPECT_TRUE(HasPattern(tensor));
    EXPECT_THAT(tensor.local_shards(),
                SizeIs(std::count(ranks.begin(), ranks.end(), rank())));
  }
}

// Ranks other than the source must hold a tensor too, just for its shape.
SHERD_DIST_TEST_F(DerivedDefectsTest, OtherRanksNeedNoTensorToCutOne) {
  Tensor whole;
  if (rank() == 2) whole = PatternTensor({7, 2}, kUInt16);
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardTensor(whole, Chunks(0), 2));
  EXPECT_EQ(tensor.dtype(), kUInt16);
  EXPECT_TRUE(HasPattern(tensor));
}

// reshard wants chunk specs, one shard per rank and ranks 0 to W - 1.
SHERD_DIST_TEST_F(DerivedDefectsTest, ReshardTakesAnySpec) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardingSpecPtr boxes,
      EnumerableShardingSpec::Create(
          {{.offsets = {0, 0}, .sizes = {4, 7}, .placement = At(1)},
           {.offsets = {4, 0}, .sizes = {5, 3}, .placement = At(1)},
           {.offsets = {4, 3}, .sizes = {5, 4}, .placement = At(2)}}));
  ShardedTensor tensor = Pattern(boxes, {9, 7});
  for (const ShardingSpecPtr& next :
       {Chunks(1, {2, 0}), boxes, Chunks(0, {3, 3, 1})}) {
    ASSERT_THAT(tensor.Reshard(next), IsOk());
    EXPECT_TRUE(HasPattern(tensor));
  }
}

// kaiming's fans are those of the local shard: wrong for columns.
SHERD_DIST_TEST_F(DerivedDefectsTest, FansAreThoseOfTheWholeWeight) {
  const auto largest = [&](const ShardingSpecPtr& spec) {
    ManualSeed(7);
    ShardedTensor weight = ShardedTensor::Empty(spec, {64, 64}).value();
    EXPECT_THAT(
        InitKaimingUniform(weight, {}, {.stream = RandomStream::kGlobal}),
        IsOk());
    const Tensor whole = weight.AllGather().value();
    double most = 0;
    for (int64_t i = 0; i < whole.numel(); ++i) {
      most = std::max<double>(most, whole.data_as<float>()[i]);
    }
    return most;
  };
  const double rows = largest(Chunks(0));
  EXPECT_EQ(largest(Chunks(1)), rows);
  // The bound is sqrt(2) * sqrt(3 / 64); of a quarter it would be twice that.
  EXPECT_LT(rows, 0.3063);
  EXPECT_GT(rows, 0.29);
}

// copy_ does not compare the number of shards, and one rank may fail while
// others go on: here they fail together.
SHERD_DIST_TEST_F(DerivedDefectsTest, CopyFromIsRefusedOnAllRanksOrNone) {
  const ShardedTensor source = Pattern(Chunks(0), {8, 3});
  SHERD_ASSERT_OK_AND_ASSIGN(
      ShardedTensor other,
      ShardedTensor::Zeros(Chunks(0, {0, 1, 2, 3, 3}), {8, 3}));
  EXPECT_THAT(other.CopyFrom(source),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "inplace copy can only happen between two ShardedTensor "
                       "with same metadata"));
  // Another tensor on one rank.
  SHERD_ASSERT_OK_AND_ASSIGN(
      ShardedTensor mine,
      ShardedTensor::Zeros(rank() == 1 ? Chunks(1) : Chunks(0), {8, 3}));
  const absl::Status status = mine.CopyFrom(source);
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kFailedPrecondition, "rank 1"));
  EXPECT_THAT(status, HasErrorRank(1));
  EXPECT_THAT(group().Barrier(), IsOk());
  EXPECT_TRUE(HasPattern(source));
}

// Deriving a tensor validates and infers everything again, and putting shards
// together sends all metadata as objects. Here what derives sends nothing.
SHERD_DIST_TEST_F(DerivedDefectsTest, DerivedTensorsShareTheMetadata) {
  const ShardedTensor tensor = Pattern(Chunks(0), {8, 3});
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization)
  const ShardedTensor copy = tensor;
  EXPECT_EQ(&copy.metadata(), &tensor.metadata());
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor clone, tensor.Clone());
  EXPECT_EQ(&clone.metadata(), &tensor.metadata());
}

// Empty placements divide by zero, negative sizes are not refused up front.
SHERD_DIST_TEST_F(DerivedDefectsTest, EmptyPlacementsAndNegativeSizes) {
  EXPECT_THAT(ChunkShardingSpec::Create(0, std::vector<Placement>{}),
              StatusIs(kInvalid, "at least one placement"));
  for (const Dims& size : {Dims{-1, 3}, Dims{3, -1}, Dims{0, -5},
                           Dims{std::numeric_limits<int64_t>::min(), 1}}) {
    EXPECT_THAT(ShardedTensor::Empty(Chunks(0), size), StatusIs(kInvalid))
        << FormatDims(size);
  }
}

// The reference distinguishes custom operations and specs by the name of their
// class.
class FirstRow final : public ShardingSpec {
 public:
  explicit FirstRow(Placement placement) : placement_(std::move(placement)) {}

  absl::StatusOr<ShardedTensorMetadata> BuildMetadata(
      absl::Span<const int64_t> size,
      const TensorProperties& properties) const override {
    Dims first(size.begin(), size.end());
    Dims rest = first;
    rest[0] -= 1;
    first[0] = 1;
    Dims offsets(size.size(), 0);
    Dims below = offsets;
    below[0] = 1;
    return ShardedTensorMetadata{
        .shards = {{offsets, first, placement_}, {below, rest, placement_}},
        .size = Dims(size.begin(), size.end()),
        .properties = properties};
  }
  std::string ToString() const override { return "ChunkShardingSpec"; }

 protected:
  bool Equals(const ShardingSpec& other) const override {
    const auto* same = dynamic_cast<const FirstRow*>(&other);
    return same != nullptr && same->placement_ == placement_;
  }

 private:
  const Placement placement_;
};

SHERD_DIST_TEST_F(DerivedDefectsTest, ASpecOfTheSameNameIsAnotherSpec) {
  const ShardingSpecPtr mine = std::make_shared<FirstRow>(At(2));
  EXPECT_FALSE(*mine == *Chunks(0, {2, 2}));
  EXPECT_FALSE(*Chunks(0, {2, 2}) == *mine);
  ShardedTensor tensor = Pattern(Chunks(1), {5, 4});
  ASSERT_THAT(tensor.Reshard(mine), IsOk());
  EXPECT_EQ(tensor.spec(), mine);
  EXPECT_TRUE(HasPattern(tensor));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor cut,
                             ShardTensor(PatternTensor({5, 4}, kInt8), mine));
  EXPECT_TRUE(HasPattern(cut));
}

// Validation of n boxes takes n² comparisons, or n^1.5 in the newest version;
// with these that would be minutes. No clock: the test's own limit is enough.
SHERD_DIST_TEST_F(DerivedDefectsTest, ValidationOfManyBoxesIsNotQuadratic) {
  if (rank() != 0) return;
  // Bricks: rows of different heights in each column, so that it is not a grid;
  // all of a dimension are open at once.
  std::vector<ShardMetadata> shards;
  constexpr int64_t kColumns = 120;
  constexpr int64_t kRows = 500;
  for (int64_t column = 0; column < kColumns; ++column) {
    for (int64_t row = 0; row < kRows; ++row) {
      const int64_t shift = row == 0 ? 0 : column % 7;
      const int64_t next = row + 1 == kRows ? 0 : column % 7;
      shards.push_back({{10 * row + shift, column},
                        {10 + next - shift, 1},
                        Placement::OnRank(static_cast<int>(row % 4))});
    }
  }
  EXPECT_THAT(ValidateNonOverlapping(shards), IsOk());
  EXPECT_THAT(ValidateCover(shards, {10 * kRows, kColumns}), IsOk());
  shards[12345].sizes[0] += 1;
  EXPECT_THAT(ValidateNonOverlapping(shards), StatusIs(kInvalid, "overlap"));
}

}  // namespace
}  // namespace sherd
