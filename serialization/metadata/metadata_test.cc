#include "sherd/serialization/metadata.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/serialization/kits/sample_metadata.h"
#include "sherd/serialization/proto/sharding.pb.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

namespace proto = sharding::v1;

using ::sherd::testing::CaseCount;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RandomMesh;
using ::sherd::testing::RandomSeed;
using ::sherd::testing::RandomShards;
using ::sherd::testing::RandomSize;
using ::sherd::testing::RandomSpec;
using ::sherd::testing::StatusIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kLoss = absl::StatusCode::kDataLoss;
constexpr absl::StatusCode kMissing = absl::StatusCode::kUnimplemented;

constexpr char kGolden[] = "serialization/testdata/v1/";

std::string ReadGolden(const std::string& name) {
  std::ifstream file(kGolden + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

proto::ShardedTensorMetadata SampleMessage() {
  proto::ShardedTensorMetadata message;
  EXPECT_TRUE(
      message.ParseFromString(SerializeMetadata(SampleMetadata()).value()));
  return message;
}

proto::ShardingSpec SampleSpecMessage(size_t i) {
  proto::ShardingSpec message;
  EXPECT_TRUE(message.ParseFromString(SerializeSpec(SampleSpecs()[i]).value()));
  return message;
}

// Every combination of properties that test_serialize_and_deserialize of
// PyTorch pickles, and those of the dtypes and the layout that it leaves out.
TEST(MetadataTest, SurvivesWithEveryCombinationOfProperties) {
  ShardedTensorMetadata metadata = {
      .shards = {{{0, 0}, {5, 5}, Placement("rank:0/cuda:0")},
                 {{0, 5}, {5, 5}, Placement("rank:1/cuda:1")},
                 {{5, 0}, {5, 5}, Placement("rank:2/cuda:2")},
                 {{5, 5}, {5, 5}, Placement("rank:3/cuda:3")}},
      .size = {10, 10}};
  int cases = 0;
  TensorProperties& properties = metadata.properties;
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    properties.dtype = static_cast<DType>(dtype);
    for (int i = 0; i < 3 * 3 * 2 * 2; ++i) {
      properties.layout = static_cast<Layout>(i % 3);
      properties.memory_format = static_cast<MemoryFormat>(i / 3 % 3);
      properties.requires_grad = i / 9 % 2 == 1;
      properties.pin_memory = i / 18 == 1;
      SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes,
                                 SerializeMetadata(metadata));
      ASSERT_THAT(ParseMetadata(bytes), IsOkAndHolds(metadata));
      ++cases;
    }
  }
  EXPECT_EQ(cases, 21 * 3 * 2 * 3 * 2);
}

TEST(MetadataTest, SurvivesWithEveryKindOfShardAndPlacement) {
  const ShardedTensorMetadata scalar = {
      .shards = {{{}, {}, Placement("worker")}}, .size = {}};
  const ShardedTensorMetadata empty = {.shards = {}, .size = {3, 0}};
  const ShardedTensorMetadata huge = {
      .shards = {{{0}, {INT64_MAX}, Placement("rank:2147483647/cuda:12")}},
      .size = {INT64_MAX}};
  const ShardedTensorMetadata long_name = {
      .shards = {{{0}, {1}, Placement::OnWorker(std::string(1020, '\xff'))}},
      .size = {1}};
  for (const ShardedTensorMetadata& metadata :
       {SampleMetadata(), scalar, empty, huge, long_name}) {
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes,
                               SerializeMetadata(metadata));
    EXPECT_THAT(ParseMetadata(bytes), IsOkAndHolds(metadata));
  }
}

