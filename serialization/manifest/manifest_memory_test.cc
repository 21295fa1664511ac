#include "sherd/serialization/manifest/manifest_memory.h"

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/serialization/kits/sample_manifest_v1.h"
#include "sherd/serialization/manifest/manifest_codec_v1.h"
#include "sherd/serialization/proto/checkpoint.pb.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/testing/kits/allocation_counter.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::PeakMemory;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Proto = checkpoint::v1::Manifest;

constexpr int kMany = 20000;

void AppendNumber(uint64_t value, int bytes, std::string& text) {
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
}

// Puts `message` into the frame of a manifest.
std::string Framed(const std::string& message) {
  std::string text("SHERD\r\n\x1a");
  AppendNumber(1, 4, text);
  AppendNumber(message.size(), 8, text);
  text += message;
  AppendNumber(
      Crc32c(absl::MakeSpan(reinterpret_cast<const std::byte*>(text.data()),
                            text.size())),
      4, text);
  return text;
}

// Bytes that decoding the manifest of `message` takes beside it.
int64_t MeasuredMemory(const std::string& message) {
  const std::string bytes = Framed(message);
  const PeakMemory peak;
  const absl::StatusOr<ManifestV1> manifest = DecodeManifestV1(bytes, "m");
  return peak.bytes();
}

// One tensor of `count` elements of a byte, each of them a shard.
Proto ManyShards(int count) {
  Proto proto;
  proto.set_world_size(1);
  proto.set_chunk_bytes(1);
  proto.add_file_name("f");
  proto.add_file_size(count);
  proto.add_file_data_begin(0);
  proto.add_file_header_crc32c(0);
  proto.add_placement("rank:0/cpu");
  proto.add_tensor_name("t");
  proto.add_tensor_dtype(1);
  proto.add_tensor_rank(1);
  proto.add_tensor_size(count);
  proto.add_tensor_flags(0);
  proto.add_tensor_layout(0);
  proto.add_tensor_shards(count);
  for (int i = 0; i < count; ++i) {
    proto.add_shard_file(1);
    proto.add_shard_file_offset(i);
    proto.add_shard_placement(0);
    proto.add_shard_offset(i);
    proto.add_shard_size(1);
    proto.add_chunk_crc32c(0);
  }
  return proto;
}

// Tensors of `rank` dimensions with so many empty shards each.
Proto ManyTensors(int count, int rank, int shards) {
  Proto proto;
  proto.set_world_size(1);
  proto.set_chunk_bytes(1);
  proto.add_placement("");
  for (int i = 0; i < count; ++i) {
    proto.add_tensor_name(absl::StrCat(100000 + i));
    proto.add_tensor_dtype(1);
    proto.add_tensor_rank(rank);
    for (int d = 0; d < rank; ++d) proto.add_tensor_size(0);
    proto.add_tensor_flags(0);
    proto.add_tensor_layout(0);
    proto.add_tensor_shards(shards);
    for (int s = 0; s < shards; ++s) {
      proto.add_shard_file(0);
      proto.add_shard_file_offset(0);
      proto.add_shard_placement(0);
      for (int d = 0; d < rank; ++d) {
        proto.add_shard_offset(0);
        proto.add_shard_size(0);
      }
    }
  }
  return proto;
}

Proto ManyNames(void (*add)(Proto&, int)) {
  Proto proto = ManyShards(1);
  for (int i = 0; i < kMany; ++i) add(proto, i);
  return proto;
}

std::string Repeated(const std::string& field) {
  std::string message = ManyShards(1).SerializeAsString();
  for (int i = 0; i < kMany; ++i) message += field;
  return message;
}

struct Message {
  const char* what;
  std::string (*make)();
};

std::ostream& operator<<(std::ostream& out, const Message& message) {
  return out << message.what;
}

class ManifestMemoryBoundTest : public ::testing::TestWithParam<Message> {};

TEST_P(ManifestMemoryBoundTest, IsNotExceeded) {
  const std::string message = GetParam().make();
  SHERD_ASSERT_OK_AND_ASSIGN(const int64_t bound, ManifestMemory(message));
  const int64_t measured = MeasuredMemory(message);
  EXPECT_LE(static_cast<int64_t>(message.size()) + measured, bound);
  RecordProperty("bound", std::to_string(bound));
  RecordProperty("measured", std::to_string(measured));
}

