#include "sherd/rpc/call/arguments.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/struct.pb.h"
#include "gtest/gtest.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call/sample_values.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::CaseCount;
using ::sherd::testing::IsOk;
using ::sherd::testing::RandomSeed;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::StatusCode kArgument = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kLoss = absl::StatusCode::kDataLoss;

template <typename T>
absl::StatusOr<Payload> Encoded(const T& value) {
  return EncodeArguments<T>("m", value);
}
template <typename T>
absl::StatusOr<T> Decoded(Payload payload) {
  std::tuple<T> value;
  absl::Status status = DecodeArguments("m", std::move(payload), value);
  if (!status.ok()) return status;
  return std::get<0>(std::move(value));
}
template <typename T>
absl::StatusOr<T> DecodedBytes(absl::string_view hex) {
  Payload payload;
  payload.values = absl::HexStringToBytes(hex);
  return Decoded<T>(std::move(payload));
}

bool SamePayload(const Payload& a, const Payload& b) {
  if (a.values != b.values || a.references != b.references ||
      a.tensors.size() != b.tensors.size()) {
    return false;
  }
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    if (a.tensors[i].data() != b.tensors[i].data()) return false;
  }
  return true;
}

// The bytes of `value` in hexadecimal; it survives encoding and decoding.
template <typename T>
std::string Hex(const T& value) {
  const absl::StatusOr<Payload> payload = Encoded(value);
  if (!payload.ok()) return payload.status().ToString();
  const absl::StatusOr<T> again = Decoded<T>(*payload);
  if (!again.ok()) return again.status().ToString();
  if (!(*again == value)) return "another value";
  return absl::BytesToHexString(payload->values);
}

TEST(ArgumentsTest, NumbersAreLittleEndian) {
  EXPECT_EQ(Hex(int8_t{-2}), "fe");
  EXPECT_EQ(Hex(uint8_t{200}), "c8");
  EXPECT_EQ(Hex(int16_t{-2}), "feff");
  EXPECT_EQ(Hex(uint16_t{0x1234}), "3412");
  EXPECT_EQ(Hex(int32_t{-3}), "fdffffff");
  EXPECT_EQ(Hex(uint32_t{0x12345678}), "78563412");
  EXPECT_EQ(Hex(std::numeric_limits<int64_t>::min()), "0000000000000080");
  EXPECT_EQ(Hex(uint64_t{0x0123456789abcdef}), "efcdab8967452301");
  EXPECT_EQ(Hex(1.0f), "0000803f");
  EXPECT_EQ(Hex(-2.5), "00000000000004c0");
  EXPECT_EQ(Hex(true), "01");
  EXPECT_EQ(Hex(false), "00");
  EXPECT_EQ(Hex(Colour::kBlue), "0700");
  EXPECT_EQ(Hex(OldEnum{kOldTwo}), "02000000");
}

TEST(ArgumentsTest, FloatsKeepTheirBits) {
  for (const uint64_t bits :
       {uint64_t{0x7ff0000000000001}, uint64_t{0xfff8000000000123},
        uint64_t{0x8000000000000000}, uint64_t{1}}) {
    SHERD_ASSERT_OK_AND_ASSIGN(Payload payload,
                               Encoded(std::bit_cast<double>(bits)));
    SHERD_ASSERT_OK_AND_ASSIGN(const double value,
                               Decoded<double>(std::move(payload)));
    EXPECT_EQ(std::bit_cast<uint64_t>(value), bits);
  }
}

TEST(ArgumentsTest, ListsBeginWithTheirLength) {
  EXPECT_EQ(Hex(std::string()), "00000000");
  EXPECT_EQ(Hex(std::string("a\0b", 3)), "03000000610062");
  EXPECT_EQ(Hex(std::vector<uint16_t>{1, 0xffee}), "020000000100eeff");
  EXPECT_EQ(Hex(std::vector<bool>{true, false, true}), "03000000010001");
  EXPECT_EQ(Hex(std::vector<std::string>{"a", ""}),
            "02000000010000006100000000");
  EXPECT_EQ(Hex(std::array<int16_t, 2>{1, 2}), "01000200");
}

