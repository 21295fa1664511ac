#include "sherd/serialization/archive/state_codec.h"

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/serialization/archive.h"
#include "sherd/serialization/archive/archive_layout.h"
#include "sherd/serialization/archive/saved_state.h"
#include "sherd/serialization/archive/state_memory.h"
#include "sherd/serialization/kits/sample_archive.h"
#include "sherd/serialization/metadata.h"
#include "sherd/serialization/proto/sharding.pb.h"
#include "sherd/serialization/proto/state.pb.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

namespace proto = state::v1;

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

constexpr absl::StatusCode kDataLoss = absl::StatusCode::kDataLoss;

// What an archive has as its message.
proto::State MessageOf(const StateDict& state) {
  const std::string bytes = SaveToString(state).value();
  const int64_t length = ParseArchivePrefix(bytes).value();
  proto::State message;
  EXPECT_TRUE(message.ParseFromString(
      bytes.substr(kArchivePrefixBytes, static_cast<size_t>(length))));
  return message;
}

// "x": a float32 tensor of [2, 3]; "list": 1 and 2; "st": SampleShards().
proto::State SampleMessage() {
  StateDict state;
  EXPECT_THAT(state.Set("x", *CountingTensor({2, 3})), IsOk());
  EXPECT_THAT(state.Set("list[0]", 1), IsOk());
  EXPECT_THAT(state.Set("list[1]", 2), IsOk());
  EXPECT_THAT(state.Set("st", *SampleShards()), IsOk());
  return MessageOf(state);
}

proto::Value* ValueAt(proto::State& m, int index) {
  return m.mutable_value(index);
}
proto::Tensor& X(proto::State& m) { return *ValueAt(m, 1)->mutable_tensor(); }
proto::ShardedTensor& St(proto::State& m) {
  return *ValueAt(m, 5)->mutable_sharded_tensor();
}

struct Damage {
  const char* what;
  std::function<void(proto::State&)> apply;
  const char* message;
  absl::StatusCode code = kDataLoss;
};

std::ostream& operator<<(std::ostream& out, const Damage& damage) {
  return out << damage.what;
}

class StateDamageTest : public ::testing::TestWithParam<Damage> {};

TEST_P(StateDamageTest, IsRefusedByName) {
  proto::State message = SampleMessage();
  ASSERT_THAT(DecodeState(message.SerializeAsString()), IsOk());
  GetParam().apply(message);
  EXPECT_THAT(DecodeState(message.SerializeAsString()),
              StatusIs(GetParam().code, GetParam().message));
}

using M = proto::State;

INSTANTIATE_TEST_SUITE_P(
    Tree, StateDamageTest,
    ::testing::Values(
        Damage{"no version", [](M& m) { m.clear_version(); },
               "the field version is missing"},
        Damage{"version 0", [](M& m) { m.set_version(0); }, "the version is 0"},
        Damage{"later version", [](M& m) { m.set_version(2); },
               "version 2 wrote the state, this build reads 1 to 1",
               absl::StatusCode::kUnimplemented},
        Damage{"no values", [](M& m) { m.clear_value(); },
               "the field value is missing"},
        Damage{"no blocks", [](M& m) { m.clear_blocks(); },
               "the field blocks is missing"},
        Damage{"no map at the top", [](M& m) { ValueAt(m, 0)->set_integer(1); },
               "the first value is not a map"},
        Damage{"a list at the top", [](M& m) { ValueAt(m, 0)->set_list(3); },
               "the first value is not a map"},
        Damage{"a key at the top", [](M& m) { ValueAt(m, 0)->set_key("k"); },
               "a value outside of a map has a key"},
        Damage{"values are missing", [](M& m) { ValueAt(m, 0)->set_map(4); },
               "a map or list lacks 1 values"},
        Damage{"too many values", [](M& m) { ValueAt(m, 0)->set_map(2); },
               "values follow the end of the map at the top"},
        Damage{"a list of 2^40",
               [](M& m) { ValueAt(m, 2)->set_list(uint64_t{1} << 40); },
               "\"list\": it has 1099511627776 values"},
        Damage{"no key", [](M& m) { ValueAt(m, 1)->clear_key(); },
               "a value in a map has no key"},
        Damage{"an empty key", [](M& m) { ValueAt(m, 1)->set_key(""); },
               "a value in a map has no key"},
        Damage{"a key in a list", [](M& m) { ValueAt(m, 3)->set_key("k"); },
               "a value outside of a map has a key"},
        Damage{"a key twice", [](M& m) { ValueAt(m, 5)->set_key("x"); },
               "the key \"x\" occurs twice"},
        Damage{"no kind", [](M& m) { ValueAt(m, 4)->clear_value(); },
               "\"list[1]\": it is of no kind that this build knows"},
        Damage{"too deep",
               [](M& m) {
                 m.clear_value();
                 m.mutable_blocks()->clear_block_bytes();
                 m.add_value()->set_map(1);
                 for (int i = 0; i < 101; ++i) {
                   proto::Value* const value = m.add_value();
                   if (i == 0) value->set_key("k");
                   value->set_list(i == 100 ? 0 : 1);
                 }
               },
               "nested deeper than 100"}));