TEST(MetadataTest, NamesOfTheMessageAreThoseOfTheTypes) {
  const auto name = [](const std::string& text, absl::string_view prefix) {
    return absl::AsciiStrToLower(absl::StripPrefix(text, prefix));
  };
  for (int i = 0; i < kNumDTypes; ++i) {
    EXPECT_EQ(name(proto::DType_Name(i), "DTYPE_"),
              Name(static_cast<DType>(i)));
  }
  ASSERT_EQ(proto::Layout_MAX, static_cast<int>(Layout::kSparseCsr));
  ASSERT_EQ(proto::MemoryFormat_MAX, static_cast<int>(MemoryFormat::kPreserve));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(name(proto::Layout_Name(i), "LAYOUT_"),
              Name(static_cast<Layout>(i)));
    EXPECT_EQ(name(proto::MemoryFormat_Name(i), "MEMORY_FORMAT_"),
              Name(static_cast<MemoryFormat>(i)));
  }
}

TEST(MetadataTest, ReadsAndWritesTheGoldenFileOfVersion1) {
  const std::string bytes = ReadGolden("sharded_tensor_metadata.binpb");
  EXPECT_THAT(ParseMetadata(bytes), IsOkAndHolds(SampleMetadata()));
  EXPECT_THAT(SerializeMetadata(SampleMetadata()), IsOkAndHolds(bytes));
}

TEST(MetadataTest, EachPlacementIsWrittenOnce) {
  EXPECT_THAT(SampleMessage().shards().placement(),
              ::testing::ElementsAre("rank:7/cpu", "rank:0/cuda:3",
                                     "trainer_17/cuda:3", "meta"));
  EXPECT_THAT(SampleMessage().shards().shard_placement(),
              ::testing::ElementsAre(1, 2, 3, 4, 0, 1));
}

TEST(MetadataTest, RandomLayoutsSurvive) {
  const uint64_t seed = RandomSeed();
  const int64_t cases = CaseCount(200);
  for (int64_t i = 0; i < cases; ++i) {
    SCOPED_TRACE(absl::StrCat("SHERD_TEST_SEED=", seed + i));
    std::mt19937_64 random(seed + i);
    const Dims size = RandomSize(4, 500, random);
    const std::vector<int> ranks = {4, 0, 7, 2, 5};
    TensorProperties properties;
    properties.dtype = static_cast<DType>(random() % kNumDTypes);
    properties.requires_grad = random() % 2 == 0;
    for (const ShardingSpecPtr& spec :
         {RandomSpec(size, ranks, random), RandomMesh(size, ranks, random)}) {
      SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensorMetadata metadata,
                                 spec->BuildMetadata(size, properties));
      SHERD_ASSERT_OK_AND_ASSIGN(std::string bytes,
                                 SerializeMetadata(metadata));
      ASSERT_THAT(ParseMetadata(bytes), IsOkAndHolds(metadata));
      SHERD_ASSERT_OK_AND_ASSIGN(bytes, SerializeSpec(spec));
      SHERD_ASSERT_OK_AND_ASSIGN(const ShardingSpecPtr again, ParseSpec(bytes));
      ASSERT_EQ(*again, *spec);
      ASSERT_THAT(SerializeSpec(again), IsOkAndHolds(bytes));
    }
  }
}

// They are in the message once, and in memory once per shard.
TEST(MetadataTest, LongNamesOfManyShardsAreRefusedInBothDirections) {
  constexpr int kMostShards = (64 << 20) / 1020;
  ShardedTensorMetadata metadata = {.size = {0}};
  metadata.shards.assign(
      kMostShards, {{0}, {0}, Placement::OnWorker(std::string(1020, 'w'))});
  SHERD_ASSERT_OK_AND_ASSIGN(std::string bytes, SerializeMetadata(metadata));
  EXPECT_LT(bytes.size(), 4 * kMostShards);
  EXPECT_EQ(ParseMetadata(bytes).value().shards.size(), metadata.shards.size());
  metadata.shards.push_back(metadata.shards.back());
  constexpr char kMessage[] = "of 65794 shards would take 67109880 bytes";
  EXPECT_THAT(SerializeMetadata(metadata).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, kMessage));
  proto::ShardedTensorMetadata message;
  ASSERT_TRUE(message.ParseFromString(bytes));
  message.mutable_shards()->add_shard_placement(1);
  message.mutable_shards()->add_shard_offset(0);
  message.mutable_shards()->add_shard_size(0);
  EXPECT_THAT(ParseMetadata(message.SerializeAsString()).status(),
              StatusIs(kLoss, kMessage));
}

