#include "sherd/core/sharding/plan/reshard_plan.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

using Boxes = std::vector<PlacedBox>;

Boxes BoxesOf(const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
              int ranks) {
  return PlacedBoxes(spec->BuildMetadata(size, {}).value().shards,
                     AllRanks(ranks))
      .value();
}

Boxes Chunks(int dim, absl::Span<const int64_t> size, int ranks) {
  return BoxesOf(
      ChunkShardingSpec::Create(dim, PlacementsOnRanks(ranks)).value(), size,
      ranks);
}

TEST(ReshardPlanTest, RowsToColumnsSendsOnePieceToEachOtherRank) {
  const Boxes rows = Chunks(0, {4, 6}, 2);
  const Boxes columns = Chunks(1, {4, 6}, 2);
  SHERD_ASSERT_OK_AND_ASSIGN(const ReshardPlan plan,
                             ReshardPlan::Create(rows, columns, 1));
  EXPECT_EQ(plan.rank(), 1);
  const BoxCopy sent = {{{2, 0}, {2, 3}}, 1, 1, 0, 0};
  const BoxCopy received = {{{0, 3}, {2, 3}}, 0, 0, 1, 1};
  const BoxCopy kept = {{{2, 3}, {2, 3}}, 1, 1, 1, 1};
  ASSERT_EQ(plan.sends().size(), 1u);
  EXPECT_EQ(plan.sends()[0].peer, 0);
  EXPECT_EQ(plan.sends()[0].elements, 6);
  EXPECT_THAT(plan.sends()[0].copies, ElementsAre(sent));
  ASSERT_EQ(plan.receives().size(), 1u);
  EXPECT_EQ(plan.receives()[0].peer, 0);
  EXPECT_THAT(plan.receives()[0].copies, ElementsAre(received));
  EXPECT_THAT(plan.local(), ElementsAre(kept));
  EXPECT_EQ(plan.bytes_sent(4), 24);
  EXPECT_EQ(plan.bytes_received(4), 24);
  EXPECT_EQ(plan.bytes_local(4), 24);
  EXPECT_EQ(plan.lower_bound_bytes(4), 24);
  EXPECT_EQ(plan.messages(), 2);
}

TEST(ReshardPlanTest, TheSameLayoutMovesNothing) {
  const Boxes rows = Chunks(0, {10, 6}, 4);
  for (int rank = 0; rank < 4; ++rank) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ReshardPlan plan,
                               ReshardPlan::Create(rows, rows, rank));
    EXPECT_EQ(plan.messages(), 0);
    EXPECT_EQ(plan.elements_local(), rank < 3 ? 18 : 6);
    EXPECT_EQ(plan.lower_bound_elements(), 0);
  }
}

TEST(ReshardPlanTest, ATensorWithoutElementsMovesNothing) {
  for (const Dims& size : {Dims{0, 4}, Dims{4, 0}, Dims{0}}) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ReshardPlan plan,
        ReshardPlan::Create(Chunks(0, size, 3), Chunks(-1, size, 3), 0));
    EXPECT_EQ(plan.messages(), 0);
    EXPECT_THAT(plan.local(), IsEmpty());
  }
  EXPECT_THAT(ReshardPlan::Create({}, {}, 0), IsOk());
}

TEST(ReshardPlanTest, AScalarChangesRank) {
  const Boxes from = {{{{}, {}}, 2}};
  const Boxes to = {{{{}, {}}, 0}};
  SHERD_ASSERT_OK_AND_ASSIGN(const ReshardPlan plan,
                             ReshardPlan::Create(from, to, 0));
  EXPECT_EQ(plan.elements_received(), 1);
  ASSERT_EQ(plan.receives().size(), 1u);
  EXPECT_EQ(plan.receives()[0].peer, 2);
}

TEST(ReshardPlanTest, PrefersTheReplicaOnTheSameRank) {
  const Boxes from = {{{{0}, {8}}, 0}, {{{0}, {8}}, 1}, {{{0}, {8}}, 2}};
  const Boxes to = {{{{0}, {4}}, 2}, {{{4}, {4}}, 1}};
  for (int rank = 0; rank < 3; ++rank) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ReshardPlan plan,
                               ReshardPlan::Create(from, to, rank));
    EXPECT_EQ(plan.messages(), 0);
    EXPECT_EQ(plan.elements_local(), rank == 0 ? 0 : 4);
    EXPECT_EQ(plan.lower_bound_elements(), 0);
  }
}