TEST(ArgumentsTest, ProductsAreTheirPartsInOrder) {
  EXPECT_EQ(Hex(std::optional<int8_t>()), "00");
  EXPECT_EQ(Hex(std::optional<int8_t>(5)), "0105");
  EXPECT_EQ(Hex(std::optional<std::optional<int8_t>>(std::in_place)), "0100");
  EXPECT_EQ(Hex(std::pair<bool, int16_t>(true, 3)), "010300");
  EXPECT_EQ(Hex(std::tuple<bool, int16_t, std::string>(true, 3, "x")),
            "0103000100000078");
  EXPECT_EQ(Hex(std::tuple<>()), "");
  EXPECT_EQ(
      Hex(Tree{.label = "r",
               .weight = 1,
               .children = {{.label = "s", .weight = 0, .children = {}}}}),
      "0100000072"
      "000000000000f03f"
      "01000000"
      "0100000073"
      "0000000000000000"
      "00000000");
}

TEST(ArgumentsTest, DurationsAreSecondsAndQuartersOfANanosecond) {
  const auto bytes = [](absl::Duration duration) { return Hex(duration); };
  EXPECT_EQ(bytes(absl::ZeroDuration()), "000000000000000000000000");
  EXPECT_EQ(bytes(absl::Seconds(3) + absl::Nanoseconds(1)),
            "030000000000000004000000");
  EXPECT_EQ(bytes(absl::Nanoseconds(1) / 4), "000000000000000001000000");
  // Just below zero: one second less, and the rest of it.
  EXPECT_EQ(bytes(-absl::Nanoseconds(1) / 4), "ffffffffffffffffff276bee");
  EXPECT_EQ(bytes(absl::InfiniteDuration()), "ffffffffffffff7fffffffff");
  EXPECT_EQ(bytes(-absl::InfiniteDuration()), "0000000000000080ffffffff");
  EXPECT_EQ(bytes(absl::Seconds(std::numeric_limits<int64_t>::max())),
            "ffffffffffffff7f00000000");
  EXPECT_EQ(bytes(absl::Seconds(std::numeric_limits<int64_t>::min())),
            "000000000000008000000000");
  EXPECT_EQ(Hex(absl::FromUnixSeconds(-1)), "ffffffffffffffff00000000");
  EXPECT_EQ(Hex(absl::InfiniteFuture()), "ffffffffffffff7fffffffff");
  EXPECT_EQ(Hex(absl::InfinitePast()), "0000000000000080ffffffff");
}

TEST(ArgumentsTest, MapsOfAnyKindAreInTheOrderOfTheirKeysBytes) {
  // 256 is 00 01, which is less than 01 00.
  constexpr char kNumbers[] =
      "03000000"
      "000103"
      "010001"
      "020002";
  EXPECT_EQ(Hex(std::map<int16_t, int8_t>{{1, 1}, {2, 2}, {256, 3}}), kNumbers);
  EXPECT_EQ(
      Hex(std::map<int16_t, int8_t, std::greater<>>{{1, 1}, {2, 2}, {256, 3}}),
      kNumbers);
  EXPECT_EQ(Hex(std::unordered_map<int16_t, int8_t>{{1, 1}, {2, 2}, {256, 3}}),
            kNumbers);
  EXPECT_EQ(Hex(absl::flat_hash_map<int16_t, int8_t>{{1, 1}, {2, 2}, {256, 3}}),
            kNumbers);
  EXPECT_EQ(Hex(absl::btree_map<int16_t, int8_t>{{1, 1}, {2, 2}, {256, 3}}),
            kNumbers);
  EXPECT_EQ(Hex(std::map<std::string, bool>{{"b", true}, {"a", false}}),
            "02000000"
            "010000006100"
            "010000006201");
}

TEST(ArgumentsTest, TensorsTravelBesideTheValues) {
  const Tensor first = Tensor::Ones({2, 3}).value();
  const Tensor second = Tensor::Zeros({4}).value();
  SHERD_ASSERT_OK_AND_ASSIGN(
      Payload payload,
      (EncodeArguments<Tensor, std::vector<Tensor>>(
          "m", first, std::vector<Tensor>{second, Tensor(), first})));
  EXPECT_EQ(absl::BytesToHexString(payload.values), "0103000000010001");
  ASSERT_EQ(payload.tensors.size(), 3);
  std::tuple<Tensor, std::vector<Tensor>> both;
  ASSERT_THAT(DecodeArguments("m", payload, both), IsOk());
  const auto& [one, others] = both;
  EXPECT_EQ(one.data(), first.data());
  ASSERT_EQ(others.size(), 3);
  EXPECT_EQ(others[0].data(), second.data());
  EXPECT_FALSE(others[1].defined());
  EXPECT_EQ(others[2].data(), first.data());
}