TEST(MetadataTest, NamesMayHave64BytesPerShard) {
  // One more than there may be in all.
  constexpr int kShards = (1 << 20) + 1;
  proto::ShardedTensorMetadata message = SampleMessage();
  proto::ShardList& list = *message.mutable_shards();
  list.Clear();
  list.set_dims(0);
  list.add_placement(std::string(65, 'w'));
  list.mutable_shard_placement()->Resize(kShards, 1);
  EXPECT_THAT(
      ParseMetadata(message.SerializeAsString()).status(),
      StatusIs(
          kLoss,
          "would take 68157505 bytes in memory, expected at most 67108928"));
}

TEST(MetadataTest, RefusesToSerialize) {
  struct Row {
    const char* message;
    std::function<void(ShardedTensorMetadata&)> change;
    absl::StatusCode code = kInvalid;
  };
  using Metadata = ShardedTensorMetadata;
  const Row rows[] = {
      {"dtype has the number 21, expected 0 to 20",
       [](Metadata& m) { m.properties.dtype = static_cast<DType>(21); }},
      {"layout has the number -1, expected 0 to 2",
       [](Metadata& m) { m.properties.layout = static_cast<Layout>(-1); }},
      {"memory_format has the number 3, expected 0 to 2",
       [](Metadata& m) {
         m.properties.memory_format = static_cast<MemoryFormat>(3);
       }},
      {"the size of the tensor: ", [](Metadata& m) { m.size[0] = -1; }},
      {"overlap", [](Metadata& m) { m.shards[0].sizes[0] = 3; }},
      {"does not match tensor volume", [](Metadata& m) { m.size[1] = 301; }},
      {"does not match tensor volume", [](Metadata& m) { m.shards.clear(); }},
      {"shard_sizes should be >= 0",
       [](Metadata& m) { m.shards[2].sizes[1] = -3; }},
      {"same number of elements",
       [](Metadata& m) { m.shards[2].sizes.pop_back(); }},
      {"Could not parse remote_device: 'a:b/cpu'",
       [](Metadata& m) { m.shards[4].placement = Placement("a:b/cpu"); }},
      {"has 1025 bytes, expected at most 1024",
       [](Metadata& m) {
         m.shards[4].placement = Placement::OnWorker(std::string(1021, 'w'));
       }},
      {"Expected one of cpu, cuda, meta",
       [](Metadata& m) { m.shards[4].placement = Placement("rank:0/foo"); },
       absl::StatusCode::kFailedPrecondition},
  };
  for (const Row& row : rows) {
    ShardedTensorMetadata metadata = SampleMetadata();
    row.change(metadata);
    EXPECT_THAT(SerializeMetadata(metadata), StatusIs(row.code, row.message));
  }
}