TEST(ReshardPlanTest, LoadsReplicasAlike) {
  // 60 boxes on two ranks each, to ranks that have none of them.
  Boxes together, one_after_the_other;
  for (int64_t i = 0; i < 60; ++i) {
    together.push_back({{{i}, {1}}, 0});
    together.push_back({{{i}, {1}}, 1});
    one_after_the_other.push_back({{{i}, {1}}, 0});
  }
  for (int64_t i = 0; i < 60; ++i) {
    one_after_the_other.push_back({{{i}, {1}}, 1});
  }
  const Boxes one = {{{{0}, {60}}, 2}};
  const Boxes three = {{{{0}, {20}}, 2}, {{{20}, {20}}, 3}, {{{40}, {20}}, 4}};
  for (const Boxes& from : {together, one_after_the_other}) {
    for (const Boxes& to : {one, three}) {
      for (const int rank : {0, 1}) {
        SHERD_ASSERT_OK_AND_ASSIGN(const ReshardPlan plan,
                                   ReshardPlan::Create(from, to, rank));
        EXPECT_EQ(plan.elements_sent(), 30);
      }
    }
  }
}

// Elements that each rank sends.
std::vector<int64_t> Sent(const Boxes& from, const Boxes& to, int ranks,
                          const std::vector<int>& host_of_rank = {}) {
  std::vector<int64_t> sent;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto plan = ReshardPlan::Create(from, to, rank, host_of_rank);
    EXPECT_THAT(plan, IsOk());
    sent.push_back(plan.ok() ? plan->elements_sent() : -1);
  }
  return sent;
}

TEST(ReshardPlanTest, LoadsTheReplicasOfAMeshAlike) {
  // Two columns, each on a column of a 2 x 2 mesh; to a 4 x 2 grid of others,
  // of which every second reads the same column.
  const Boxes from = {{{{0, 0}, {8, 4}}, 0},
                      {{{0, 4}, {8, 4}}, 1},
                      {{{0, 0}, {8, 4}}, 2},
                      {{{0, 4}, {8, 4}}, 3}};
  Boxes to;
  for (int i = 0; i < 8; ++i) {
    to.push_back({{{i / 2 * 2, i % 2 * 4}, {2, 4}}, 4 + i});
  }
  EXPECT_THAT(Sent(from, to, 12),
              ElementsAre(16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0));
  // Those of the first column read their own; the others are shared.
  for (int i = 0; i < 8; i += 2) to[i].rank = i < 4 ? 0 : 2;
  EXPECT_THAT(Sent(from, to, 12),
              ElementsAre(0, 16, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0));
}

TEST(ReshardPlanTest, ReadsTheReplicaOfItsHost) {
  // Ranks 0 to 3 on two hosts have all; 4 is on the second host, 5 on the
  // first, 6 and 7 on a third.
  const std::vector<int> hosts = {7, 7, 3, 3, 3, 7, 1, 1};
  Boxes from, to;
  for (int rank = 0; rank < 4; ++rank) from.push_back({{{0}, {8}}, rank});
  for (const int rank : {4, 4, 5, 5}) to.push_back({{{0}, {8}}, rank});
  EXPECT_THAT(Sent(from, to, 8, hosts), ElementsAre(8, 8, 8, 8, 0, 0, 0, 0));
  for (int i = 0; i < 3; ++i) to.push_back({{{0}, {8}}, 4});
  EXPECT_THAT(Sent(from, to, 8, hosts), ElementsAre(8, 8, 24, 16, 0, 0, 0, 0));
  // Without a holder on the host, turns go round all.
  to.clear();
  for (const int rank : {6, 6, 6, 6, 7, 7, 7, 7})
    to.push_back({{{0}, {8}}, rank});
  EXPECT_THAT(Sent(from, to, 8, hosts),
              ElementsAre(16, 16, 16, 16, 0, 0, 0, 0));
  EXPECT_THAT(ReshardPlan::Create(from, to, 0, {0, 1, 2}),
              StatusIs(kInvalid, "hosts are given of 3 ranks only"));
}

