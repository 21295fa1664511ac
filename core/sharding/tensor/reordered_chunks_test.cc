#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/persistent_test.h"
#include "sherd/testing/placed_fixture.h"
#include "sherd/testing/sharded_matchers.h"
#include "sherd/testing/tensor_pattern.h"

// Chunks on four ranks in one order become chunks of another dimension, or in
// another order, and are then as if they had been cut so.

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::PatternTensor;
using ::sherd::testing::ShardedTensorEq;
using ::sherd::testing::StatusIs;
using ::testing::SizeIs;

class ReorderedChunksTest : public sherd::testing::PlacedFixture<
                                sherd::testing::PersistentDistributedTest> {
 protected:
  void ExpectAsIfCutSo(const ShardingSpecPtr& from, const ShardingSpecPtr& to,
                       absl::Span<const int64_t> size) {
    SCOPED_TRACE(FormatDims(size));
    const Tensor whole = PatternTensor(size, kFloat32);
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor moved, ShardTensor(whole, from));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor cut, ShardTensor(whole, to));
    ASSERT_THAT(moved.Reshard(to), IsOk());
    EXPECT_THAT(moved.local_shards(), SizeIs(1));
    EXPECT_THAT(moved, ShardedTensorEq(cut));
  }
};

SHERD_DIST_TEST_F(ReorderedChunksTest, AreAsIfTheTensorHadBeenCutSo) {
  uint64_t seed = 5;
  constexpr std::pair<int, int> kDims[] = {{0, 0},  {0, 1},  {1, 0},  {1, 1},
                                           {0, -1}, {-1, 1}, {-2, -1}};
  for (const auto& [from_dim, to_dim] : kDims) {
    const auto specs = ChunkSpecs({from_dim, to_dim}, seed);
    seed += specs.size();
    for (const Dims& size : {Dims{13, 21}, {14, 23}, {15, 26}, {12, 24}}) {
      ExpectAsIfCutSo(specs[0], specs[1], size);
    }
  }
}

// Sizes at which some rank gets nothing.
SHERD_DIST_TEST_F(ReorderedChunksTest, MayBeEmpty) {
  uint64_t seed = 6;
  for (const Dims& size : {Dims{5, 9}, {1, 2}, {3, 5}, {0, 4}, {2, 0}}) {
    const auto specs = ChunkSpecs({0, 1, 1, 1}, seed);
    seed += specs.size();
    ExpectAsIfCutSo(specs[0], specs[1], size);
    ExpectAsIfCutSo(specs[2], specs[3], size);
  }
}

// The reference knows neither; here a spec has to fit, and that is all.
SHERD_DIST_TEST_F(ReorderedChunksTest, BecomeBoxesIfTheseFit) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      ShardedTensor tensor,
      ShardTensor(PatternTensor({24, 12}, kFloat32), ChunkSpecs({0}, 6)[0]));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto too_small,
      EnumerableShardingSpec::Create(
          {{.offsets = {0, 0}, .sizes = {5, 5}, .placement = At(0)},
           {.offsets = {5, 0}, .sizes = {5, 5}, .placement = At(1)}}));
  EXPECT_THAT(tensor.Reshard(too_small),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "does not match tensor volume"));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto fits,
      EnumerableShardingSpec::Create(
          {{.offsets = {0, 0}, .sizes = {24, 5}, .placement = At(0)},
           {.offsets = {0, 5}, .sizes = {10, 7}, .placement = At(0)},
           {.offsets = {10, 5}, .sizes = {14, 7}, .placement = At(1)}}));
  EXPECT_THAT(tensor.Reshard(fits), IsOk());
  const size_t shards[] = {2, 1, 0, 0};
  EXPECT_THAT(tensor.local_shards(), SizeIs(shards[rank()]));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor cut,
      ShardTensor(PatternTensor({24, 12}, kFloat32), fits));
  EXPECT_THAT(tensor, ShardedTensorEq(cut));
}

}  // namespace
}  // namespace sherd
