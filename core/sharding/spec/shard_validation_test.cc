#include "sherd/core/sharding/spec/shard_validation.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

using Shards = std::vector<ShardMetadata>;

TEST(ShardValidationTest, AcceptsShardsThatDoNotOverlap) {
  const Shards cases[] = {
      {},
      {{{0, 0}, {5, 5}, {}}},
      {{{0, 0}, {5, 5}, {}}, {{5, 0}, {5, 5}, {}}, {{0, 5}, {10, 5}, {}}},
      {{{0, 0}, {5, 5}, {}}, {{5, 5}, {1, 1}, {}}},
      {{{}, {}, {}}},
      // Empty shards overlap nothing, wherever they lie.
      {{{0}, {0}, {}}, {{0}, {0}, {}}},
      {{{0}, {10}, {}}, {{5}, {0}, {}}, {{100}, {0}, {}}},
      {{{0, 0}, {5, 5}, {}}, {{2, 2}, {0, 2}, {}}, {{2, 2}, {2, 0}, {}}},
      {{{0, 0, 0}, {2, 2, 2}, {}}, {{1, 1, 2}, {2, 2, 2}, {}}},
  };
  for (const Shards& shards : cases) {
    EXPECT_THAT(ValidateNonOverlapping(shards), IsOk());
  }
}

TEST(ShardValidationTest, NamesTwoShardsThatOverlap) {
  struct Case {
    Shards shards;
    size_t first;
    size_t second;
  };
  const Case cases[] = {
      {{{{0, 0}, {5, 5}, {}}, {{4, 4}, {5, 5}, {}}}, 0, 1},
      {{{{0, 0}, {5, 5}, {}}, {{9, 9}, {1, 1}, {}}, {{0, 4}, {9, 1}, {}}},
       0,
       2},
      // The same box twice, one inside the other, and scalars.
      {{{{3}, {2}, {}}, {{0}, {3}, {}}, {{3}, {2}, {}}}, 0, 2},
      {{{{0}, {9}, {}}, {{4}, {1}, {}}}, 0, 1},
      {{{{}, {}, {}}, {{}, {}, {}}}, 0, 1},
      {{{{0, 0, 0}, {2, 2, 2}, {}},
        {{2, 0, 0}, {1, 9, 9}, {}},
        {{1, 1, 1}, {1, 5, 5}, {}}},
       0,
       2},
      {{{{0, 0, 0, 7}, {2, 2, 2, 1}, Placement("rank:0")},
        {{1, 1, 1, 7}, {1, 5, 5, 1}, Placement("rank:1")}},
       0,
       1},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(
        ValidateNonOverlapping(c.shards),
        StatusIs(kInvalid,
                 AllOf(ContainsRegex("Shards.*overlap"),
                       HasSubstr(c.shards[c.first].ToString() + " and " +
                                 c.shards[c.second].ToString()))));
  }
}

TEST(ShardValidationTest, NamesAFewOfManyOverlaps) {
  Shards shards = {{{0}, {9}, {}}, {{1}, {1}, {}}, {{2}, {1}, {}}};
  EXPECT_THAT(
      ValidateNonOverlapping(shards),
      StatusIs(kInvalid,
               AllOf(HasSubstr("Shards " + shards[0].ToString() + " and " +
                               shards[1].ToString() + " overlap; so do " +
                               shards[0].ToString() + " and " +
                               shards[2].ToString()),
                     Not(HasSubstr("others")))));
  for (int64_t i = 3; i < 9; ++i) shards.push_back({{i}, {1}, {}});
  EXPECT_THAT(ValidateNonOverlapping(shards),
              StatusIs(kInvalid, ", and others"));
}

TEST(ShardValidationTest, AllowsReplicasWhereAsked) {
  const Shards replicas = {{{0}, {4}, Placement("rank:0")},
                           {{4}, {2}, Placement("rank:0")},
                           {{0}, {4}, Placement("rank:1")},
                           {{4}, {2}, Placement("rank:0/cuda:0")}};
  EXPECT_THAT(ValidateNonOverlapping(replicas), StatusIs(kInvalid, "overlap"));
  EXPECT_THAT(ValidateNonOverlapping(replicas, Replicas::kAllowed), IsOk());
  EXPECT_THAT(ValidateCover(replicas, {6}, Replicas::kAllowed), IsOk());
  // Of twice the size, of which half is missing.
  EXPECT_THAT(
      ValidateCover(replicas, {12}, Replicas::kAllowed),
      StatusIs(kInvalid, "the volume of the shards, 6, does not match"));
}

TEST(ShardValidationTest, RefusesBoxesThatAreNotReplicas) {
  const Shards cases[] = {
      // The same box at the same place.
      {{{0}, {4}, Placement("rank:0")}, {{0}, {4}, Placement("rank:0")}},
      {{{0}, {4}, {}}, {{0}, {4}, {}}},
      // Nearly the same box.
      {{{0}, {4}, Placement("rank:0")},
       {{0}, {4}, Placement("rank:1")},
       {{0}, {3}, Placement("rank:2")}},
      {{{0, 0}, {4, 4}, Placement("rank:0")},
       {{0, 0}, {4, 4}, Placement("rank:1")},
       {{3, 3}, {4, 4}, Placement("rank:2")}},
  };
  for (const Shards& shards : cases) {
    EXPECT_THAT(ValidateNonOverlapping(shards, Replicas::kAllowed),
                StatusIs(kInvalid, ContainsRegex("Shards .* overlap")));
  }
  // Among many.
  for (const bool placed : {true, false}) {
    Shards many;
    for (int i = 0; i < 20; ++i) {
      many.push_back({{0}, {4}, Placement::OnRank(i)});
    }
    EXPECT_THAT(ValidateNonOverlapping(many, Replicas::kAllowed), IsOk());
    many[3].placement = std::nullopt;
    EXPECT_THAT(ValidateNonOverlapping(many, Replicas::kAllowed), IsOk());
    many[17].placement =
        placed ? many[5].placement : std::optional<Placement>();
    EXPECT_THAT(
        ValidateNonOverlapping(many, Replicas::kAllowed),
        StatusIs(
            kInvalid,
            absl::StrCat("Shards ", many[placed ? 5 : 3].ToString(), " and ",
                         many[17].ToString(), " overlap: replicas of a box")));
  }
  // Empty boxes are not replicas of anything.
  EXPECT_THAT(ValidateNonOverlapping(Shards{{{0}, {0}, {}}, {{0}, {0}, {}}},
                                     Replicas::kAllowed),
              IsOk());
}