TEST(ArgumentsTest, ShardsKeepTheirMetadata) {
  const Tensor tensor = Tensor::Ones({2, 3}).value();
  Shard shard = {tensor, {{4, 0}, {2, 3}, "rank:1/cpu"}};
  SHERD_ASSERT_OK_AND_ASSIGN(const Payload payload, Encoded(shard));
  EXPECT_EQ(absl::BytesToHexString(payload.values),
            "01"
            "02"
            "0400000000000000"
            "0000000000000000"
            "0200000000000000"
            "0300000000000000"
            "01"
            "0a000000" +
                absl::BytesToHexString("rank:1/cpu"));
  SHERD_ASSERT_OK_AND_ASSIGN(const Shard again, Decoded<Shard>(payload));
  EXPECT_EQ(again.metadata, shard.metadata);
  EXPECT_EQ(again.tensor.data(), tensor.data());
  // Of another worker's device, which its metadata still names.
  shard.metadata.placement = "worker1/cuda:3";
  SHERD_ASSERT_OK_AND_ASSIGN(const Payload elsewhere, Encoded(shard));
  SHERD_ASSERT_OK_AND_ASSIGN(const Shard there, Decoded<Shard>(elsewhere));
  EXPECT_EQ(there.metadata, shard.metadata);
  shard.metadata.placement.reset();
  EXPECT_EQ(Decoded<Shard>(Encoded(shard).value())->metadata, shard.metadata);
}

TEST(ArgumentsTest, RefusesShardsThatAreNotValid) {
  const Tensor tensor = Tensor::Ones({2, 3}).value();
  const auto outcome = [&](ShardMetadata metadata) {
    return Encoded(Shard{tensor, std::move(metadata)});
  };
  EXPECT_THAT(outcome({{0, 0}, {2, 4}, std::nullopt}),
              StatusIs(kArgument, "does not match with metadata"));
  EXPECT_THAT(outcome({{0}, {2, 3}, std::nullopt}), StatusIs(kArgument));
  EXPECT_THAT(outcome({{0, -1}, {2, 3}, std::nullopt}), StatusIs(kArgument));
  EXPECT_THAT(outcome({{0, 0}, {2, 3}, "rank:x/cpu"}), StatusIs(kArgument));
  EXPECT_THAT(
      outcome({{0, 0}, {2, 3}, Placement::OnWorker(std::string(2000, 'w'))}),
      StatusIs(kArgument, "a placement of 2004 bytes"));
  EXPECT_THAT(Encoded(Shard()), StatusIs(kArgument, "is undefined"));
  // The same from a peer.
  EXPECT_THAT(DecodedBytes<Shard>("000000"), StatusIs(kLoss, "is undefined"));
  Payload payload = outcome({{0, 0}, {2, 3}, "rank:1/cpu"}).value();
  const Payload good = payload;
  payload.values[2] = '\xff';
  payload.values[9] = '\xff';
  EXPECT_THAT(Decoded<Shard>(payload), StatusIs(kLoss));
  payload = good;
  payload.values[18] = 5;
  EXPECT_THAT(Decoded<Shard>(payload),
              StatusIs(kLoss, "does not match with metadata"));
  payload = good;
  payload.values[1] = 65;
  EXPECT_THAT(Decoded<Shard>(payload), StatusIs(kLoss, "at most 64"));
  // A second text of the same placement.
  payload = good;
  payload.values.resize(payload.values.size() - 4);
  payload.values[payload.values.size() - 10] = 6;
  EXPECT_THAT(Decoded<Shard>(payload), StatusIs(kLoss, "with its device"));
  // Text of a peer that would control a terminal.
  payload = good;
  payload.values.replace(payload.values.size() - 10, 10, "rank:\x1b[7m\n");
  EXPECT_THAT(Decoded<Shard>(payload),
              StatusIs(kLoss, AllOf(HasSubstr("Could not parse"),
                                    ::testing::Not(HasSubstr("\x1b")),
                                    ::testing::Not(HasSubstr("\n")))));
}

