#include "sherd/serialization/safetensors/safetensors_header.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sherd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Entry(absl::string_view name, absl::string_view dtype,
                  absl::string_view shape, absl::string_view offsets) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":[",
                      shape, "],\"data_offsets\":[", offsets, "]}");
}

std::string Object(const std::vector<std::string>& members) {
  return absl::StrCat("{", absl::StrJoin(members, ","), "}");
}

struct Rejection {
  const char* why;
  std::string json;
  int64_t data_bytes;
  absl::StatusCode code;
  const char* message;
};

class SafetensorsHeaderRejectsTest
    : public ::testing::TestWithParam<Rejection> {};

TEST_P(SafetensorsHeaderRejectsTest, WithTheTensorAndTheOffset) {
  const Rejection& p = GetParam();
  const auto header = ParseSafetensorsHeader(p.json, p.data_bytes, "f.st");
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.status().code(), p.code) << header.status();
  EXPECT_THAT(std::string(header.status().message()),
              AllOf(StartsWith("f.st"), HasSubstr(p.message)));
}

const absl::StatusCode kLoss = absl::StatusCode::kDataLoss;
const absl::StatusCode kUnknown = absl::StatusCode::kUnimplemented;

std::vector<Rejection> Rejections() {
  const std::string a = Entry("a", "U8", "4", "0,4");
  const auto with = [&](const std::string& more) { return Object({a, more}); };
  return {
      {"empty", "", 0, kLoss, "does not begin"},
      {"array", "[]", 0, kLoss, "does not begin"},
      {"leading space", " {}", 0, kLoss, "does not begin"},
      {"not json", "{\"a\":", 0, kLoss, "not valid JSON at byte"},
      {"garbage after", "{} x", 0, kLoss, "not valid JSON"},
      {"nul padding", std::string("{}\0", 3), 0, kLoss, "not valid JSON"},
      {"not utf-8", "{\"\xff\":{}}", 0, kLoss, "not valid JSON"},
      {"utf-16 surrogate", "{\"\\ud800\":{}}", 0, kLoss, "not valid JSON"},
      {"entry is a number", "{\"a\":1}", 0, kLoss, "the key \"a\" is a number"},
      {"entry is null", "{\"a\":null}", 0, kLoss, "is null"},
      {"entry is a string", "{\"a\":\"b\"}", 0, kLoss, "is a string"},
      {"entry is an array", "{\"a\":[]}", 0, kLoss, "is an array"},
      {"deep nesting", "{\"a\":{\"shape\":[[1]]}}", 0, kLoss, "an array in"},
      {"object in entry", "{\"a\":{\"dtype\":{}}}", 0, kLoss, "an object as"},
      {"no dtype", "{\"a\":{\"shape\":[],\"data_offsets\":[0,1]}}", 1, kLoss,
       "has no \"dtype\""},
      {"no shape", "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1,
       kLoss, "has no \"shape\""},
      {"no offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, kLoss,
       "has no \"data_offsets\""},
      {"unknown key", "{\"a\":{\"dtype\":\"U8\",\"x\":1}}", 1, kLoss,
       "unknown key \"x\""},
      {"dtype twice", "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 1, kLoss,
       "\"dtype\" twice"},
      {"name twice", Object({a, Entry("a", "U8", "4", "4,8")}), 8, kLoss,
       "\"a\" appears twice"},
      {"name twice, escaped", Object({a, Entry("\\u0061", "U8", "4", "4,8")}),
       8, kLoss, "\"a\" appears twice"},
      {"metadata twice", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, kLoss,
       "appears twice"},
      {"metadata key twice", "{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0,
       kLoss, "\"k\" twice"},
      {"metadata number", "{\"__metadata__\":{\"k\":1}}", 0, kLoss,
       "expected a string"},
      {"metadata nested", "{\"__metadata__\":{\"k\":{}}}", 0, kLoss,
       "expected a string"},
      {"metadata string", "{\"__metadata__\":\"x\"}", 0, kLoss, "is a string"},
      {"unknown dtype", Object({Entry("a", "F4", "4", "0,4")}), 4, kUnknown,
       "tensor \"a\" has the dtype \"F4\""},
      {"lower-case dtype", Object({Entry("a", "f32", "1", "0,4")}), 4, kUnknown,
       "\"f32\""},
      {"negative size", Object({Entry("a", "U8", "-4", "0,4")}), 4, kLoss,
       "number -4 in \"shape\""},
      {"fraction", Object({Entry("a", "U8", "4.5", "0,4")}), 4, kLoss,
       "number 4.5 in \"shape\""},
      {"exponent", Object({Entry("a", "U8", "4e0", "0,4")}), 4, kLoss,
       "number 4e0 in \"shape\""},
      {"string size", Object({Entry("a", "U8", "\"4\"", "0,4")}), 4, kLoss,
       "a string in \"shape\""},
      {"2^63", Object({Entry("a", "U8", "9223372036854775808", "0,4")}), 4,
       kLoss, "not below 2^63"},
      {"2^64", Object({Entry("a", "U8", "18446744073709551616", "0,4")}), 4,
       kLoss, "in \"shape\""},
      {"negative offset", Object({Entry("a", "U8", "4", "-4,0")}), 4, kLoss,
       "number -4 in \"data_offsets\""},
      {"one offset", Object({Entry("a", "U8", "4", "4")}), 4, kLoss,
       "has 1 data_offsets"},
      {"three offsets", Object({Entry("a", "U8", "4", "0,4,8")}), 4, kLoss,
       "more than 2 data_offsets"},
      {"size overflow",
       Object({Entry("a", "U8", "4294967296,4294967296", "0,0")}), 0, kLoss,
       "tensor \"a\" at data offset 0"},
      {"byte overflow",
       Object({Entry("a", "F64", "4611686018427387904", "0,0")}), 0, kLoss,
       "tensor \"a\" at data offset 0"},
      {"65 dimensions",
       Object({Entry("a", "U8", absl::StrJoin(std::vector<int>(65, 1), ","),
                     "0,1")}),
       1, kUnknown, "more than 64 dimensions"},
      {"reversed range", Object({Entry("a", "U8", "4", "4,0")}), 4, kLoss,
       "ends before that"},
      {"too short", Object({Entry("a", "F32", "4", "0,12")}), 12, kLoss,
       "has 12 bytes, but F32 [4] needs 16"},
      {"too long", Object({Entry("a", "F32", "4", "0,20")}), 20, kLoss,
       "has 20 bytes"},
      {"overlap", with(Entry("b", "U8", "4", "3,7")), 7, kLoss,
       "tensor \"b\" at data offset 3 overlaps tensor \"a\""},
      {"same range", with(Entry("b", "U8", "4", "0,4")), 4, kLoss, "overlaps"},
      {"hole", with(Entry("b", "U8", "4", "6,10")), 10, kLoss,
       "hole of 2 bytes before it, at data offset 4"},
      {"hole at the start", Object({Entry("a", "U8", "4", "2,6")}), 6, kLoss,
       "hole of 2 bytes before it, at data offset 0"},
      {"past the end", with(Entry("b", "U8", "4", "4,8")), 7, kLoss,
       "tensor \"b\" at data offset 4 ends at 8, but the file has only 7"},
      {"trailing bytes", Object({a}), 5, kLoss,
       "1 bytes follow the last tensor, at data offset 4"},
      {"trailing bytes without tensors", "{}", 3, kLoss, "3 bytes follow"},
      {"empty tensor outside", with(Entry("b", "U8", "0", "9,9")), 4, kLoss,
       "ends at 9"},
      {"long name",
       Object({Entry(std::string(kMaxSafetensorsNameBytes + 1, 'x'), "U8", "4",
                     "0,4")}),
       4, kLoss, "has 65537 bytes, expected at most 65536"},
  };
}