TEST(MetadataTest, RefusesToParse) {
  struct Row {
    const char* message;
    std::function<void(proto::ShardedTensorMetadata&)> change;
    absl::StatusCode code = kLoss;
  };
  using Message = proto::ShardedTensorMetadata;
  const Row rows[] = {
      {"lack the field version", [](Message& m) { m.clear_version(); }},
      {"the version is 0", [](Message& m) { m.set_version(0); }},
      {"version 2 wrote the bytes, this build reads 1 to 1",
       [](Message& m) { m.set_version(2); }, kMissing},
      // Before all else: a later version may have other fields.
      {"version 4294967295 wrote the bytes",
       [](Message& m) {
         m.Clear();
         m.set_version(UINT32_MAX);
       },
       kMissing},
      {"lack the field properties:", [](Message& m) { m.clear_properties(); }},
      {"lack the field shards:", [](Message& m) { m.clear_shards(); }},
      {"lack the field properties.dtype",
       [](Message& m) { m.mutable_properties()->clear_dtype(); }},
      {"lack the field properties.layout",
       [](Message& m) { m.mutable_properties()->clear_layout(); }},
      {"lack the field properties.requires_grad",
       [](Message& m) { m.mutable_properties()->clear_requires_grad(); }},
      {"lack the field properties.memory_format",
       [](Message& m) { m.mutable_properties()->clear_memory_format(); }},
      {"lack the field properties.pin_memory",
       [](Message& m) { m.mutable_properties()->clear_pin_memory(); }},
      {"lack the field shards.dims",
       [](Message& m) { m.mutable_shards()->clear_dims(); }},
      {"dtype has the number 21, expected 0 to 20",
       [](Message& m) {
         m.mutable_properties()->set_dtype(static_cast<proto::DType>(21));
       }},
      {"layout has the number 99, expected 0 to 2",
       [](Message& m) {
         m.mutable_properties()->set_layout(static_cast<proto::Layout>(99));
       }},
      {"memory_format has the number -1, expected 0 to 2",
       [](Message& m) {
         m.mutable_properties()->set_memory_format(
             static_cast<proto::MemoryFormat>(-1));
       }},
      {"the size of the tensor: ", [](Message& m) { m.set_size(1, -300); }},
      {"the size of the tensor: ",
       [](Message& m) {
         m.set_size(0, INT64_MAX);
         m.set_size(1, INT64_MAX);
       }},
      {"dimensions, expected at most 64",
       [](Message& m) { m.mutable_shards()->set_dims(65); }},
      {"dimensions, expected at most 64",
       [](Message& m) { m.mutable_shards()->set_dims(UINT32_MAX); }},
      {"there are 12 entries in shard_offset, expected 18 for 6 shards in 3",
       [](Message& m) { m.mutable_shards()->set_dims(3); }},
      {"there are 13 entries in shard_size, expected 12",
       [](Message& m) { m.mutable_shards()->add_shard_size(1); }},
      {"there are 12 entries in shard_offset, expected 14",
       [](Message& m) { m.mutable_shards()->add_shard_placement(1); }},
      {"the tensor has 0 dimensions, its shards 2",
       [](Message& m) { m.clear_size(); }},
      {"the tensor has 1 dimensions, its shards 0",
       [](Message& m) {
         m.mutable_shards()->Clear();
         m.mutable_shards()->set_dims(0);
         m.clear_size();
         m.add_size(0);
       }},
      {"shard 4 has placement 5 of 4",
       [](Message& m) { m.mutable_shards()->set_shard_placement(4, 5); }},
      {"placement 1: Could not parse remote_device: 'rank:x'",
       [](Message& m) { m.mutable_shards()->set_placement(1, "rank:x"); }},
      {"placement 3: Expected one of cpu, cuda, meta",
       [](Message& m) { m.mutable_shards()->set_placement(3, "rank:1/tpu"); }},
      {"has 1025 bytes, expected at most 1024",
       [](Message& m) {
         m.mutable_shards()->set_placement(0, std::string(1025, 'w'));
       }},
      // With its device, "/cpu".
      {"has 1028 bytes, expected at most 1024",
       [](Message& m) {
         m.mutable_shards()->set_placement(0, std::string(1024, 'w'));
       }},
      {"shard_offsets should be >=0",
       [](Message& m) { m.mutable_shards()->set_shard_offset(0, -1); }},
      {"shard_sizes should be >= 0",
       [](Message& m) { m.mutable_shards()->set_shard_size(11, INT64_MIN); }},
      {"does not fit in 64 bits",
       [](Message& m) { m.mutable_shards()->set_shard_offset(2, INT64_MAX); }},
      {"overlap",
       [](Message& m) { m.mutable_shards()->set_shard_offset(2, 1); }},
      // Replicas on one place.
      {"overlap",
       [](Message& m) { m.mutable_shards()->set_shard_placement(2, 2); }},
      {"exceeds tensor dim", [](Message& m) { m.set_size(0, 3); }},
      {"does not match tensor volume", [](Message& m) { m.set_size(0, 5); }},
  };
  for (const Row& row : rows) {
    proto::ShardedTensorMetadata message = SampleMessage();
    row.change(message);
    EXPECT_THAT(ParseMetadata(message.SerializeAsString()),
                StatusIs(row.code, row.message));
  }
}