TEST(ArgumentsTest, ReferencesTravelBesideTheValues) {
  using Refs = std::vector<TestRef<Tensor>>;
  const auto handle = std::make_shared<int>(0);
  const Refs refs = {{ReferenceId{1, 2, 3}, handle}, {}, {{4, 5, 6}, nullptr}};
  SHERD_ASSERT_OK_AND_ASSIGN(Payload payload, Encoded(refs));
  EXPECT_EQ(absl::BytesToHexString(payload.values), "03000000010001");
  EXPECT_EQ(payload.references,
            (std::vector<ReferenceId>{{1, 2, 3}, {4, 5, 6}}));
  ASSERT_EQ(payload.references_keep.size(), 2);
  EXPECT_EQ(payload.references_keep[0], handle);
  SHERD_ASSERT_OK_AND_ASSIGN(const Refs again, Decoded<Refs>(payload));
  EXPECT_EQ(again, refs);
  // A receiver that keeps nothing.
  payload.references_keep.clear();
  SHERD_ASSERT_OK_AND_ASSIGN(const Refs bare, Decoded<Refs>(payload));
  EXPECT_EQ(bare[0].id, refs[0].id);
  EXPECT_EQ(bare[0].keep, nullptr);
  // The status of the trait becomes the outcome.
  constexpr absl::StatusCode kState = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(Encoded(TestRef<Tensor>{{-1, 0, 0}, nullptr}),
              StatusIs(kState, "m: argument 1: let go"));
  payload.references[1].owner = -1;
  EXPECT_THAT(Decoded<Refs>(payload),
              StatusIs(kState, HasSubstr("m: argument 1: let go")));
}

TEST(ArgumentsTest, ProtobufMessagesAreTheirBytes) {
  google::protobuf::Duration duration;
  duration.set_seconds(5);
  SHERD_ASSERT_OK_AND_ASSIGN(Payload payload, Encoded(duration));
  EXPECT_EQ(absl::BytesToHexString(payload.values), "020000000805");
  SHERD_ASSERT_OK_AND_ASSIGN(const google::protobuf::Duration again,
                             Decoded<google::protobuf::Duration>(payload));
  EXPECT_EQ(again.seconds(), 5);
  EXPECT_THAT(DecodedBytes<google::protobuf::Duration>("02000000ffff"),
              StatusIs(kLoss, "m: argument 1: expected a Protobuf message"));
  using Map = std::map<std::string, google::protobuf::ListValue>;
  Map map;
  map["x"].add_values()->set_string_value("text");
  SHERD_ASSERT_OK_AND_ASSIGN(payload, Encoded(map));
  SHERD_ASSERT_OK_AND_ASSIGN(const Map same, Decoded<Map>(payload));
  EXPECT_EQ(same.at("x").SerializeAsString(), map["x"].SerializeAsString());
}

TEST(ArgumentsTest, NamesTheArgumentThatIsWrong) {
  Payload payload = EncodeArguments<bool, int32_t, std::string>(
                        "scale", true, 1, std::string("text"))
                        .value();
  payload.values.pop_back();
  std::tuple<bool, int32_t, std::string> three;
  EXPECT_THAT(DecodeArguments("scale", payload, three),
              StatusIs(kLoss,
                       "scale: argument 3: expected 4 elements of at least 1 "
                       "bytes, found 3 bytes at byte 9 of 12"));
  std::tuple<bool, int32_t> two;
  EXPECT_THAT(DecodeArguments("scale", payload, two),
              StatusIs(kLoss, "scale: argument 2: expected no more bytes"));
  std::tuple<> none;
  EXPECT_THAT(DecodeArguments("scale", payload, none),
              StatusIs(kLoss, "scale: arguments: expected no more bytes"));
  EXPECT_THAT(DecodeResult<int64_t>("scale", Payload{.values = "abc"}),
              StatusIs(kLoss, "scale: result: expected 8 bytes, found 3"));
}