TEST(ReshardPlanTest, ReadsOneReplicaOfARankThatHasSeveral) {
  const Boxes from = {{{{0}, {4}}, 0}, {{{0}, {4}}, 0}, {{{0}, {4}}, 1}};
  const Boxes to = {
      {{{0}, {4}}, 2}, {{{0}, {4}}, 2}, {{{0}, {4}}, 2}, {{{0}, {4}}, 2}};
  EXPECT_THAT(Sent(from, to, 3), ElementsAre(8, 8, 0));
}

TEST(ReshardPlanTest, ListsTheBoxesThatStayInPlace) {
  const Boxes from = {{{{0, 0}, {2, 4}}, 0},
                      {{{2, 0}, {2, 4}}, 1},
                      {{{4, 0}, {2, 4}}, 0},
                      {{{2, 0}, {2, 4}}, 0}};
  // Kept; kept twice, of which one can be in place; cut; of another rank.
  const Boxes to = {{{{0, 0}, {2, 4}}, 0},
                    {{{2, 0}, {2, 4}}, 0},
                    {{{2, 0}, {2, 4}}, 0},
                    {{{4, 0}, {2, 2}}, 0},
                    {{{0, 0}, {2, 4}}, 1}};
  SHERD_ASSERT_OK_AND_ASSIGN(const ReshardPlan plan,
                             ReshardPlan::Create(from, to, 0));
  EXPECT_THAT(plan.in_place(), ElementsAre(0, 1));
  EXPECT_EQ(plan.local()[0].dst_shard, 0);
  EXPECT_EQ(plan.local()[1].dst_shard, 1);
  EXPECT_EQ(plan.local()[1].src_shard, 3);
  EXPECT_EQ(plan.elements_in_place(), 16);
  EXPECT_EQ(plan.elements_local(), 8 + 8 + 8 + 4);
  EXPECT_EQ(plan.bytes_in_place(8), 128);
  SHERD_ASSERT_OK_AND_ASSIGN(const ReshardPlan other,
                             ReshardPlan::Create(from, to, 1));
  EXPECT_THAT(other.in_place(), IsEmpty());
}

TEST(ReshardPlanTest, RefusesMoreElementsThanBytesCanBeCounted) {
  constexpr int64_t kMost = INT64_MAX / 16;
  const Boxes from = {{{{0}, {kMost + 1}}, 0}};
  const Boxes fits = {{{{0}, {kMost}}, 1}};
  SHERD_ASSERT_OK_AND_ASSIGN(const ReshardPlan plan,
                             ReshardPlan::Create(from, fits, 1));
  EXPECT_EQ(plan.bytes_received(16), kMost * 16);
  EXPECT_THAT(ReshardPlan::Create(from, fits, 0), IsOk());
  // Received in all, and sent in all.
  for (const Boxes& to : {Boxes{{{{0}, {kMost + 1}}, 1}},
                          Boxes{{{{0}, {kMost}}, 1}, {{{0}, {1}}, 1}},
                          Boxes{{{{0}, {kMost}}, 1}, {{{0}, {1}}, 2}}}) {
    EXPECT_THAT(ReshardPlan::Create(from, to, to.back().rank == 2 ? 0 : 1),
                StatusIs(kInvalid, "more elements than fit in 64 bits"));
  }
}

TEST(ReshardPlanTest, GivesEveryReplicaOfTheDestinationAllElements) {
  const Boxes from = Chunks(0, {6}, 2);
  const Boxes to = {{{{0}, {6}}, 0}, {{{0}, {6}}, 1}, {{{1}, {4}}, 1}};
  SHERD_ASSERT_OK_AND_ASSIGN(const ReshardPlan plan,
                             ReshardPlan::Create(from, to, 1));
  EXPECT_EQ(plan.elements_local(), 3 + 2);
  EXPECT_EQ(plan.elements_received(), 3 + 2);
  EXPECT_EQ(plan.lower_bound_elements(), 3 + 2);
  EXPECT_EQ(plan.elements_sent(), 3);
}

