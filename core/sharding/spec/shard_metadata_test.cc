#include "sherd/core/sharding/shard_metadata.h"

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ShardMetadataTest, AcceptsBoxesEmptyOrNotWithOrWithoutPlacement) {
  const ShardMetadata valid[] = {
      {.offsets = {0, 5}, .sizes = {5, 5}, .placement = "rank:1/cpu"},
      {.offsets = {0, 5}, .sizes = {5, 5}},
      {.offsets = {7, 0}, .sizes = {0, 3}, .placement = "worker/cuda:0"},
      {.placement = "rank:0"},
      {.offsets = {INT64_MAX - 1}, .sizes = {1}},
  };
  for (const ShardMetadata& shard : valid)
    EXPECT_THAT(shard.Validate(), IsOk());
}

TEST(ShardMetadataTest, ReportsTheDefect) {
  struct Case {
    ShardMetadata shard;
    const char* phrase;
  };
  const Case cases[] = {
      {{.offsets = {0}, .sizes = {1, 1}}, "same number of elements"},
      {{.offsets = {0, 0}, .sizes = {}}, "same number of elements"},
      {{.offsets = {0, -1}, .sizes = {1, 1}}, "shard_offsets should be >=0"},
      {{.offsets = {0, 1}, .sizes = {1, -1}}, "shard_sizes should be >= 0"},
      {{.offsets = {INT64_MAX}, .sizes = {1}}, "does not fit in 64 bits"},
      {{.offsets = {0, 0}, .sizes = {int64_t{1} << 32, int64_t{1} << 32}},
       "sizes=[4294967296, 4294967296]"},
      {{.offsets = {0}, .sizes = {1}, .placement = "rank:x"},
       "Could not parse remote_device"},
      {{.offsets = Dims(65, 0), .sizes = Dims(65, 1)}, "65"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(c.shard.Validate(), StatusIs(kInvalid, c.phrase));
  }
}

TEST(ShardMetadataTest, PrintsAllFields) {
  const ShardMetadata shard = {
      .offsets = {0, 5}, .sizes = {5, 6}, .placement = "rank:1"};
  EXPECT_EQ(shard.ToString(),
            "ShardMetadata(offsets=[0, 5], sizes=[5, 6], "
            "placement=rank:1/cpu)");
  EXPECT_EQ(ShardMetadata().ToString(),
            "ShardMetadata(offsets=[], sizes=[], placement=None)");
  const ShardedTensorMetadata metadata = {.shards = {shard}, .size = {5, 11}};
  EXPECT_EQ(metadata.ToString(),
            "ShardedTensorMetadata(shards=[" + shard.ToString() +
                "], size=[5, 11], properties=" + TensorProperties().ToString() +
                ")");
}

TEST(ShardMetadataTest, EqualityAndHashLookAtAllFields) {
  const ShardMetadata shard = {
      .offsets = {1, 2}, .sizes = {3, 4}, .placement = "rank:1/cpu"};
  std::vector<ShardMetadata> different = {shard, {},    shard,
                                          shard, shard, shard};
  different[2].offsets = {2, 1};
  different[3].sizes = {4, 3};
  different[4].placement = "rank:2/cpu";
  different[5].placement.reset();
  const absl::flat_hash_set<ShardMetadata> set(different.begin(),
                                               different.end());
  EXPECT_EQ(set.size(), different.size());
  for (size_t i = 0; i < different.size(); ++i) {
    for (size_t j = 0; j < different.size(); ++j) {
      EXPECT_EQ(different[i] == different[j], i == j);
    }
    EXPECT_TRUE(set.contains(ShardMetadata(different[i])));
  }
}

TEST(ShardedTensorMetadataTest, EqualityLooksAtAllFields) {
  const ShardedTensorMetadata base = {
      .shards = {{.offsets = {0}, .sizes = {2}, .placement = "rank:0"}},
      .size = {2}};
  ShardedTensorMetadata other = base;
  EXPECT_EQ(other, base);
  other.shards[0].placement = "rank:1";
  EXPECT_NE(other, base);
  other = base;
  other.size = {3};
  EXPECT_NE(other, base);
  other = base;
  other.properties.dtype = kInt8;
  EXPECT_NE(other, base);
}

}  // namespace
}  // namespace sherd