TEST(ShardValidationTest, FindsDefectsOfOneShardOrOfTheirDimensions) {
  EXPECT_THAT(
      ValidateNonOverlapping(Shards{{{0}, {1}, {}}, {{0, 1}, {1, 1}, {}}}),
      StatusIs(kInvalid, "Found inconsistent ranks for shards"));
  EXPECT_THAT(ValidateNonOverlapping(Shards{{{0}, {1}, {}}, {{-1}, {1}, {}}}),
              StatusIs(kInvalid, "shard_offsets should be >=0"));
  EXPECT_THAT(ValidateNonOverlapping(Shards{{{0}, {1, 1}, {}}}),
              StatusIs(kInvalid, "same number of elements"));
}

TEST(ShardValidationTest, AcceptsShardsThatCoverTheTensor) {
  EXPECT_THAT(ValidateCover(Shards{{{0, 0}, {5, 5}, {}}, {{5, 0}, {5, 5}, {}}},
                            {10, 5}),
              IsOk());
  EXPECT_THAT(ValidateCover(Shards{{{}, {}, {}}}, {}), IsOk());
  // Empty shards may begin past the end.
  EXPECT_THAT(
      ValidateCover(
          Shards{
              {{0}, {1}, {}}, {{1}, {1}, {}}, {{2}, {0}, {}}, {{3}, {0}, {}}},
          {2}),
      IsOk());
  EXPECT_THAT(
      ValidateCover(Shards{{{0, 0}, {0, 5}, {}}, {{9, 0}, {0, 5}, {}}}, {0, 5}),
      IsOk());
  EXPECT_THAT(
      ValidateCover(Shards{{{0, 0}, {2, 5}, {}}, {{4, 9}, {0, 6}, {}}}, {2, 5}),
      IsOk());
  EXPECT_THAT(ValidateCover(Shards{}, {0}), IsOk());
}

TEST(ShardValidationTest, ReportsHowShardsFailToCoverTheTensor) {
  struct Case {
    Shards shards;
    Dims size;
    const char* phrase;
  };
  const Case cases[] = {
      {{{{0, 0}, {5, 5}, {}}},
       {5, 5, 1},
       "Rank of tensor is 3, but shards rank is 2"},
      {{{{0, 0}, {5, 5}, {}}}, {}, "Rank of tensor is 0, but shards rank is 2"},
      {{{{0, 0}, {5, 5}, {}}, {{5, 0}, {6, 5}, {}}},
       {10, 5},
       "Shard offset 5 and length 6 exceeds tensor dim: 10 for shard "},
      {{{{0, 10}, {5, 5}, {}}}, {5, 10}, "exceeds tensor dim"},
      {{{{0, 0}, {5, 5}, {}}, {{5, 0}, {4, 5}, {}}},
       {10, 5},
       "the volume of the shards, 45, does not match tensor volume 50"},
      {{{{0}, {0}, {}}}, {1}, "do not cover the entire tensor"},
      {{}, {1}, "do not cover the entire tensor"},
      {{}, {}, "do not cover the entire tensor"},
      {{{{INT64_MAX - 1}, {1}, {}}}, {5}, "exceeds tensor dim"},
      {{{{0}, {1}, {}}}, {-1}, "-1"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(ValidateCover(c.shards, c.size), StatusIs(kInvalid, c.phrase));
  }
}

TEST(ShardValidationTest, AddsVolumesBeyond64Bits) {
  // 17 * 2^60 cut to 64 bits would be the volume of the tensor.
  Shards shards;
  for (int i = 0; i < 17; ++i) {
    shards.push_back({{0}, {int64_t{1} << 60}, {}});
  }
  EXPECT_THAT(ValidateCover(shards, {int64_t{1} << 60}),
              StatusIs(kInvalid, "19599665578316398592"));
}

TEST(ShardValidationTest, TakesManyShardsInLittleTime) {
  // Pairwise comparison would take hours.
  Shards grid;
  for (int64_t i = 0; i < 200'000; ++i) {
    grid.push_back({{i / 500 * 3, i % 500 * 2}, {3, 2}, {}});
  }
  EXPECT_THAT(ValidateNonOverlapping(grid), IsOk());
  EXPECT_THAT(ValidateCover(grid, {1200, 1000}), IsOk());
  // Slabs one above the other that all begin at the same place: a sweep which
  // looks at all boxes it crosses is quadratic here.
  Shards slabs;
  for (int64_t i = 0; i < 200'000; ++i) {
    slabs.push_back({{0, i, i % 7}, {i + 1, 1, 1}, {}});
  }
  EXPECT_THAT(ValidateNonOverlapping(slabs), IsOk());
}

}  // namespace
}  // namespace sherd