TEST(ReshardPlanTest, AReductionBringsEachElementFromEveryRank) {
  const Boxes to = {
      {{{0}, {3}}, 2}, {{{3}, {1}}, 0}, {{{4}, {0}}, 1}, {{{4}, {2}}, 2}};
  SHERD_ASSERT_OK_AND_ASSIGN(const ReshardPlan plan,
                             ReshardPlan::CreateReduction(to, 2, 3));
  EXPECT_EQ(plan.rank(), 2);
  EXPECT_EQ(plan.max_peers(), 2);
  EXPECT_THAT(plan.local(), ElementsAre(BoxCopy{{{0}, {3}}, 2, 0, 2, 0},
                                        BoxCopy{{{4}, {2}}, 2, 0, 2, 3}));
  ASSERT_EQ(plan.sends().size(), 1u);
  EXPECT_EQ(plan.sends()[0].peer, 0);
  EXPECT_EQ(plan.sends()[0].elements, 1);
  EXPECT_THAT(plan.sends()[0].copies,
              ElementsAre(BoxCopy{{{3}, {1}}, 2, 0, 0, 1}));
  ASSERT_EQ(plan.receives().size(), 2u);
  for (const int peer : {0, 1}) {
    const PeerCopies& received = plan.receives()[static_cast<size_t>(peer)];
    EXPECT_EQ(received.peer, peer);
    EXPECT_EQ(received.elements, 5);
    EXPECT_THAT(received.copies,
                ElementsAre(BoxCopy{{{0}, {3}}, peer, 0, 2, 0},
                            BoxCopy{{{4}, {2}}, peer, 0, 2, 3}));
  }
  EXPECT_EQ(plan.elements_sent(), 1);
  EXPECT_EQ(plan.elements_received(), 10);
  EXPECT_EQ(plan.elements_local(), 5);
  EXPECT_EQ(plan.lower_bound_elements(), 10);

  // A rank without boxes only sends.
  SHERD_ASSERT_OK_AND_ASSIGN(const ReshardPlan sender,
                             ReshardPlan::CreateReduction(to, 1, 3));
  EXPECT_EQ(sender.sends().size(), 2u);
  EXPECT_THAT(sender.receives(), IsEmpty());
  EXPECT_THAT(sender.local(), IsEmpty());
}

TEST(ReshardPlanTest, AReductionRefusesInvalidBoxes) {
  constexpr int64_t kMost = INT64_MAX / 16;
  const Boxes half = {{{{0}, {kMost / 2}}, 0}};
  EXPECT_THAT(ReshardPlan::CreateReduction(half, 0, 2), IsOk());
  EXPECT_THAT(ReshardPlan::CreateReduction(half, 0, 3),
              StatusIs(kInvalid, "receives more elements than fit"));
  EXPECT_THAT(ReshardPlan::CreateReduction({{{{0}, {kMost}}, 1},  //
                                            {{{kMost}, {1}}, 1}},
                                           0, 2),
              StatusIs(kInvalid, "sends more elements than fit"));
  EXPECT_THAT(ReshardPlan::CreateReduction({{{{0}, {2}}, 2}}, 0, 2),
              StatusIs(kInvalid, "expected a rank of a group of 2"));
  EXPECT_THAT(ReshardPlan::CreateReduction({{{{-1}, {2}}, 0}}, 0, 2),
              StatusIs(kInvalid, "none negative"));
}