INSTANTIATE_TEST_SUITE_P(
    All, ManifestMemoryBoundTest,
    ::testing::Values(
        Message{"shards", [] { return ManyShards(kMany).SerializeAsString(); }},
        Message{"empty_shards",
                [] { return ManyTensors(1, 1, kMany).SerializeAsString(); }},
        Message{"shards_of_rank_0",
                [] { return ManyTensors(1, 0, kMany).SerializeAsString(); }},
        Message{"shards_of_rank_5",
                [] { return ManyTensors(1, 5, kMany).SerializeAsString(); }},
        Message{"shards_of_rank_64",
                [] { return ManyTensors(10, 64, 500).SerializeAsString(); }},
        Message{"tensors",
                [] { return ManyTensors(kMany, 0, 0).SerializeAsString(); }},
        Message{"tensors_with_a_shard",
                [] { return ManyTensors(kMany, 2, 1).SerializeAsString(); }},
        Message{"files",
                [] {
                  return ManyNames([](Proto& proto, int i) {
                           proto.add_file_name(absl::StrCat(i));
                           proto.add_file_size(0);
                           proto.add_file_data_begin(0);
                           proto.add_file_header_crc32c(0);
                         })
                      .SerializeAsString();
                }},
        Message{"placements",
                [] {
                  return ManyNames(
                             [](Proto& proto, int) { proto.add_placement(""); })
                      .SerializeAsString();
                }},
        Message{"long_placements",
                [] {
                  return ManyNames([](Proto& proto, int) {
                           proto.add_placement(std::string(40, 'p'));
                         })
                      .SerializeAsString();
                }},
        Message{"crcs",
                [] {
                  return ManyNames([](Proto& proto, int) {
                           proto.add_chunk_crc32c(0);
                         })
                      .SerializeAsString();
                }},
        // Field 100: 7, a text, and 4 and 8 bytes.
        Message{"unknown_numbers",
                [] { return Repeated(std::string("\xa0\x06\x07")); }},
        Message{"unknown_texts",
                [] { return Repeated(std::string("\xa2\x06\x01x")); }},
        Message{"unknown_words",
                [] { return Repeated(std::string("\xa5\x06\0\0\0\0", 6)); }},
        // Field 40, a number for each shard, one by one.
        Message{"unpacked_numbers",
                [] { return Repeated(std::string("\xc0\x02\x00", 3)); }}),
    [](const ::testing::TestParamInfo<Message>& info) {
      return std::string(info.param.what);
    });

TEST(ManifestMemoryTest, TenMillionShardsAreAllowed) {
  const int kShards = 100000;
  SHERD_ASSERT_OK_AND_ASSIGN(
      const int64_t bound,
      ManifestMemory(ManyTensors(kShards / 100, 2, 100).SerializeAsString()));
  EXPECT_LE(bound / kShards, kMaxManifestMemory / 10'000'000);
}

TEST(ManifestMemoryTest, OneThatWouldTakeTooMuchIsRefusedBeforeItIsTaken) {
  const std::string message = ManyTensors(1, 0, kMany).SerializeAsString();
  SHERD_ASSERT_OK_AND_ASSIGN(const int64_t bound, ManifestMemory(message));
  EXPECT_GT(bound, 40 * static_cast<int64_t>(message.size()));
  const std::string bytes = Framed(message);
  const PeakMemory peak;
  EXPECT_THAT(DecodeManifestV1(bytes, "dir/manifest.sherd", bound - 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("dir/manifest.sherd"),
                             HasSubstr(absl::StrCat(message.size(), " bytes")),
                             HasSubstr(absl::StrCat("at most ", bound - 1)),
                             Not(HasSubstr("save fewer")))));
  EXPECT_LT(peak.bytes(), 100000) << "messages and matchers";
  // With as much as it takes, what is wrong with it is found.
  EXPECT_THAT(DecodeManifestV1(bytes, "m", bound),
              StatusIs(absl::StatusCode::kDataLoss));
}

TEST(ManifestMemoryTest, MalformedMessagesAreRefused) {
  const auto damaged =
      StatusIs(absl::StatusCode::kDataLoss, "not a message of the expected");
  for (const std::string& message : {
           std::string("\x80"),  // a tag that does not end
           std::string("\x18"),  // a number that is missing
           std::string("\x18") + std::string(11, '\xff'),  // or does not end
           std::string("\x0a\x02x"),         // a text that is cut short
           std::string("\x0d\x01\x02\x03"),  // 4 bytes
           std::string("\x09\x01\x02\x03"),  // 8 bytes
           std::string("\x0b\x0c"),          // a group
           // Field 40 and a tag of more than 32 bits, which hides it.
           std::string("\xc0\x82\x80\x80\x10\x00", 6),
       }) {
    EXPECT_THAT(ManifestMemory(message), damaged);
    EXPECT_THAT(DecodeManifestV1(Framed(message), "m"), damaged);
  }
  EXPECT_THAT(ManifestMemory(""), IsOk());
}

}  // namespace
}  // namespace sherd