TEST(ArgumentsTest, ResultsAreErrorsOrValues) {
  EXPECT_THAT(EncodeResult("m", absl::NotFoundError("gone")),
              StatusIs(absl::StatusCode::kNotFound, "gone"));
  EXPECT_THAT(
      EncodeResult<int>("m", absl::StatusOr<int>(absl::NotFoundError("gone"))),
      StatusIs(absl::StatusCode::kNotFound, "gone"));
  SHERD_ASSERT_OK_AND_ASSIGN(Payload none, EncodeResult("m", absl::OkStatus()));
  EXPECT_EQ(none.values, "");
  EXPECT_EQ(DecodeResult<void>("m", none), absl::OkStatus());
  EXPECT_THAT(DecodeResult<void>("m", absl::AbortedError("why")),
              StatusIs(absl::StatusCode::kAborted, "why"));
  EXPECT_THAT(DecodeResult<void>("m", Payload{.values = "x"}), StatusIs(kLoss));
  SHERD_ASSERT_OK_AND_ASSIGN(Payload seven,
                             EncodeResult<int32_t>("m", int32_t{7}));
  EXPECT_EQ(DecodeResult<int32_t>("m", seven).value(), 7);
}

// Malformed bytes, for a type each.
struct BadBytes {
  const char* what;
  std::function<absl::Status()> decode;
  const char* message;
};

template <typename T>
BadBytes Bad(const char* hex, const char* message) {
  return {hex, [hex] { return DecodedBytes<T>(hex).status(); }, message};
}

TEST(ArgumentsTest, RefusesMalformedValues) {
  using Numbers = std::map<int16_t, int8_t>;
  const BadBytes rows[] = {
      Bad<bool>("02", "expected a byte 0 or 1, found 2"),
      Bad<std::optional<bool>>("0200", "found 2"),
      Bad<std::vector<bool>>("01000000ff", "found 255"),
      Bad<int32_t>("", "expected 4 bytes, found 0"),
      Bad<int32_t>("0000000000", "expected no more bytes, found 1"),
      Bad<std::string>("ffffffff", "expected 4294967295 elements"),
      Bad<std::vector<double>>("ffffff1f0000", "expected 536870911 elements"),
      Bad<std::vector<std::string>>("0200000000000000", "of at least 4 bytes"),
      Bad<Tensor>("01", "expected more than the 0 tensors"),
      Bad<TestRef<int>>("01", "expected more than the 0 references"),
      Bad<Numbers>("02000000010001010002", "ascending order"),
      Bad<Numbers>("02000000020001010002", "ascending order"),
      Bad<std::map<std::string, bool, NoCase>>(
          "02000000010000004100010000006100", "found two alike"),
      Bad<absl::Duration>("000000000000000000286bee", "quarters of a nano"),
      Bad<absl::Duration>("0100000000000000ffffffff", "quarters of a nano"),
      Bad<absl::Duration>("ffffffffffffff7ffeffffff", "quarters of a nano"),
      Bad<std::array<int8_t, 3>>("0102", "expected 1 bytes, found 0"),
      Bad<std::pair<int8_t, int8_t>>("01", "expected 1 bytes, found 0"),
      Bad<Tree>("00000000", "expected 8 bytes, found 0"),
  };
  for (const BadBytes& row : rows) {
    EXPECT_THAT(row.decode(), StatusIs(kLoss, row.message)) << row.what;
  }
}

TEST(ArgumentsTest, RefusesPayloadsWithUnusedParts) {
  const Tensor tensor = Tensor::Ones({1}).value();
  Payload payload = Encoded(tensor).value();
  payload.tensors.push_back(tensor);
  EXPECT_THAT(Decoded<Tensor>(payload),
              StatusIs(kLoss, "expected 1 tensors, found 2"));
  payload.tensors = {Tensor()};
  EXPECT_THAT(Decoded<Tensor>(payload),
              StatusIs(kLoss, "expected a defined tensor"));
  payload.tensors = {tensor};
  payload.references.push_back({});
  EXPECT_THAT(Decoded<Tensor>(payload),
              StatusIs(kLoss, "expected 0 references, found 1"));
}

// The largest capacity that a vector requested.
size_t largest_room = 0;
template <typename T>
struct MeasuringAllocator : std::allocator<T> {
  template <typename U>
  struct rebind {
    using other = MeasuringAllocator<U>;
  };
  T* allocate(size_t count) {
    largest_room = std::max(largest_room, count);
    return std::allocator<T>::allocate(count);
  }
};