INSTANTIATE_TEST_SUITE_P(
    Blocks, StateDamageTest,
    ::testing::Values(
        Damage{"chunks of 0",
               [](M& m) { m.mutable_blocks()->set_chunk_bytes(0); },
               "chunks have 0 bytes"},
        Damage{"large chunks",
               [](M& m) { m.mutable_blocks()->set_chunk_bytes((1 << 26) + 1); },
               "chunks have 67108865 bytes"},
        Damage{"no chunk_bytes",
               [](M& m) { m.mutable_blocks()->clear_chunk_bytes(); },
               "blocks.chunk_bytes is missing"},
        Damage{"a long writer",
               [](M& m) {
                 m.mutable_blocks()->set_writer(std::string(1025, 'w'));
               },
               "the name of the writer has 1025 bytes"},
        Damage{"an empty block",
               [](M& m) { m.mutable_blocks()->set_block_bytes(0, 0); },
               "block 0 has 0 bytes"},
        Damage{"a block of 2^63",
               [](M& m) {
                 m.mutable_blocks()->set_block_bytes(0, uint64_t{1} << 63);
               },
               "block 0 has 9223372036854775808 bytes"},
        Damage{"a block of nothing",
               [](M& m) { m.mutable_blocks()->add_block_bytes(7); },
               "block 3 is of no tensor"},
        Damage{"a short block",
               [](M& m) { m.mutable_blocks()->set_block_bytes(0, 23); },
               "\"x\": a float32 tensor of [2, 3] with strides [3, 1] at byte "
               "0 is not inside its block of 23 bytes"}));

INSTANTIATE_TEST_SUITE_P(
    Tensors, StateDamageTest,
    ::testing::Values(
        Damage{"no properties", [](M& m) { X(m).clear_properties(); },
               "\"x\": the field properties is missing"},
        Damage{"an unknown dtype",
               [](M& m) {
                 X(m).mutable_properties()->set_dtype(
                     static_cast<sharding::v1::DType>(21));
               },
               "dtype has the number 21"},
        Damage{"sparse",
               [](M& m) {
                 X(m).mutable_properties()->set_layout(
                     sharding::v1::LAYOUT_SPARSE_COO);
               },
               "the layout is not strided"},
        Damage{"requires_grad",
               [](M& m) { X(m).mutable_properties()->set_requires_grad(true); },
               "requires_grad is set"},
        Damage{"an unknown format",
               [](M& m) {
                 X(m).mutable_properties()->set_memory_format(
                     static_cast<sharding::v1::MemoryFormat>(3));
               },
               "memory_format has the number 3"},
        Damage{"channels_last of two dimensions",
               [](M& m) {
                 X(m).mutable_properties()->set_memory_format(
                     sharding::v1::MEMORY_FORMAT_CHANNELS_LAST);
               },
               "channels_last, which [2, 3] does not have"},
        Damage{"pinned on a device",
               [](M& m) {
                 X(m).mutable_properties()->set_pin_memory(true);
                 X(m).set_device("cuda:0");
               },
               "a tensor on cuda:0 is pinned"},
        Damage{"a device of no kind", [](M& m) { X(m).set_device("gpu"); },
               "\"x\": Expected one of cpu, cuda, meta"},
        Damage{"negative size", [](M& m) { X(m).set_size(0, -2); }, "\"x\": "},
        Damage{"a size that overflows",
               [](M& m) { X(m).set_size(0, int64_t{1} << 62); }, "\"x\": "},
        Damage{"65 dimensions",
               [](M& m) {
                 for (int i = 0; i < 63; ++i) X(m).add_size(1);
               },
               "\"x\": "},
        Damage{"strides of a contiguous tensor",
               [](M& m) { X(m).add_stride(1); }, "has 1 strides"},
        Damage{"a stride too few",
               [](M& m) {
                 X(m).mutable_properties()->set_memory_format(
                     sharding::v1::MEMORY_FORMAT_PRESERVE);
                 X(m).add_stride(1);
               },
               "has 1 strides"},
        Damage{"a negative stride",
               [](M& m) {
                 X(m).mutable_properties()->set_memory_format(
                     sharding::v1::MEMORY_FORMAT_PRESERVE);
                 X(m).add_stride(1);
                 X(m).add_stride(-1);
               },
               "or a negative one"},
        Damage{"strides that overflow",
               [](M& m) {
                 X(m).mutable_properties()->set_memory_format(
                     sharding::v1::MEMORY_FORMAT_PRESERVE);
                 X(m).add_stride(int64_t{1} << 62);
                 X(m).add_stride(int64_t{1} << 62);
               },
               "is not inside its block"},
        Damage{"a block that is not there", [](M& m) { X(m).set_block(4); },
               "a tensor is in block 4 of 3"},
        Damage{"elements without a block", [](M& m) { X(m).set_block(0); },
               "a tensor of [2, 3] on cpu has block 0"},
        Damage{"no elements in a block", [](M& m) { X(m).set_size(0, 0); },
               "a tensor of [0, 3] on cpu has block 1"},
        Damage{"meta in a block", [](M& m) { X(m).set_device("meta"); },
               "a tensor of [2, 3] on meta has block 1"},
        Damage{"past the end", [](M& m) { X(m).set_offset(4); },
               "at byte 4 is not inside its block"},
        Damage{"an offset of 2^64 - 4",
               [](M& m) { X(m).set_offset(~uint64_t{3}); },
               "is not inside its block"},
        Damage{"not aligned",
               [](M& m) {
                 m.mutable_blocks()->set_block_bytes(0, 26);
                 X(m).set_offset(2);
               },
               "or is not aligned"},
        Damage{"no offset", [](M& m) { X(m).clear_offset(); },
               "the field offset is missing"},
        Damage{"no block", [](M& m) { X(m).clear_block(); },
               "the field block is missing"}));

