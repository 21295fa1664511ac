#include "sherd/core/sharding/plan/plan_report.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/sharding/plan/message_rounds.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Boxes = std::vector<PlacedBox>;

// A grid of `rows` x `columns` boxes of `height` x `width`, dealt to ranks in
// turn.
Boxes Grid(int64_t rows, int64_t columns, int64_t height, int64_t width,
           int ranks) {
  Boxes boxes;
  for (int64_t i = 0; i < rows * columns; ++i) {
    boxes.push_back(
        {{{i / columns * height, i % columns * width}, {height, width}},
         static_cast<int>(i % ranks)});
  }
  return boxes;
}

// Rows on three ranks to columns on four, the last of which had nothing; rank 0
// keeps a box.
PlanReport Sample() {
  const Boxes from = {{{{0, 0}, {4, 12}}, 0},
                      {{{4, 0}, {4, 12}}, 1},
                      {{{8, 0}, {4, 12}}, 2},
                      {{{12, 0}, {1, 12}}, 0}};
  const Boxes to = {{{{0, 0}, {12, 3}}, 0},
                    {{{0, 3}, {12, 3}}, 1},
                    {{{0, 6}, {12, 3}}, 2},
                    {{{0, 9}, {12, 3}}, 3},
                    {{{12, 0}, {1, 12}}, 0}};
  return ExplainPlan(from, to,
                     {.element_size = 4,
                      .max_staging_bytes = 384,
                      .host_of_rank = {0, 0, 1, 1}})
      .value();
}

std::string Golden(const std::string& name) {
  const auto text =
      ReadFile(FileSystem::Posix(), "core/sharding/testdata/" + name, 1 << 20);
  EXPECT_THAT(text, IsOk());
  return text.value_or("");
}

TEST(PlanReportTest, FormatsAreThoseOfTheFiles) {
  const PlanReport report = Sample();
  EXPECT_EQ(report.ToText(), Golden("plan_report.txt"));
  EXPECT_EQ(report.ToJson() + "\n", Golden("plan_report.json"));
}

TEST(PlanReportTest, CountsWhatEveryRankDoes) {
  const PlanReport report = Sample();
  // Of 3 x 4 pieces of 48 bytes, three stay; a row of 48 bytes is kept.
  EXPECT_EQ(report.bytes_moved(), 9 * 48);
  EXPECT_EQ(report.lower_bound_bytes(), 9 * 48);
  EXPECT_EQ(report.ratio(), 1);
  EXPECT_EQ(report.bytes_local(), 4 * 48);
  EXPECT_EQ(report.bytes_in_place(), 48);
  EXPECT_EQ(report.pairs, 9);
  EXPECT_EQ(report.bytes_between_hosts, 6 * 48);
  // Messages of 32 bytes: two rows of 12 bytes in each.
  EXPECT_EQ(report.messages, 18);
  EXPECT_EQ(report.rounds, 2);
  EXPECT_TRUE(report.exact_rounds);
  const RankReport& first = report.ranks[0];
  EXPECT_EQ(first.bytes_sent, 3 * 48);
  EXPECT_EQ(first.bytes_received, 2 * 48);
  EXPECT_EQ(first.result_bytes, 4 * 48);
  // Three messages out, of 24 bytes in each of two rounds; those that come in
  // are runs of columns.
  EXPECT_EQ(first.staging_bytes, 3 * 2 * 24);
  EXPECT_EQ(first.peak_extra_bytes(), 4 * 48 + 3 * 2 * 24);
  EXPECT_EQ(report.ranks[3].bytes_sent, 0);
  EXPECT_EQ(report.ranks[3].receives, 3);
  EXPECT_THAT(report.heat_map, ElementsAre(0, 48, 48, 48, 48, 0, 48, 48, 48, 48,
                                           0, 48, 0, 0, 0, 0));
}

TEST(PlanReportTest, ContiguousRunsNeedNoStaging) {
  const Boxes from = {{{{0, 0}, {8, 4}}, 0}};
  const Boxes to = {{{{0, 0}, {4, 4}}, 1}, {{{4, 0}, {4, 4}}, 2}};
  SHERD_ASSERT_OK_AND_ASSIGN(const PlanReport report, ExplainPlan(from, to));
  for (const RankReport& rank : report.ranks) EXPECT_EQ(rank.staging_bytes, 0);
  // Columns are runs where they arrive only.
  const Boxes columns = {{{{0, 0}, {8, 2}}, 1}, {{{0, 2}, {8, 2}}, 2}};
  SHERD_ASSERT_OK_AND_ASSIGN(const PlanReport cut, ExplainPlan(from, columns));
  EXPECT_EQ(cut.ranks[0].staging_bytes, 2 * 2 * 64);
  EXPECT_EQ(cut.ranks[1].staging_bytes, 0);
  // Runs that are not beside one another make no run.
  const Boxes apart = {{{{0, 0}, {1, 4}}, 1}, {{{4, 0}, {1, 4}}, 1}};
  SHERD_ASSERT_OK_AND_ASSIGN(const PlanReport two, ExplainPlan(from, apart));
  EXPECT_EQ(two.messages, 1);
  EXPECT_EQ(two.ranks[0].staging_bytes, 2 * 32);
  EXPECT_EQ(two.ranks[1].staging_bytes, 2 * 32);
}