TEST(ArgumentsTest, AllocatesNothingForAnnouncedElements) {
  // As many lists as the bytes allow, of which the second is malformed.
  std::string bytes(4 + 4 * 100000, '\0');
  bytes[0] = '\xa0';
  bytes[1] = '\x86';
  bytes[2] = '\x01';
  bytes[8] = '\xff';
  bytes[11] = '\xff';
  largest_room = 0;
  using Lists = std::vector<std::vector<int32_t>,
                            MeasuringAllocator<std::vector<int32_t>>>;
  EXPECT_THAT(Decoded<Lists>(Payload{.values = bytes}), StatusIs(kLoss));
  EXPECT_LE(largest_room, 2);
  using Numbers = std::vector<int64_t, MeasuringAllocator<int64_t>>;
  largest_room = 0;
  EXPECT_THAT(DecodedBytes<Numbers>("ffffff0f0000"), StatusIs(kLoss));
  EXPECT_EQ(largest_room, 0);
}

TEST(ArgumentsTest, BoundsTheSizeOfAMessage) {
  EXPECT_TRUE(Encoded(std::string(kMaxValueBytes - 4, 'x')).ok());
  EXPECT_THAT(Encoded(std::string(kMaxValueBytes - 3, 'x')),
              StatusIs(kArgument, AllOf(HasSubstr("m: argument 1: "),
                                        HasSubstr("send large data as"))));
  EXPECT_THAT(Encoded(std::vector<double>(kMaxValueBytes / 8)),
              StatusIs(kArgument));
  // Keys: also those that together are too large.
  std::map<std::string, bool> keys;
  for (const char* first : {"a", "b", "c"}) {
    keys[first + std::string(kMaxValueBytes / 2, 'x')] = true;
  }
  EXPECT_THAT(
      Encoded(keys),
      StatusIs(kArgument, ::testing::StartsWith("m: argument 1: values")));
  std::string bytes(kMaxValueBytes + 1, '\0');
  bytes[0] = '\xfd';
  bytes[1] = '\xff';
  bytes[2] = '\x1f';
  EXPECT_THAT(Decoded<std::string>(Payload{.values = bytes}),
              StatusIs(kLoss, "expected at most 2097152 bytes"));
  const Tensor tensor = Tensor::Ones({1}).value();
  std::vector<Tensor> tensors(kMaxTensors, tensor);
  Payload payload = Encoded(tensors).value();
  EXPECT_TRUE(Decoded<std::vector<Tensor>>(payload).ok());
  tensors.emplace_back();
  EXPECT_THAT(Encoded(tensors), StatusIs(kArgument, "more than 1024 tensors"));
  ++payload.values[0];
  payload.values.push_back('\0');
  EXPECT_THAT(Decoded<std::vector<Tensor>>(payload),
              StatusIs(kLoss, "more than 1024 tensors"));
  std::vector<TestRef<int>> refs(kMaxReferences);
  payload = Encoded(refs).value();
  EXPECT_TRUE(Decoded<std::vector<TestRef<int>>>(payload).ok());
  refs.emplace_back();
  EXPECT_THAT(Encoded(refs), StatusIs(kArgument, "more than 16384 references"));
  ++payload.values[0];
  payload.values.push_back('\0');
  EXPECT_THAT(Decoded<std::vector<TestRef<int>>>(payload),
              StatusIs(kLoss, "more than 16384 references"));
}

TEST(ArgumentsTest, BoundsHowDeepStructsAreNested) {
  Tree tree;
  for (int depth = 1; depth < kMaxNesting; ++depth) {
    Tree parent;
    parent.children.push_back(std::move(tree));
    tree = std::move(parent);
  }
  SHERD_ASSERT_OK_AND_ASSIGN(Payload payload, Encoded(tree));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tree again, Decoded<Tree>(payload));
  EXPECT_EQ(again, tree);
  Tree deeper;
  deeper.children.push_back(tree);
  EXPECT_THAT(Encoded(deeper), StatusIs(kArgument, "deeper than 100"));
  // A label, a weight, one child, and so on without an end.
  std::string level(16, '\0');
  level[12] = '\1';
  payload.values.clear();
  for (int i = 0; i < 100000; ++i) payload.values += level;
  EXPECT_THAT(Decoded<Tree>(payload), StatusIs(kLoss, "deeper than 100"));
}