INSTANTIATE_TEST_SUITE_P(
    ShardedTensors, StateDamageTest,
    ::testing::Values(
        Damage{"no metadata", [](M& m) { St(m).clear_metadata(); },
               "\"st\": the field metadata is missing"},
        Damage{"broken metadata", [](M& m) { St(m).set_metadata("x"); },
               "\"st\": sharded tensor metadata: "},
        Damage{"a broken spec", [](M& m) { St(m).set_spec("x"); },
               "\"st\": sharding spec: "},
        Damage{"the spec of another tensor",
               [](M& m) {
                 St(m).set_spec(
                     SerializeSpec(*ChunkShardingSpec::Create(1, {"rank:0"}))
                         .value());
               },
               "builds other shards than the metadata has"},
        Damage{"no init_rrefs", [](M& m) { St(m).clear_init_rrefs(); },
               "the field init_rrefs is missing"},
        Damage{"published without a group",
               [](M& m) { St(m).set_init_rrefs(true); },
               "a tensor without a group has init_rrefs"},
        Damage{"half a group", [](M& m) { St(m).mutable_group()->set_rank(1); },
               "the field group is missing"},
        Damage{"a shard too few",
               [](M& m) { St(m).mutable_shard()->RemoveLast(); },
               "there are 1 shards, expected 2"},
        Damage{"an index too high", [](M& m) { St(m).set_shard_index(1, 3); },
               "shard 1 is number 3 of 3"},
        Damage{"an index twice", [](M& m) { St(m).set_shard_index(1, 0); },
               "expected ascending numbers"},
        Damage{"a shard of another dtype",
               [](M& m) {
                 St(m).mutable_shard(0)->mutable_properties()->set_dtype(
                     sharding::v1::DTYPE_BFLOAT16);
               },
               "shard 0 is bfloat16 [1, 2], but int16 [1, 2] in the metadata"},
        Damage{"a shard of another size",
               [](M& m) { St(m).mutable_shard(1)->set_size(1, 1); },
               "shard 1 is int16 [1, 1], but int16 [1, 2]"},
        // Copies of it could be larger than the archive.
        Damage{"a shard of a group that is a view",
               [](M& m) {
                 proto::GroupState& group = *St(m).mutable_group();
                 group.set_rank(0);
                 group.set_global_rank(0);
                 group.set_size(3);
                 group.set_world_size(3);
                 proto::Tensor& shard = *St(m).mutable_shard(0);
                 shard.mutable_properties()->set_memory_format(
                     sharding::v1::MEMORY_FORMAT_PRESERVE);
                 shard.add_stride(0);
                 shard.add_stride(0);
               },
               "shard 0 of a tensor with a group is not contiguous: sizes "
               "[1, 2], strides [0, 0]"},
        // It would be loaded once for each.
        Damage{"a block on two devices",
               [](M& m) {
                 proto::Tensor& shard = *St(m).mutable_shard(1);
                 shard.set_device("cuda:0");
                 shard.set_block(St(m).shard(0).block());
               },
               "has tensors on cpu and on cuda:0"}));