std::ostream& operator<<(std::ostream& out, const Rejection& rejection) {
  return out << rejection.why;
}

INSTANTIATE_TEST_SUITE_P(All, SafetensorsHeaderRejectsTest,
                         ::testing::ValuesIn(Rejections()),
                         [](const ::testing::TestParamInfo<Rejection>& info) {
                           std::string name;
                           for (const char c : std::string(info.param.why)) {
                             name += std::isalnum(static_cast<unsigned char>(c))
                                         ? c
                                         : '_';
                           }
                           return name;
                         });

TEST(SafetensorsHeaderTest, OrderInTheTextDoesNotMatter) {
  const auto header = ParseSafetensorsHeader(
      Object({Entry("b", "F16", "2", "8,12"),
              "\"__metadata__\":{\"k\":\"v\",\"\":\"\"}",
              Entry("a", "F64", "", "0,8"), Entry("c", "I8", "0", "8,8")}) +
          "   ",
      12, "f.st");
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->entries.size(), 3u);
  EXPECT_EQ(header->entries[0].name, "a");
  EXPECT_EQ(header->entries[0].dtype, kFloat64);
  EXPECT_TRUE(header->entries[0].shape.empty());
  EXPECT_EQ(header->entries[1].name, "c");
  EXPECT_EQ(header->entries[2].begin, 8);
  EXPECT_EQ(header->entries[2].end, 12);
  EXPECT_EQ(header->metadata.at("k"), "v");
  EXPECT_EQ(header->metadata.at(""), "");
}

TEST(SafetensorsHeaderTest, SixtyFourDimensionsAreAccepted) {
  const auto header = ParseSafetensorsHeader(
      Object({Entry("a", "U8", absl::StrJoin(std::vector<int>(64, 1), ","),
                    "0,1")}),
      1, "f.st");
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->entries[0].shape.size(), 64u);
}

TEST(SafetensorsHeaderTest, MessagesEscapeAHostileName) {
  const auto header = ParseSafetensorsHeader(
      Object({Entry("w\\u001b[2J\\u0007\\nfake", "U8", "4", "0,5")}), 5,
      "f.st");
  ASSERT_FALSE(header.ok());
  EXPECT_NE(header.status().message().find("tensor \"w\\x07\\nfake\""),
            absl::string_view::npos)
      << header.status();
}