TEST(ArgumentsTest, RandomValuesSurvive) {
  const uint64_t seed = RandomSeed();
  const int64_t cases = CaseCount(300);
  for (int64_t i = 0; i < cases; ++i) {
    SCOPED_TRACE(absl::StrCat("SHERD_TEST_SEED=", seed + i));
    std::mt19937_64 random(seed + i);
    const Everything value = RandomValue<Everything>(random);
    SHERD_ASSERT_OK_AND_ASSIGN(const Payload payload, Encoded(value));
    SHERD_ASSERT_OK_AND_ASSIGN(const Everything again,
                               Decoded<Everything>(payload));
    ASSERT_TRUE(SameValue(again, value));
    SHERD_ASSERT_OK_AND_ASSIGN(const Payload twice, Encoded(again));
    ASSERT_TRUE(SamePayload(twice, payload));
  }
}

// Decoding fails, or returns the value that has these bytes and no other.
void ExpectErrorOrThatValue(const Payload& payload) {
  const absl::StatusOr<Everything> value = Decoded<Everything>(payload);
  if (!value.ok()) {
    ASSERT_THAT(value.status(), StatusIs(kLoss));
    return;
  }
  SHERD_ASSERT_OK_AND_ASSIGN(const Payload again, Encoded(*value));
  ASSERT_TRUE(SamePayload(again, payload));
}

TEST(ArgumentsTest, EachBitAndEachLengthMatters) {
  const uint64_t seed = RandomSeed();
  const int64_t cases = CaseCount(10);
  for (int64_t i = 0; i < cases; ++i) {
    SCOPED_TRACE(absl::StrCat("SHERD_TEST_SEED=", seed + i));
    std::mt19937_64 random(seed + i);
    const Payload payload = Encoded(RandomValue<Everything>(random)).value();
    for (size_t size = 0; size < payload.values.size(); ++size) {
      Payload cut = payload;
      cut.values.resize(size);
      ASSERT_THAT(Decoded<Everything>(std::move(cut)), StatusIs(kLoss));
    }
    for (size_t bit = 0; bit < 8 * payload.values.size(); ++bit) {
      Payload flipped = payload;
      flipped.values[bit / 8] ^= static_cast<char>(1 << bit % 8);
      ASSERT_NO_FATAL_FAILURE(ExpectErrorOrThatValue(flipped)) << bit;
    }
    for (size_t drop = 0; drop < payload.tensors.size(); ++drop) {
      Payload less = payload;
      less.tensors.erase(less.tensors.begin() + static_cast<ptrdiff_t>(drop));
      ASSERT_THAT(Decoded<Everything>(std::move(less)), StatusIs(kLoss));
    }
  }
}

// Types that cannot travel.
enum Plain { kPlain };
struct NotCodable {
  int x;
};
static_assert(Codable<int64_t> && Codable<Everything> && Codable<Tree>);
static_assert(Codable<unsigned long long> && Codable<signed char>);
static_assert(!Codable<char> && !Codable<wchar_t> && !Codable<char32_t>);
static_assert(!Codable<long double>);
static_assert(!Codable<int*> && !Codable<const char*>);
static_assert(!Codable<absl::string_view> && !Codable<NotCodable>);
static_assert(!Codable<Plain>, "holds 0 and 1 alone");
static_assert(Codable<Colour> && Codable<OldEnum> && Codable<std::byte>);
static_assert(!Codable<std::vector<NotCodable>>);
static_assert(!Codable<std::optional<int*>>);
static_assert(!Codable<std::map<double, int>>, "NaN, and 0 equals -0");
static_assert(!Codable<std::map<Tensor, int>>);
static_assert(!Codable<std::map<std::vector<int>, int>>);
static_assert(!Codable<std::map<int, char>>);
static_assert(!Codable<std::map<std::tuple<>, Nothing>>, "no bytes to count");
static_assert(!Codable<std::map<std::array<int, 0>, int>>);
static_assert(!Codable<std::multimap<int, int>>);
static_assert(Codable<std::map<std::pair<int, std::string>, Tensor>>);
static_assert(!Codable<std::shared_ptr<int>> && !Codable<std::unique_ptr<int>>);
static_assert(!Codable<std::function<void()>>);

}  // namespace
}  // namespace sherd::internal
