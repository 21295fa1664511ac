#include "sherd/core/nn/lookup/request_message.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/random_layouts.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::CaseCount;
using ::sherd::testing::RandomSeed;
using ::testing::ElementsAre;

// Rows 10 to 19 and 30 to 39.
ReadableStrip TwoBands() {
  ReadableStrip strip;
  strip.begins = {10, 30};
  strip.ends = {20, 40};
  return strip;
}

// A copy at the end of its allocation, where a sanitizer sees what is read
// beyond it; its length is a multiple of 8 or it is cut anyway.
struct Message {
  explicit Message(absl::Span<const std::byte> bytes)
      : size(bytes.size()), data(new std::byte[bytes.size()]) {
    if (size > 0) std::memcpy(data.get(), bytes.data(), size);
  }
  absl::Span<const std::byte> bytes() const { return {data.get(), size}; }

  size_t size;
  std::unique_ptr<std::byte[]> data;
};

std::vector<std::byte> Write(const RequestFormat& format,
                             const std::vector<int64_t>& ids,
                             const std::vector<uint32_t>& lengths) {
  const uint64_t bags = format.has_lengths ? lengths.size() : ids.size();
  std::vector<std::byte> weights(ids.size() * format.weight_bytes);
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = static_cast<std::byte>(i + 1);
  }
  std::vector<std::byte> bytes(RequestBytes(format, bags, ids.size()));
  WriteRequest(
      format,
      {.bags = bags, .ids = ids, .weights = weights, .lengths = lengths},
      bytes.data());
  return bytes;
}

// Reads all that an accepted request refers to.
bool Accepts(const RequestFormat& format, absl::Span<const std::byte> bytes,
             std::vector<int64_t>& bounds) {
  const Message message(bytes);
  absl::Span<const std::byte> rest = message.bytes();
  RequestView request;
  if (!TakeRequest(format, rest, request)) return false;
  EXPECT_LE(rest.size(), message.size);
  EXPECT_EQ(rest.data() + rest.size(), message.data.get() + message.size);
  if (!FindBags(request, TwoBands(), bounds)) return false;
  EXPECT_EQ(bounds.size(), request.bags + 1);
  for (size_t b = 1; b < bounds.size(); ++b) {
    EXPECT_LE(bounds[b - 1], bounds[b]);
  }
  EXPECT_EQ(bounds.back(), request.ids.size());
  for (int64_t i = 0; i < request.ids.size(); ++i) {
    const int64_t id = request.ids[i];
    EXPECT_TRUE((id >= 10 && id < 20) || (id >= 30 && id < 40)) << id;
  }
  std::vector<std::byte> weights(static_cast<size_t>(request.ids.size()) *
                                 format.weight_bytes);
  if (!weights.empty()) {
    std::memcpy(weights.data(), request.weights, weights.size());
  }
  return true;
}

TEST(RequestMessageTest, RequestsComeBackInTheirOrder) {
  for (const bool wide : {false, true}) {
    for (const size_t weight : {0, 4, 8}) {
      const RequestFormat bags = {.wide_ids = wide, .weight_bytes = weight};
      const RequestFormat rows = {
          .wide_ids = wide, .weight_bytes = weight, .has_lengths = false};
      std::vector<std::byte> bytes = Write(bags, {39, 10, 12}, {1, 2});
      const std::vector<std::byte> second = Write(rows, {19}, {});
      bytes.insert(bytes.end(), second.begin(), second.end());
      const Message message(bytes);
      absl::Span<const std::byte> rest = message.bytes();
      RequestView request;
      std::vector<int64_t> bounds;
      ASSERT_TRUE(TakeRequest(bags, rest, request));
      ASSERT_TRUE(FindBags(request, TwoBands(), bounds));
      EXPECT_THAT(bounds, ElementsAre(0, 1, 3));
      EXPECT_EQ(request.ids[0], 39);
      EXPECT_EQ(request.ids[2], 12);
      for (size_t i = 0; i < 3 * weight; ++i) {
        EXPECT_EQ(request.weights[i], static_cast<std::byte>(i + 1));
      }
      ASSERT_TRUE(TakeRequest(rows, rest, request));
      ASSERT_TRUE(FindBags(request, TwoBands(), bounds));
      EXPECT_THAT(bounds, ElementsAre(0, 1));
      EXPECT_EQ(request.ids[0], 19);
      EXPECT_TRUE(rest.empty());
    }
  }
}