TEST(ReshardPlanTest, RefusesBoxesThatAreNone) {
  struct Case {
    Boxes from;
    Boxes to;
    const char* phrase;
  };
  const Case cases[] = {
      {{{{{0}, {4, 1}}, 0}}, {}, "as many offsets as sizes"},
      {{{{{0}, {4}}, 0}}, {{{{-1}, {4}}, 0}}, "none negative"},
      {{{{{0}, {-4}}, 0}}, {}, "none negative"},
      {{{{{1}, {INT64_MAX}}, 0}}, {}, "fits in 64 bits"},
      {{{{{0, 0}, {int64_t{1} << 40, int64_t{1} << 40}}, 0}},
       {},
       "fits in 64 bits"},
      {{{{{0}, {4}}, -1}}, {}, "on rank -1"},
      {{{{{0}, {4}}, 0}}, {{{{0, 0}, {4, 1}}, 0}}, "has 2 dimensions"},
      {{{{{0}, {4}}, 1}},
       {{{{0}, {5}}, 0}},
       "do not hold all elements of the box"},
      {{}, {{{{}, {}}, 0}}, "do not hold all elements of the box"},
      {{{{{0}, {3}}, 1}, {{{2}, {3}}, 2}},
       {{{{0}, {5}}, 0}},
       "overlap without being equal"},
      // An overlap that makes up for a gap.
      {{{{{0}, {3}}, 1}, {{{2}, {2}}, 2}},
       {{{{0}, {5}}, 0}},
       "overlap without being equal"},
      {{{{{0}, {1}}, 1}},
       {{{{0}, {INT64_MAX}}, 0}, {{{1}, {INT64_MAX - 1}}, 0}},
       "more elements than fit in 64 bits"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(ReshardPlan::Create(c.from, c.to, 0),
                StatusIs(kInvalid, c.phrase));
  }
}

TEST(ReshardPlanTest, BoundsThePeersOfAnyRankAlikeOnAllRanks) {
  const auto max_peers = [](const Boxes& from, const Boxes& to, int ranks) {
    std::vector<int> bounds;
    for (int rank = 0; rank < ranks; ++rank) {
      bounds.push_back(ReshardPlan::Create(from, to, rank)->max_peers());
    }
    EXPECT_THAT(bounds, ::testing::Each(bounds[0]));
    return bounds[0];
  };
  const Boxes rows = Chunks(0, {8, 8}, 4);
  EXPECT_EQ(max_peers(rows, rows, 4), 0);
  EXPECT_EQ(max_peers(rows, Chunks(1, {8, 8}, 4), 4), 3);
  Boxes rotated = rows;
  for (PlacedBox& box : rotated) box.rank = (box.rank + 1) % 4;
  EXPECT_EQ(max_peers(rows, rotated, 4), 1);
  // Three send to one.
  const Boxes whole = {{{{0, 0}, {8, 8}}, 2}};
  EXPECT_EQ(max_peers(rows, whole, 4), 3);
  EXPECT_EQ(max_peers(whole, rows, 4), 3);
  // More overlaps than are counted: 400 rows to 400 columns on two ranks each.
  Boxes many_rows, many_columns;
  for (int i = 0; i < 400; ++i) {
    many_rows.push_back({{{i, 0}, {1, 400}}, i % 2});
    many_columns.push_back({{{0, i}, {400, 1}}, 5 + i % 2});
  }
  EXPECT_EQ(internal::MaxPeers(many_rows, many_columns, 2), 6);
}

TEST(ReshardPlanTest, OwnersComeFromPlacements) {
  const std::vector<ShardMetadata> shards = {
      {{0}, {2}, Placement("rank:1")}, {{2}, {0}, Placement("rank:0/cuda:0")}};
  SHERD_ASSERT_OK_AND_ASSIGN(const Boxes boxes,
                             PlacedBoxes(shards, AllRanks(2)));
  ASSERT_EQ(boxes.size(), 2u);
  EXPECT_EQ(boxes[0].rank, 1);
  EXPECT_THAT(boxes[1].offsets, ElementsAre(2));
  EXPECT_THAT(boxes[1].sizes, ElementsAre(0));
  EXPECT_THAT(PlacedBoxes(shards, AllRanks(1)),
              StatusIs(kInvalid, "Global rank 1"));
}

// Against the definition, element by element

template <typename Visit>
void ForEachElement(const Dims& offsets, const Dims& sizes, Visit visit) {
  for (const int64_t n : sizes) {
    if (n == 0) return;
  }
  Dims at = offsets;
  while (true) {
    visit(at);
    size_t d = at.size();
    while (d > 0 && ++at[d - 1] == offsets[d - 1] + sizes[d - 1]) {
      at[d - 1] = offsets[d - 1];
      --d;
    }
    if (d == 0) return;
  }
}

// Some boxes again, on other ranks.
Boxes WithReplicas(Boxes boxes, int ranks, std::mt19937_64& random) {
  const size_t n = boxes.size();
  const size_t copies = random() % 3;
  for (size_t i = 0; i < n * copies; ++i) {
    PlacedBox replica = boxes[random() % n];
    replica.rank = static_cast<int>(random() % static_cast<uint64_t>(ranks));
    boxes.push_back(replica);
  }
  std::shuffle(boxes.begin(), boxes.end(), random);
  return boxes;
}

void CheckPlan(const Boxes& from, const Boxes& to, const ReshardPlan& plan) {
  const int rank = plan.rank();
  // How often each element of each destination box of this rank is written.
  std::map<std::pair<int, Dims>, int> written;
  int64_t received = 0;
  const auto check = [&](const BoxCopy& copy) {
    EXPECT_EQ(from[copy.src_shard].rank, copy.src_rank);
    EXPECT_EQ(to[copy.dst_shard].rank, copy.dst_rank);
    ForEachElement(copy.offsets, copy.sizes, [&](const Dims& at) {
      EXPECT_TRUE(Contains(from[copy.src_shard], at));
      EXPECT_TRUE(Contains(to[copy.dst_shard], at));
      if (copy.dst_rank == rank) ++written[{copy.dst_shard, at}];
    });
  };
  for (const BoxCopy& copy : plan.local()) {
    EXPECT_EQ(copy.src_rank, rank);
    EXPECT_EQ(copy.dst_rank, rank);
    check(copy);
  }
  for (const PeerCopies& peer : plan.receives()) {
    EXPECT_NE(peer.peer, rank);
    for (const BoxCopy& copy : peer.copies) {
      EXPECT_EQ(copy.src_rank, peer.peer);
      EXPECT_EQ(copy.dst_rank, rank);
      check(copy);
      ForEachElement(copy.offsets, copy.sizes, [&](const Dims& at) {
        ++received;
        for (const PlacedBox& box : from) {
          EXPECT_FALSE(box.rank == rank && Contains(box, at))
              << "it had the element itself";
        }
      });
    }
  }
  for (const PeerCopies& peer : plan.sends()) {
    EXPECT_NE(peer.peer, rank);
    for (const BoxCopy& copy : peer.copies) {
      EXPECT_EQ(copy.src_rank, rank);
      EXPECT_EQ(copy.dst_rank, peer.peer);
      check(copy);
    }
  }
  size_t expected = 0;
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i].rank != rank) continue;
    ForEachElement(to[i].offsets, to[i].sizes, [&](const Dims& at) {
      ++expected;
      EXPECT_EQ((written[{static_cast<int>(i), at}]), 1);
    });
  }
  EXPECT_EQ(written.size(), expected);
  EXPECT_EQ(plan.elements_received(), received);
  EXPECT_EQ(plan.lower_bound_elements(), received);
  EXPECT_LE(plan.sends().size(), static_cast<size_t>(plan.max_peers()));
  EXPECT_LE(plan.receives().size(), static_cast<size_t>(plan.max_peers()));
  EXPECT_EQ(plan.elements_local() + received, static_cast<int64_t>(expected));
  for (const int i : plan.in_place()) {
    const BoxCopy& copy = plan.local()[i];
    EXPECT_EQ(copy.sizes, from[copy.src_shard].sizes);
    EXPECT_EQ(copy.sizes, to[copy.dst_shard].sizes);
  }
}