TEST(StateCodecTest, FieldsOfLaterReleasesAreIgnored) {
  std::string bytes = SampleMessage().SerializeAsString();
  bytes += std::string("\xa2\x06\x03new", 6);  // Field 100, of 3 bytes.
  EXPECT_THAT(DecodeState(bytes), IsOk());
}

TEST(StateCodecTest, EachTruncationIsRefused) {
  const std::string bytes = SampleMessage().SerializeAsString();
  for (size_t length = 0; length < bytes.size(); ++length) {
    ASSERT_THAT(DecodeState(bytes.substr(0, length)), StatusIs(kDataLoss))
        << length;
  }
}

// A small message may not fill a large memory: the name of a worker is in it
// once, and in the shards of every tensor.
TEST(StateCodecTest, TheMemoryOfAllTensorsIsBounded) {
  constexpr int64_t kShards = 1000;
  ShardedTensorMetadata metadata = {.size = {kShards}};
  for (int64_t i = 0; i < kShards; ++i) {
    metadata.shards.push_back(
        {{i}, {1}, Placement(std::string(1000, 'w') + "/cpu")});
  }
  proto::State message;
  message.set_version(1);
  message.mutable_blocks()->set_chunk_bytes(1);
  message.add_value()->set_map(20);
  for (int i = 0; i < 20; ++i) {
    proto::Value& value = *message.add_value();
    value.set_key(absl::StrCat(i));
    value.mutable_sharded_tensor()->set_metadata(
        SerializeMetadata(metadata).value());
    value.mutable_sharded_tensor()->set_init_rrefs(false);
  }
  const std::string bytes = message.SerializeAsString();
  EXPECT_LT(bytes.size(), 300'000);
  EXPECT_THAT(DecodeState(bytes), IsOk());
  EXPECT_THAT(DecodeState(bytes, 25'000'000),
              StatusIs(kDataLoss,
                       "the state would take more than "
                       "25000000 bytes in memory"));
}

TEST(StateCodecTest, TheMemoryOfAllValuesIsBounded) {
  proto::State message;
  message.set_version(1);
  message.mutable_blocks()->set_chunk_bytes(1);
  message.add_value()->set_map(1);
  proto::Value& list = *message.add_value();
  list.set_key("list");
  list.set_list(10'000);
  for (int i = 0; i < 10'000; ++i) message.add_value()->mutable_none();
  const std::string bytes = message.SerializeAsString();
  EXPECT_LT(bytes.size(), 50'000);
  EXPECT_THAT(DecodeState(bytes), IsOk());
  EXPECT_THAT(DecodeState(bytes, 1'000'000),
              StatusIs(kDataLoss, "the state would take more than 1000000"));
}

// A value that is small and takes much memory while it is parsed, or what is
// made of it does.
struct Swelling {
  const char* what;
  std::function<void(proto::ShardedTensor&)> apply;
};

std::ostream& operator<<(std::ostream& out, const Swelling& swelling) {
  return out << swelling.what;
}

class StateMemoryTest : public ::testing::TestWithParam<Swelling> {};

constexpr int kMany = 100'000;

// No message of ours is that: whether its memory is counted shows in the error.
TEST_P(StateMemoryTest, IsCountedBeforeItIsTaken) {
  proto::State message = SampleMessage();
  GetParam().apply(St(message));
  const std::string bytes = message.SerializeAsString();
  EXPECT_LT(bytes.size(), 1'000'000);
  EXPECT_THAT(DecodeState(bytes, 10 * kMany),
              StatusIs(kDataLoss, "the state would take more than"));
}

INSTANTIATE_TEST_SUITE_P(
    All, StateMemoryTest,
    ::testing::Values(Swelling{"shards",
                               [](proto::ShardedTensor& m) {
                                 for (int i = 0; i < kMany; ++i) m.add_shard();
                               }},
                      Swelling{"shard_index",
                               [](proto::ShardedTensor& m) {
                                 for (int i = 0; i < kMany; ++i)
                                   m.add_shard_index(0);
                               }},
                      Swelling{"sizes",
                               [](proto::ShardedTensor& m) {
                                 for (int i = 0; i < kMany; ++i) {
                                   m.mutable_shard(0)->add_size(1);
                                 }
                               }},
                      Swelling{"placements",
                               [](proto::ShardedTensor& m) {
                                 sharding::v1::ShardedTensorMetadata metadata;
                                 for (int i = 0; i < kMany; ++i) {
                                   metadata.mutable_shards()->add_placement("");
                                 }
                                 m.set_metadata(metadata.SerializeAsString());
                               }},
                      Swelling{
                          "shard_placement",
                          [](proto::ShardedTensor& m) {
                            sharding::v1::ShardedTensorMetadata metadata;
                            for (int i = 0; i < kMany; ++i) {
                              metadata.mutable_shards()->add_shard_placement(0);
                            }
                            m.set_metadata(metadata.SerializeAsString());
                          }},
                      Swelling{"placements of a spec",
                               [](proto::ShardedTensor& m) {
                                 sharding::v1::ShardingSpec spec;
                                 for (int i = 0; i < kMany; ++i) {
                                   spec.mutable_chunk()->add_placement("");
                                 }
                                 m.set_spec(spec.SerializeAsString());
                               }},
                      Swelling{"unknown fields", [](proto::ShardedTensor& m) {
                                 auto* const unknown =
                                     m.GetReflection()->MutableUnknownFields(
                                         &m);
                                 for (int i = 0; i < kMany; ++i)
                                   unknown->AddVarint(100, 1);
                               }}));

// Whatever is saved can be loaded.
TEST(StateCodecTest, WhatADecoderRefusesForItsMemoryIsNotEncoded) {
  SHERD_ASSERT_OK_AND_ASSIGN(const SavedState state,
                             DecodeState(SampleMessage().SerializeAsString()));
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, EncodeState(state));
  SHERD_ASSERT_OK_AND_ASSIGN(const int64_t memory, StateMemory(bytes));
  EXPECT_THAT(DecodeState(bytes, memory), IsOk());
  EXPECT_THAT(DecodeState(bytes, memory - 1), StatusIs(kDataLoss));
  EXPECT_THAT(EncodeState(state, memory), IsOkAndHolds(bytes));
  EXPECT_THAT(EncodeState(state, memory - 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       absl::StrCat("may take ", memory, " bytes")));
}

// "x", a tensor; "list": 1 and 2.
std::vector<SavedValue> SampleTree() {
  return {{"", SavedItems{true, 2}},
          {"x", StoredTensor()},
          {"list", SavedItems{false, 2}},
          {"", StateValue(1)},
          {"", StateValue(2)}};
}

TEST(StateCodecTest, TheTreeOfACheckpointHasNoBlocks) {
  const std::string bytes = EncodeTree(SampleTree()).value();
  int64_t memory = 0;
  const auto decoded = DecodeTree(bytes, memory);
  ASSERT_THAT(decoded, IsOk());
  EXPECT_EQ(memory, StateMemory(bytes).value());
  EXPECT_TRUE(std::holds_alternative<StoredTensor>(decoded->values[1].value));
  EXPECT_THAT(EncodeTree(decoded->values), IsOkAndHolds(bytes));
  // Neither is the other.
  EXPECT_THAT(DecodeState(bytes), StatusIs(kDataLoss, HasSubstr("blocks")));
  EXPECT_THAT(DecodeTree(SampleMessage().SerializeAsString(), memory),
              StatusIs(kDataLoss, HasSubstr("tree of an archive")));
  proto::State message = SampleMessage();
  ValueAt(message, 1)->mutable_stored_tensor();
  EXPECT_THAT(
      DecodeState(message.SerializeAsString()),
      StatusIs(kDataLoss, HasSubstr("\"x\": it is a tensor of a checkpoint")));
  message = SampleMessage();
  message.clear_blocks();
  EXPECT_THAT(
      DecodeTree(message.SerializeAsString(), memory),
      StatusIs(kDataLoss, HasSubstr("\"x\": it is a tensor of an archive")));
}

TEST(StateCodecTest, TheMemoryOfAllTreesIsBounded) {
  const std::string bytes = EncodeTree(SampleTree()).value();
  int64_t memory = kMaxStateMemory - StateMemory(bytes).value();
  EXPECT_THAT(DecodeTree(bytes, memory), IsOk());
  EXPECT_THAT(DecodeTree(bytes, memory),
              StatusIs(kDataLoss, HasSubstr("bytes in memory")));
}

}  // namespace
}  // namespace sherd::internal