TEST(MetadataTest, RefusesEveryTruncationAndOtherBytes) {
  const std::string bytes = SerializeMetadata(SampleMetadata()).value();
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THAT(ParseMetadata(bytes.substr(0, length)), StatusIs(kLoss))
        << length;
  }
  EXPECT_THAT(ParseMetadata(std::string("\x80\x02}q\x00.", 6)),
              StatusIs(kLoss,
                       "6 bytes are not a message "
                       "sherd.sharding.v1.ShardedTensorMetadata"));
  // More than any message has; not read.
  EXPECT_THAT(
      ParseMetadata(absl::string_view(bytes.data(), (size_t{1} << 30) + 1)),
      StatusIs(kLoss, "there are 1073741825 bytes, expected at most"));
}

TEST(MetadataTest, FieldsOfALaterReleaseAreIgnored) {
  const std::string bytes = SerializeMetadata(SampleMetadata()).value();
  // Field 100, a varint, and field 101, a text.
  const std::string later("\xa0\x06\x01\xaa\x06\x02hi", 8);
  EXPECT_THAT(ParseMetadata(bytes + later), IsOkAndHolds(SampleMetadata()));
}

TEST(SpecBytesTest, SurviveAndMatchTheGoldenFilesOfVersion1) {
  const std::vector<ShardingSpecPtr> specs = SampleSpecs();
  for (size_t i = 0; i < specs.size(); ++i) {
    SCOPED_TRACE(specs[i]->ToString());
    const std::string golden =
        ReadGolden(absl::StrCat("sharding_spec_", i, ".binpb"));
    EXPECT_THAT(SerializeSpec(specs[i]), IsOkAndHolds(golden));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardingSpecPtr again, ParseSpec(golden));
    EXPECT_EQ(*again, *specs[i]);
  }
}

// Derived classes keep the rule of their base, but are not it.
class MyChunks : public ChunkShardingSpec {
 public:
  explicit MyChunks(const ChunkShardingSpec& chunks)
      : ChunkShardingSpec(chunks) {}
};

TEST(SpecBytesTest, RefusesToSerialize) {
  const auto chunks = ChunkShardingSpec::Create(0, {"rank:0"}).value();
  const Placement long_name = Placement::OnWorker(std::string(1021, 'w'));
  const auto mesh = [&](size_t dims, std::vector<std::vector<int>> cuts) {
    return MeshShardingSpec::Create(
               {.shape = Dims(dims, 1), .placements = {"rank:0"}},
               std::move(cuts))
        .value();
  };
  std::vector<std::vector<int>> cuts(65);
  cuts[63] = {0};
  EXPECT_THAT(SerializeSpec(mesh(64, cuts)), testing::IsOk());
  std::swap(cuts[63], cuts[64]);
  EXPECT_THAT(SerializeSpec(mesh(64, cuts)),
              StatusIs(kInvalid, "cuts dimension 64 of a tensor"));
  EXPECT_THAT(SerializeSpec(mesh(65, {})),
              StatusIs(kInvalid, "65 dimensions, expected at most 64"));
  EXPECT_THAT(SerializeSpec(nullptr),
              StatusIs(kInvalid, "Expecting ShardingSpec"));
  EXPECT_THAT(SerializeSpec(std::make_shared<MyChunks>(*chunks)),
              StatusIs(kMissing, "a class of your own"));
  for (const ShardingSpecPtr& spec : std::vector<ShardingSpecPtr>{
           ChunkShardingSpec::Create(0, {long_name}).value(),
           EnumerableShardingSpec::Create({{{0}, {1}, long_name}}).value(),
           MeshShardingSpec::Create({.shape = {}, .placements = {long_name}},
                                    {})
               .value()}) {
    EXPECT_THAT(SerializeSpec(spec),
                StatusIs(kInvalid, "has 1025 bytes, expected at most 1024"));
  }
}