TEST(SafetensorsHeaderTest, MessagesQuoteOnlyPartsOfAHostileName) {
  const std::string name(60000, 'x');
  const auto header = ParseSafetensorsHeader(
      Object({Entry(name, "U8", "4", "0,5")}), 5, "f.st");
  ASSERT_FALSE(header.ok());
  EXPECT_LT(header.status().message().size(), 500u);
}

TEST(PlanSafetensorsTest, EachTensorBeginsAtAMultipleOfItsAlignmentClass) {
  const auto header = PlanSafetensors({{"bytes", kUInt8, {5}},
                                       {"halves", kFloat16, {3}},
                                       {"z_pages", kFloat32, {1024}},
                                       {"doubles", kFloat64, {7}},
                                       {"a_pages", kUInt8, {8192}},
                                       {"complex", kComplex128, {3}},
                                       {"gpt", kFloat32, {50257, 768}},
                                       {"even bytes", kUInt8, {48}},
                                       {"floats", kFloat32, {9}},
                                       {"empty", kFloat32, {0, 4}}});
  ASSERT_TRUE(header.ok()) << header.status();
  std::vector<std::string> order;
  int64_t position = 0;
  for (const SafetensorsEntry& entry : header->entries) {
    order.push_back(entry.name);
    EXPECT_EQ(entry.begin, position) << entry.name;
    EXPECT_EQ(entry.begin % AlignmentClass(entry.nbytes()), 0) << entry.name;
    EXPECT_EQ(entry.begin % static_cast<int64_t>(SizeOf(entry.dtype)), 0)
        << entry.name;
    position = entry.end;
  }
  EXPECT_THAT(
      order, ElementsAre("a_pages", "z_pages", "empty", "gpt", "complex",
                         "even bytes", "doubles", "floats", "halves", "bytes"));
  EXPECT_EQ(header->data_bytes(), position);
  const SafetensorsEntry& complex = header->entries[4];
  EXPECT_EQ(complex.dtype_name, "F64");
  EXPECT_EQ(complex.shape, (Dims{3, 2}));
}

TEST(PlanSafetensorsTest, EncodesToAHeaderThatReadsBackAndEndsOnAPage) {
  const auto header =
      PlanSafetensors({{"näme \"q\" \\ \n\x01", kBFloat16, {2, 3}},
                       {"", kBool, {1}},
                       {"s", kInt64, {}}},
                      {{"k\t", "v\xe2\x80\xa8"}});
  ASSERT_FALSE(header.ok());  // The empty name.
  const auto good = PlanSafetensors(
      {{"näme \"q\" \\ \n\x01", kBFloat16, {2, 3}}, {"s", kInt64, {}}},
      {{"k\t", "v\xe2\x80\xa8"}});
  ASSERT_TRUE(good.ok()) << good.status();
  const auto text = EncodeSafetensorsHeader(*good);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->size() % kSafetensorsAlignment, 0u);
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) {
    length = length << 8 | static_cast<unsigned char>((*text)[i]);
  }
  EXPECT_EQ(length, text->size() - 8);
  const auto again = ParseSafetensorsHeader(absl::string_view(*text).substr(8),
                                            good->data_bytes(), "f.st");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *good);
}

TEST(PlanSafetensorsTest, RefusesWhatCannotBeStored) {
  const auto code = [](std::vector<SafetensorsTensorInfo> tensors) {
    return PlanSafetensors(std::move(tensors)).status().code();
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code({{"a", kUInt8, {1}}, {"a", kInt8, {2}}}), kInvalid);
  EXPECT_EQ(code({{"__metadata__", kUInt8, {1}}}), kInvalid);
  EXPECT_EQ(code({{"\xc3", kUInt8, {1}}}), kInvalid);
  EXPECT_EQ(code({{std::string(65537, 'x'), kUInt8, {1}}}), kInvalid);
  EXPECT_EQ(code({{"a", kUInt8, {-1}}}), kInvalid);
  EXPECT_EQ(code({{"a", kComplex128, Dims(64, 1)}}), kInvalid);
  EXPECT_EQ(code({{"a", kComplex32, Dims(64, 1)}}), kInvalid);
  const int64_t half = int64_t{1} << 62;
  EXPECT_EQ(code({{"a", kUInt8, {half}}, {"b", kUInt8, {half}}}), kInvalid);
  EXPECT_EQ(PlanSafetensors({}, {{"k", "\xff"}}).status().code(), kInvalid);
}

TEST(IsValidUtf8Test, FollowsTheTableOfTheStandard) {
  for (const char* good :
       {"", "a", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
        "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsValidUtf8(good)) << good;
  }
  for (const char* bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2\x20", "\xe0\x9f\xbf",
        "\xed\xa0\x80", "\xe1\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80", "\xf1\x80\x80", "a\xff"}) {
    EXPECT_FALSE(IsValidUtf8(bad)) << bad;
  }
}

}  // namespace
}  // namespace sherd
