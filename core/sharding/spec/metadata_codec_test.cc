#include "sherd/core/sharding/spec/metadata_codec.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;

ShardedTensorMetadata Sample() {
  ShardedTensorMetadata metadata = {
      .shards = {{{0, 0}, {2, 3}, Placement("rank:7/cpu")},
                 {{2, 0}, {1, 3}, Placement("rank:0/cuda:3")},
                 // A replica, in the hands of a worker.
                 {{2, 0}, {1, 3}, Placement("trainer_17/cuda:3")},
                 {{9, 9}, {0, 0}, {}},
                 {{9, 9}, {0, 0}, Placement("meta")},
                 {{9, 9}, {0, 0}, Placement("rank:7/cpu")},
                 {{9, 9}, {0, 0}, Placement("no:owner/cpu")}},
      .size = {3, 3}};
  metadata.properties.dtype = kBFloat16;
  metadata.properties.layout = Layout::kSparseCsr;
  metadata.properties.requires_grad = true;
  metadata.properties.memory_format = MemoryFormat::kPreserve;
  return metadata;
}

TEST(MetadataCodecTest, RestoresWhatItEncoded) {
  ShardedTensorMetadata scalar = {.shards = {{{}, {}, Placement("rank:0")}},
                                  .size = {}};
  scalar.properties.pin_memory = true;
  for (const ShardedTensorMetadata& metadata :
       {Sample(), ShardedTensorMetadata(), scalar}) {
    EXPECT_THAT(DecodeMetadata(EncodeMetadata(metadata)),
                IsOkAndHolds(metadata));
  }
}

// All ranks of a run have the same build, but its encoding should not change by
// accident: tests of several builds in one group would not show the cause.
TEST(MetadataCodecTest, WritesTheseBytes) {
  const int64_t numbers[] = {
      0x73687264'6d657462,
      // float64, strided, requires_grad, contiguous, not pinned.
      static_cast<int64_t>(kFloat64), 0, 1, 0, 0,
      // Size [4].
      1, 4,
      // "rank:1/cpu", "w/cpu".
      2, 10, 0, 0, 5, 0,
      // [0, 4) on both, and an empty one nowhere.
      3, 1, 0, 4, 0, 1, 0, 4, 1, 1, 4, 0, -1};
  std::string expected(sizeof(numbers), '\0');
  std::memcpy(expected.data(), numbers, sizeof(numbers));
  expected.replace(10 * 8, 16, std::string("rank:1/cpu\0\0\0\0\0\0", 16));
  expected.replace(13 * 8, 8, std::string("w/cpu\0\0\0", 8));
  ShardedTensorMetadata metadata = {.shards = {{{0}, {4}, Placement("rank:1")},
                                               {{0}, {4}, Placement("w/cpu")},
                                               {{4}, {0}, {}}},
                                    .size = {4}};
  metadata.properties.dtype = kFloat64;
  metadata.properties.requires_grad = true;
  EXPECT_EQ(EncodeMetadata(metadata), expected);
}

TEST(MetadataCodecTest, RefusesMalformedBytes) {
  std::string bytes = EncodeMetadata(
      {.shards = {{{0}, {4}, Placement("rank:1")}}, .size = {4}});
  const size_t padding = bytes.find("rank:1/cpu") + 10;
  ASSERT_EQ(bytes[padding], '\0');
  bytes[padding] = 'x';
  EXPECT_THAT(DecodeMetadata(bytes), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(MetadataCodecTest, RefusesTextsThatWouldTakeMuchMemory) {
  ShardedTensorMetadata metadata = {
      .shards = {{{}, {}, Placement::OnWorker(std::string(1020, 'w'))}},
      .size = {}};
  EXPECT_THAT(DecodeMetadata(EncodeMetadata(metadata)), IsOkAndHolds(metadata));
  metadata.shards[0].placement = Placement::OnWorker(std::string(1021, 'w'));
  EXPECT_THAT(DecodeMetadata(EncodeMetadata(metadata)),
              StatusIs(absl::StatusCode::kDataLoss));
}

TEST(MetadataCodecTest, RefusesEveryTruncationAndTrailingBytes) {
  const std::string bytes = EncodeMetadata(Sample());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THAT(DecodeMetadata(absl::string_view(bytes).substr(0, length)),
                StatusIs(absl::StatusCode::kDataLoss))
        << length;
  }
  EXPECT_THAT(DecodeMetadata(bytes + '\0'),
              StatusIs(absl::StatusCode::kDataLoss));
}

TEST(MetadataCodecTest, SurvivesAnyNumberAnywhere) {
  const std::string bytes = EncodeMetadata(Sample());
  for (const int64_t number :
       {int64_t{-1}, int64_t{65}, int64_t{1} << 40, INT64_MAX, INT64_MIN}) {
    for (size_t at = 0; at < bytes.size(); at += sizeof(number)) {
      std::string changed = bytes;
      std::memcpy(changed.data() + at, &number, sizeof(number));
      const auto decoded = DecodeMetadata(changed);
      // An error, or a value that survives a round trip.
      if (decoded.ok()) {
        EXPECT_THAT(DecodeMetadata(EncodeMetadata(*decoded)),
                    IsOkAndHolds(*decoded));
      } else {
        EXPECT_THAT(decoded, StatusIs(absl::StatusCode::kDataLoss));
      }
    }
  }
}

}  // namespace
}  // namespace sherd::internal