TEST(PlanReportTest, DirectMovesHaveNoMessages) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const PlanReport report,
      ExplainPlan(Grid(4, 1, 2, 8, 4), Grid(1, 4, 8, 2, 4), {.direct = true}));
  EXPECT_EQ(report.bytes_moved(), 3 * 64);
  EXPECT_EQ(report.pairs, 12);
  EXPECT_EQ(report.messages, 0);
  EXPECT_EQ(report.rounds, 0);
  EXPECT_EQ(report.peak_extra_bytes(), 64);
  EXPECT_THAT(report.ToText(), HasSubstr("straight from shard to shard"));
}

TEST(PlanReportTest, NothingToMoveIsNotAnError) {
  for (const Boxes& boxes :
       {Boxes{}, Boxes{{{{0}, {0}}, 3}}, Grid(4, 1, 2, 8, 4)}) {
    SHERD_ASSERT_OK_AND_ASSIGN(const PlanReport report,
                               ExplainPlan(boxes, boxes, {.world_size = 5}));
    EXPECT_EQ(report.world_size(), 5);
    EXPECT_EQ(report.bytes_moved(), 0);
    EXPECT_EQ(report.ratio(), 1);
    EXPECT_EQ(report.bytes_in_place(), report.bytes_local());
    EXPECT_FALSE(report.ToText().empty());
    EXPECT_TRUE(nlohmann::json::accept(report.ToJson()));
  }
}

TEST(PlanReportTest, ManyRanksShareRowsOfTheHeatMap) {
  constexpr int kRanks = 150;
  SHERD_ASSERT_OK_AND_ASSIGN(
      const PlanReport report,
      ExplainPlan(Grid(kRanks, 1, 1, kRanks, kRanks),
                  Grid(1, kRanks, kRanks, 1, kRanks), {.element_size = 1}));
  ASSERT_EQ(report.heat_ranges.size(), 64u);
  EXPECT_EQ(report.heat_map.size(), 64u * 64);
  int next = 0;
  for (const auto& range : report.heat_ranges) {
    EXPECT_EQ(range.first, next);
    EXPECT_LE(range.last - range.first, 2);
    next = range.last + 1;
  }
  EXPECT_EQ(next, kRanks);
  int64_t total = 0;
  for (const int64_t bytes : report.heat_map) total += bytes;
  EXPECT_EQ(total, kRanks * (kRanks - 1));
  EXPECT_EQ(report.bytes_moved(), total);
  // A terminal is 100 columns wide.
  const std::string text = report.ToText();
  EXPECT_THAT(text, AllOf(HasSubstr("\nmedian "), HasSubstr("131-149")));
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    EXPECT_LE(end - at, 100u);
    at = end + 1;
  }
  EXPECT_EQ(nlohmann::json::parse(report.ToJson())["ranks"].size(), 150u);
}

TEST(PlanReportTest, EstimatesRoundsOfPlansTooLargeToCut) {
  // 2^40 bytes in messages of 32 KiB.
  const Boxes from = {{{{0}, {int64_t{1} << 40}}, 0}};
  const Boxes to = {{{{0}, {int64_t{1} << 40}}, 1}};
  SHERD_ASSERT_OK_AND_ASSIGN(
      const PlanReport report,
      ExplainPlan(from, to,
                  {.element_size = 1, .max_staging_bytes = 128 << 10}));
  EXPECT_FALSE(report.exact_rounds);
  EXPECT_EQ(report.messages, int64_t{1} << 25);
  EXPECT_EQ(report.rounds, int64_t{1} << 25);
  EXPECT_EQ(report.ranks[0].staging_bytes, 64 << 10);
  EXPECT_THAT(report.ToText(), HasSubstr("at least"));
}