TEST(RequestMessageTest, MalformedRequestsAreRefused) {
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  struct Case {
    std::string name;
    uint64_t bags = 2;
    uint64_t ids = 3;
    std::vector<int64_t> rows = {39, 10, 12};
    std::vector<uint32_t> lengths = {1, 2};
    bool has_lengths = true;
  };
  const std::vector<Case> cases = {
      {"more bags than ids", 4, 3},
      {"more ids than there are", 2, 40},
      {"the most ids", 2, kHuge},
      {"ids whose bytes overflow to 0", 2, uint64_t{1} << 62},
      {"ids whose bytes overflow to those there are", 2,
       (uint64_t{1} << 62) + 3},
      {"the most of both", kHuge, kHuge},
      {"bags that have fewer ids", 2, 3, {39, 10, 12}, {1, 1}},
      {"bags that have more ids", 2, 3, {39, 10, 12}, {1, 3}},
      {"a length of all bits", 2, 3, {39, 10, 12}, {1, 0xffffffff}},
      {"a row before the first", 2, 3, {39, 9, 12}},
      {"a row between the bands", 2, 3, {39, 20, 12}},
      {"a row behind the last", 2, 3, {40, 10, 12}},
      {"a negative row", 2, 3, {39, -1, 12}},
      {"fewer rows than ids", 2, 3, {39, 10, 12}, {}, false},
      {"more rows than ids", 4, 3, {39, 10, 12}, {}, false}};
  for (const bool wide : {false, true}) {
    for (const Case& c : cases) {
      const RequestFormat format = {.wide_ids = wide,
                                    .has_lengths = c.has_lengths};
      std::vector<std::byte> bytes = Write(format, c.rows, c.lengths);
      const uint64_t header[] = {c.bags, c.ids};
      std::memcpy(bytes.data(), header, sizeof(header));
      std::vector<int64_t> bounds;
      EXPECT_FALSE(Accepts(format, bytes, bounds))
          << c.name << (wide ? ", int64" : ", int32");
    }
  }
}

TEST(RequestMessageTest, IdsWithoutABagAreRefusedAtOnce) {
  // Of a request without bags nobody looks for the bags.
  const RequestFormat format;
  std::vector<std::byte> bytes = Write(format, {39}, {1});
  const uint64_t bags = 0;
  std::memcpy(bytes.data(), &bags, sizeof(bags));
  absl::Span<const std::byte> rest = bytes;
  RequestView request;
  EXPECT_FALSE(TakeRequest(format, rest, request));
}

TEST(RequestMessageTest, EveryCutIsRefused) {
  for (const bool has_lengths : {false, true}) {
    const RequestFormat format = {.weight_bytes = 4,
                                  .has_lengths = has_lengths};
    const std::vector<std::byte> bytes = Write(
        format, {39, 10, 12},
        has_lengths ? std::vector<uint32_t>{1, 2} : std::vector<uint32_t>{});
    std::vector<int64_t> bounds;
    EXPECT_TRUE(Accepts(format, bytes, bounds));
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(
          Accepts(format, absl::MakeConstSpan(bytes).first(size), bounds))
          << size;
    }
  }
}

TEST(RequestMessageTest, ChangedBytesAreRefusedOrDescribeRowsThatAreHeld) {
  std::mt19937_64 random(RandomSeed());
  int64_t refused = 0;
  const int64_t cases = CaseCount(20000);
  for (int64_t i = 0; i < cases; ++i) {
    const RequestFormat format = {.wide_ids = random() % 2 == 0,
                                  .weight_bytes = random() % 3 * 4,
                                  .has_lengths = random() % 4 != 0};
    std::vector<int64_t> ids;
    std::vector<uint32_t> lengths;
    for (uint64_t bag = random() % 5; bag > 0; --bag) {
      const uint32_t length =
          format.has_lengths ? 1 + static_cast<uint32_t>(random() % 4) : 1;
      lengths.push_back(length);
      for (uint32_t k = 0; k < length; ++k) {
        ids.push_back(static_cast<int64_t>(random() % 10) +
                      (random() % 2 == 0 ? 10 : 30));
      }
    }
    std::vector<std::byte> bytes = Write(format, ids, lengths);
    std::vector<int64_t> bounds;
    ASSERT_TRUE(Accepts(format, bytes, bounds)) << "case " << i;
    for (uint64_t change = random() % 4 + 1; change > 0; --change) {
      // Mostly a number becomes another one that may be there.
      const size_t at = random() % bytes.size();
      bytes[at] =
          static_cast<std::byte>(random() % 3 == 0 ? random() : random() % 5);
    }
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    if (!Accepts(format, bytes, bounds)) ++refused;
  }
  EXPECT_GT(refused, cases / 10);
  EXPECT_LT(refused, cases);
}

}  // namespace
}  // namespace sherd::internal
