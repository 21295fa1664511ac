#include "sherd/core/sharding/validated_metadata.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

// A user's spec: what chunks of two rows make, changed.
class ChangedChunks final : public ShardingSpec {
 public:
  using Change = std::function<void(ShardedTensorMetadata&)>;

  explicit ChangedChunks(Change change) : change_(std::move(change)) {}

  absl::StatusOr<ShardedTensorMetadata> BuildMetadata(
      absl::Span<const int64_t> size,
      const TensorProperties& properties) const override {
    auto metadata = ChunkShardingSpec::Create(0, PlacementsOnRanks(2))
                        .value()
                        ->BuildMetadata(size, properties);
    if (metadata.ok()) change_(*metadata);
    return metadata;
  }
  std::string ToString() const override { return "ChangedChunks"; }

 protected:
  bool Equals(const ShardingSpec&) const override { return false; }

 private:
  const Change change_;
};

ShardingSpecPtr Changed(ChangedChunks::Change change) {
  return std::make_shared<ChangedChunks>(std::move(change));
}

TEST(ValidatedMetadataTest, IsWhatTheSpecBuilds) {
  TensorProperties properties;
  properties.dtype = kInt16;
  const ShardingSpecPtr specs[] = {
      ChunkShardingSpec::Create(1, PlacementsOnRanks(3)).value(),
      MeshShardingSpec::Create({{2, 2}, PlacementsOnRanks(4)}, {{1}}).value(),
      EnumerableShardingSpec::Create({{{0, 0}, {5, 4}, Placement("rank:0")}})
          .value(),
      Changed([](ShardedTensorMetadata&) {})};
  for (const ShardingSpecPtr& spec : specs) {
    EXPECT_THAT(BuildValidatedMetadata(spec, {5, 4}, properties),
                IsOkAndHolds(spec->BuildMetadata({5, 4}, properties).value()));
  }
}

TEST(ValidatedMetadataTest, PassesErrorsOn) {
  EXPECT_THAT(BuildValidatedMetadata(nullptr, {5, 4}, {}),
              StatusIs(kInvalid, "Expecting ShardingSpec"));
  const ShardingSpecPtr spec =
      ChunkShardingSpec::Create(2, PlacementsOnRanks(3)).value();
  EXPECT_THAT(BuildValidatedMetadata(spec, {5, 4}, {}),
              StatusIs(kInvalid, "Invalid sharding dim"));
  EXPECT_THAT(BuildValidatedMetadata(spec, {-1}, {}), StatusIs(kInvalid));
}

TEST(ValidatedMetadataTest, TrustsNoSpecOfAUser) {
  struct Case {
    ChangedChunks::Change change;
    const char* phrase;
  };
  const Case cases[] = {
      {[](ShardedTensorMetadata& m) { m.size = {5}; },
       "it built metadata for size [5], expected [5, 4]"},
      {[](ShardedTensorMetadata& m) { m.properties.dtype = kInt8; },
       "it built metadata with TensorProperties(dtype=int8"},
      {[](ShardedTensorMetadata& m) { m.shards.pop_back(); },
       "does not match tensor volume"},
      {[](ShardedTensorMetadata& m) { m.shards.clear(); },
       "does not match tensor volume"},
      {[](ShardedTensorMetadata& m) { m.shards[1].offsets[0] = 2; }, "overlap"},
      {[](ShardedTensorMetadata& m) { m.shards[1].offsets[0] = 4; },
       "exceeds tensor dim"},
      {[](ShardedTensorMetadata& m) { m.shards[1].offsets[0] = -1; },
       "shard_offsets should be >=0"},
      {[](ShardedTensorMetadata& m) { m.shards[1].sizes = {2}; },
       "same number of elements"},
      {[](ShardedTensorMetadata& m) { m.shards.push_back(m.shards[0]); },
       "overlap"},
      {[](ShardedTensorMetadata& m) { m.shards[0].placement = "rank:x"; },
       "Could not parse remote_device"},
  };
  for (const Case& c : cases) {
    const auto metadata = BuildValidatedMetadata(Changed(c.change), {5, 4}, {});
    EXPECT_THAT(metadata, StatusIs(kInvalid, c.phrase));
    EXPECT_THAT(metadata, StatusIs(kInvalid, "sharding spec ChangedChunks"));
  }
}

TEST(ValidatedMetadataTest, AUserMayHaveReplicasAndEmptyShards) {
  const ShardingSpecPtr spec = Changed([](ShardedTensorMetadata& m) {
    m.shards.push_back(m.shards[0]);
    m.shards.back().placement = "rank:5";
    m.shards.push_back({{9, 9}, {0, 4}, Placement("rank:5")});
  });
  EXPECT_THAT(BuildValidatedMetadata(spec, {5, 4}, {}), IsOk());
}

}  // namespace
}  // namespace sherd
