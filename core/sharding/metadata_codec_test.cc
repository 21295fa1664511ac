#include "sherd/core/sharding/metadata_codec.h"

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
                 {{9, 9}, {0, 0}, {}}},
      .size = {3, 3}};
  metadata.properties.dtype = kBFloat16;
  metadata.properties.requires_grad = true;
  return metadata;
}

TEST(MetadataCodecTest, RestoresWhatItEncoded) {
  ShardedTensorMetadata scalar = {.shards = {{{}, {}, Placement("rank:0")}}};
  scalar.properties.pin_memory = true;
  for (const ShardedTensorMetadata& metadata :
       {Sample(), ShardedTensorMetadata(), scalar}) {
    EXPECT_THAT(DecodeMetadata(EncodeMetadata(metadata)),
                IsOkAndHolds(metadata));
  }
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
      // An error, or a value that survives the way back.
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