std::string Describe(const Boxes& boxes) {
  std::string text;
  for (const PlacedBox& box : boxes) {
    absl::StrAppend(&text, FormatDims(box.offsets), "+", FormatDims(box.sizes),
                    "@", box.rank, " ");
  }
  return text;
}

// Plans of all ranks, each by itself and all together.
void CheckPlans(const Boxes& from, const Boxes& to, int ranks,
                const std::vector<int>& host_of_rank) {
  // One end sends exactly the data that the other one receives, in the same
  // order.
  std::map<std::pair<int, int>, std::vector<BoxCopy>> sent, received;
  int64_t moved = 0, bound = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ReshardPlan plan,
        ReshardPlan::Create(from, to, rank, host_of_rank));
    CheckPlan(from, to, plan);
    for (const PeerCopies& peer : plan.sends()) {
      sent[{rank, peer.peer}] = peer.copies;
    }
    for (const PeerCopies& peer : plan.receives()) {
      received[{peer.peer, rank}] = peer.copies;
    }
    moved += plan.elements_sent();
    bound += plan.lower_bound_elements();
  }
  EXPECT_EQ(sent, received);
  EXPECT_EQ(moved, bound);
}

// A spec of any kind, or boxes with replicas anywhere.
Boxes RandomBoxes(const Dims& size, int ranks, std::mt19937_64& random) {
  if (random() % 3 == 0) {
    return BoxesOf(sherd::testing::RandomMesh(size, AllRanks(ranks), random),
                   size, ranks);
  }
  const Boxes boxes =
      BoxesOf(sherd::testing::RandomSpec(size, ranks, random), size, ranks);
  return random() % 2 == 0 ? boxes : WithReplicas(boxes, ranks, random);
}