TEST(SpecBytesTest, RefusesToParse) {
  struct Row {
    size_t sample;
    const char* message;
    std::function<void(proto::ShardingSpec&)> change;
    absl::StatusCode code = kLoss;
  };
  using Message = proto::ShardingSpec;
  const Row rows[] = {
      {0, "lack the field version", [](Message& m) { m.clear_version(); }},
      {0, "version 7 wrote the bytes", [](Message& m) { m.set_version(7); },
       kMissing},
      {0, "lack a chunk, enumerable or mesh spec",
       [](Message& m) { m.clear_spec(); }},
      {0, "lack the field chunk.dim",
       [](Message& m) { m.mutable_chunk()->clear_dim(); }},
      {0, "placement",
       [](Message& m) { m.mutable_chunk()->clear_placement(); }},
      {0, "placement 2: Could not parse remote_device",
       [](Message& m) { m.mutable_chunk()->set_placement(2, "/"); }},
      {1, "lack the field shards.dims",
       [](Message& m) { m.mutable_enumerable()->clear_shards(); }},
      {1, "Empty shard list provided",
       [](Message& m) {
         m.mutable_enumerable()->clear_shards();
         m.mutable_enumerable()->mutable_shards()->set_dims(1);
       }},
      {1, "overlap",
       [](Message& m) {
         m.mutable_enumerable()->mutable_shards()->set_shard_offset(2, 1);
       }},
      {2, "the mesh has 65 dimensions",
       [](Message& m) {
         for (int i = 3; i < 65; ++i) m.mutable_mesh()->add_shape(1);
       }},
      {2, "Invalid mesh shape",
       [](Message& m) { m.mutable_mesh()->set_shape(0, int64_t{1} << 62); }},
      {2, "places, but there are 4 placements",
       [](Message& m) { m.mutable_mesh()->set_shape(1, 1000000000); }},
      {2, "there are 3 entries in cut_dim, expected 4",
       [](Message& m) { m.mutable_mesh()->add_cut_mesh_dim(1); }},
      {2, "Invalid mesh dim: 3, expected each in [0, 3)",
       [](Message& m) { m.mutable_mesh()->set_cut_mesh_dim(0, 3); }},
      {2, "Invalid mesh dim: 0",
       [](Message& m) { m.mutable_mesh()->set_cut_mesh_dim(0, 0); }},
      {2, "cuts dimension 2147483647 of a tensor",
       [](Message& m) { m.mutable_mesh()->set_cut_dim(2, INT32_MAX); }},
      {3, "cuts dimension -65 of a tensor",
       [](Message& m) { m.mutable_mesh()->set_cut_dim(1, -65); }},
      {3, "Invalid mesh dim: 0",
       [](Message& m) { m.mutable_mesh()->set_cut_mesh_dim(1, 0); }},
  };
  for (const Row& row : rows) {
    proto::ShardingSpec message = SampleSpecMessage(row.sample);
    row.change(message);
    EXPECT_THAT(ParseSpec(message.SerializeAsString()),
                StatusIs(row.code, row.message));
  }
}

TEST(SpecBytesTest, RefuseEveryTruncationAndTheOtherMessage) {
  const std::string metadata = SerializeMetadata(SampleMetadata()).value();
  EXPECT_THAT(ParseSpec(metadata), StatusIs(kLoss, "another message"));
  for (const ShardingSpecPtr& spec : SampleSpecs()) {
    const std::string bytes = SerializeSpec(spec).value();
    EXPECT_THAT(ParseMetadata(bytes), StatusIs(kLoss, "another message"));
    for (size_t length = 0; length < bytes.size(); ++length) {
      EXPECT_THAT(ParseSpec(bytes.substr(0, length)), StatusIs(kLoss))
          << length;
    }
  }
}

}  // namespace
}  // namespace sherd