TEST(PlanReportTest, RefusesWhatCannotBePlanned) {
  const Boxes rows = Grid(2, 1, 2, 4, 2);
  struct Case {
    Boxes from;
    Boxes to;
    PlanReportOptions options;
    const char* phrase;
  };
  const int one_host[] = {0};
  const Case cases[] = {
      {rows, {{{{0, 0}, {-1, 4}}, 0}}, {}, "none negative"},
      {rows, {{{{0}, {4}}, 0}}, {}, "has 1 dimensions"},
      {rows,
       {{{{0, 0}, {4, 5}}, 0}},
       {},
       "do not hold all elements of the box"},
      {{{{{0}, {3}}, 0}, {{{2}, {3}}, 1}},
       {{{{0}, {1}}, 0}},
       {},
       "overlap without being equal"},
      {rows, rows, {.world_size = 1}, "world_size is 1, expected 2 at least"},
      {rows, rows, {.world_size = (1 << 20) + 1}, "at most"},
      {rows, {{{{0, 0}, {1, 1}}, 1 << 20}}, {}, "at most"},
      {rows, rows, {.element_size = 0}, "element_size is 0"},
      {rows, rows, {.element_size = 17}, "element_size is 17"},
      {rows, rows, {.max_heat_map = 0}, "max_heat_map is 0"},
      {rows, rows, {.host_of_rank = one_host}, "hosts are given of 1 ranks"},
      {rows,
       Grid(1, 2, 4, 2, 2),
       {.max_staging_bytes = 15},
       "max_staging_bytes is 15"},
      {{{{{0}, {INT64_MAX / 4 + 1}}, 0}},
       {{{{0}, {INT64_MAX / 4 + 1}}, 1}},
       {},
       "more bytes than fit in 64 bits"},
      {{{{{0}, {INT64_MAX}}, 0}},
       {{{{0}, {INT64_MAX}}, 1}, {{{0}, {INT64_MAX}}, 2}},
       {.element_size = 1},
       "more bytes than fit in 64 bits"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(ExplainPlan(c.from, c.to, c.options),
                StatusIs(absl::StatusCode::kInvalidArgument, c.phrase));
  }
}

// Against the plans of the ranks

Boxes RandomBoxes(const Dims& size, int ranks, std::mt19937_64& random) {
  const auto spec =
      random() % 2 == 0
          ? sherd::testing::RandomMesh(size, AllRanks(ranks), random)
          : sherd::testing::RandomSpec(size, ranks, random);
  return PlacedBoxes(spec->BuildMetadata(size, {}).value().shards,
                     AllRanks(ranks))
      .value();
}

void CheckAgainstPlans(const Boxes& from, const Boxes& to, int ranks,
                       const PlanReportOptions& options) {
  SHERD_ASSERT_OK_AND_ASSIGN(const PlanReport report,
                             ExplainPlan(from, to, options));
  int64_t messages = 0, pairs = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ReshardPlan plan,
        ReshardPlan::Create(from, to, rank, options.host_of_rank));
    const RankReport& predicted = report.ranks[rank];
    const size_t element = options.element_size;
    EXPECT_EQ(predicted.bytes_sent, plan.bytes_sent(element));
    EXPECT_EQ(predicted.bytes_received, plan.bytes_received(element));
    EXPECT_EQ(predicted.bytes_local, plan.bytes_local(element));
    EXPECT_EQ(predicted.bytes_in_place, plan.bytes_in_place(element));
    EXPECT_EQ(predicted.lower_bound_bytes, plan.lower_bound_bytes(element));
    EXPECT_EQ(predicted.result_bytes,
              predicted.bytes_received + predicted.bytes_local);
    EXPECT_EQ(predicted.sends, static_cast<int64_t>(plan.sends().size()));
    EXPECT_EQ(predicted.receives, static_cast<int64_t>(plan.receives().size()));
    EXPECT_LE(predicted.staging_bytes, options.max_staging_bytes);
    SHERD_ASSERT_OK_AND_ASSIGN(
        const int64_t limit,
        internal::MaxMessageBytes(options.max_staging_bytes, plan.max_peers(),
                                  element));
    int64_t rounds = 0;
    for (const auto* side : {&plan.sends(), &plan.receives()}) {
      for (const PeerCopies& peer : *side) {
        const int64_t count = static_cast<int64_t>(
            internal::CutIntoRounds(peer.copies, element, limit).size());
        rounds = std::max(rounds, count);
        if (side != &plan.sends()) continue;
        messages += count;
        ++pairs;
        EXPECT_EQ(report.heat_map[rank * report.heat_ranges.size() + peer.peer],
                  peer.elements * static_cast<int64_t>(element));
      }
    }
    EXPECT_EQ(predicted.rounds, rounds);
  }
  EXPECT_EQ(report.messages, messages);
  EXPECT_EQ(report.pairs, pairs);
  EXPECT_EQ(report.ratio(), 1);
}

TEST(PlanReportTest, MatchesThePlansOfAllRanks) {
  const uint64_t seed = sherd::testing::RandomSeed();
  std::mt19937_64 random(seed);
  const int64_t cases = sherd::testing::CaseCount(150);
  for (int64_t i = 0; i < cases && !HasFailure(); ++i) {
    const int ranks = i % 25 == 0 ? 64 : static_cast<int>(1 + random() % 8);
    const Dims size = sherd::testing::RandomSize(5, 2000, random);
    const Boxes from = RandomBoxes(size, ranks, random);
    const Boxes to = RandomBoxes(size, ranks, random);
    std::vector<int> hosts;
    for (int rank = 0; rank < ranks; ++rank) {
      hosts.push_back(static_cast<int>(random() % 3));
    }
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", case ", i));
    CheckAgainstPlans(
        from, to, ranks,
        {.element_size = size_t{1} << random() % 5,
         .world_size = ranks,
         .max_staging_bytes = random() % 2 == 0 ? 64 << 20 : 16 * 4 * 64,
         .host_of_rank = hosts});
  }
}

}  // namespace
}  // namespace sherd