std::vector<int> RandomHosts(int ranks, std::mt19937_64& random) {
  std::vector<int> hosts;
  if (random() % 2 == 0) return hosts;
  const uint64_t count = 1 + random() % 3;
  for (int rank = 0; rank < ranks; ++rank) {
    hosts.push_back(static_cast<int>(random() % count));
  }
  return hosts;
}

TEST(ReshardPlanTest, MovesEachElementOnceBetweenAnyLayouts) {
  const uint64_t seed = sherd::testing::RandomSeed();
  std::mt19937_64 random(seed);
  const int64_t cases = sherd::testing::CaseCount(300);
  for (int64_t i = 0; i < cases && !HasFailure(); ++i) {
    const int ranks = static_cast<int>(1 + random() % 8);
    const int max_dims = i % 10 == 0 ? 7 : 4;
    const Dims size = sherd::testing::RandomSize(max_dims, 150, random);
    const Boxes from = RandomBoxes(size, ranks, random);
    const Boxes to = RandomBoxes(size, ranks, random);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", case ", i, ": ", Describe(from),
                              " to ", Describe(to)));
    CheckPlans(from, to, ranks, RandomHosts(ranks, random));
  }
}

TEST(ReshardPlanTest, MovesEachElementOnceBetweenManyRanks) {
  const uint64_t seed = sherd::testing::RandomSeed();
  std::mt19937_64 random(seed);
  for (int i = 0; i < 4 && !HasFailure(); ++i) {
    const Dims size = sherd::testing::RandomSize(3, 400, random);
    const Boxes from = RandomBoxes(size, 64, random);
    const Boxes to = RandomBoxes(size, 64, random);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", case ", i, ": ", Describe(from),
                              " to ", Describe(to)));
    CheckPlans(from, to, 64, RandomHosts(64, random));
  }
}

TEST(ReshardPlanTest, RejectsCopiesThatAreNotThisRanksOrOccurTwice) {
  BoxCopy copy;
  static_cast<Box&>(copy) = {{0}, {3}};
  copy.src_shard = 4;
  copy.dst_rank = 1;
  copy.dst_shard = 5;
  const auto error = [](std::vector<BoxCopy> copies, int rank, int world) {
    return ReshardPlan::OfCopies(std::move(copies), rank, world).status();
  };
  EXPECT_THAT(error({copy}, 1, 2), IsOk());
  EXPECT_THAT(error({copy}, 2, 3), StatusIs(kInvalid, "expected rank 2"));
  EXPECT_THAT(error({copy}, 0, 1), StatusIs(kInvalid, "a group of 1"));
  EXPECT_THAT(error({copy, copy}, 0, 2),
              StatusIs(kInvalid, "two copies from shard 4 of rank 0"));
  // Shards of different ranks may have the same numbers.
  BoxCopy back = copy;
  std::swap(back.src_rank, back.dst_rank);
  EXPECT_THAT(error({copy, back}, 0, 2), IsOk());
}

TEST(ReshardPlanTest, PlansForOneOfTenThousandRanksAtOnce) {
  // 1000 x 100 boxes, every rank has ten; to columns, a hundred boxes each.
  constexpr int kRanks = 10'000;
  Boxes grid, columns;
  for (int64_t i = 0; i < 100'000; ++i) {
    grid.push_back(
        {{{i / 100 * 3, i % 100 * 4}, {3, 4}}, static_cast<int>(i % kRanks)});
  }
  for (int i = 0; i < 400; ++i) {
    for (int64_t part = 0; part < 100; ++part) {
      columns.push_back({{{30 * part, i}, {30, 1}}, i});
    }
  }
  SHERD_ASSERT_OK_AND_ASSIGN(const ReshardPlan plan,
                             ReshardPlan::Create(grid, columns, 123));
  EXPECT_EQ(plan.elements_received() + plan.elements_local(), 3000);
  EXPECT_EQ(plan.elements_sent() + plan.elements_local(), 120);
  EXPECT_EQ(plan.elements_received(), plan.lower_bound_elements());
}

}  // namespace
}  // namespace sherd
