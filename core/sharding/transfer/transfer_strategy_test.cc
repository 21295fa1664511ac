#include "sherd/core/sharding/transfer/transfer_strategy.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace sherd::internal {
namespace {

constexpr uint64_t kPull = TransferOffer::kSourcesReachable;
constexpr uint64_t kPush = TransferOffer::kDestinationsReachable;
constexpr uint64_t kBoth = kPull | kPush;
constexpr uint64_t kReady = TransferOffer::kMessagesReady;
constexpr uint64_t kDevice = TransferOffer::kDeviceReady;
constexpr uint64_t kShards = TransferOffer::kHasShards;

TransferOffer Bytes(uint64_t abilities, int64_t sent, int64_t received,
                    int64_t local = 0) {
  return {.abilities = abilities,
          .bytes_sent = sent,
          .bytes_received = received,
          .bytes_local = local};
}

TransferOffer Rounds(uint64_t abilities, int64_t rounds) {
  return {.abilities = abilities, .rounds = rounds};
}

TransferDecision Decide(const std::vector<TransferOffer>& offers,
                        const TransferSituation& situation = {}) {
  TransferChooser chooser(situation);
  for (const TransferOffer& offer : offers) chooser.Add(offer);
  return chooser.Decide();
}

void ExpectChoice(const TransferDecision& decision, TransferStrategy strategy,
                  TransferReason reason) {
  EXPECT_EQ(decision.strategy, strategy);
  EXPECT_EQ(decision.reason, reason);
}

TEST(TransferStrategyTest, WithoutAMoveNoStrategyIsChosen) {
  ExpectChoice(Decide({Bytes(kBoth, 0, 0), Bytes(0, 0, 0)}),
               TransferStrategy::kNone, TransferReason::kNothingMoves);
  // Local copies on devices are still made there.
  const TransferDecision local =
      Decide({Bytes(kDevice | kShards, 0, 0, 8), Bytes(kDevice, 0, 0)});
  ExpectChoice(local, TransferStrategy::kNone, TransferReason::kNothingMoves);
  EXPECT_TRUE(local.on_devices);
  EXPECT_TRUE(local.prepared);
  EXPECT_EQ(local.rounds, 0);
}

TEST(TransferStrategyTest, TheBusiestRankDecidesWhichEndCopies) {
  ExpectChoice(Decide({Bytes(kBoth, 5, 5), Bytes(kBoth, 5, 5)}),
               TransferStrategy::kPulled, TransferReason::kReadingIsBalanced);
  ExpectChoice(Decide({Bytes(kBoth, 0, 9), Bytes(kBoth, 9, 0)}),
               TransferStrategy::kPulled, TransferReason::kReadingIsBalanced);
  ExpectChoice(
      Decide({Bytes(kBoth, 0, 10), Bytes(kBoth, 5, 0), Bytes(kBoth, 5, 0)}),
      TransferStrategy::kPushed, TransferReason::kWritingIsBalanced);
  // Local copies are work as well.
  ExpectChoice(
      Decide({Bytes(kBoth, 0, 10), Bytes(kBoth, 5, 0, 6), Bytes(kBoth, 5, 0)}),
      TransferStrategy::kPulled, TransferReason::kReadingIsBalanced);
}

TEST(TransferStrategyTest, EveryRankHasToBeReachable) {
  ExpectChoice(Decide({Bytes(kPush, 5, 5), Bytes(kBoth, 5, 5)}),
               TransferStrategy::kPushed,
               TransferReason::kOnlyDestinationsReachable);
  ExpectChoice(Decide({Bytes(kBoth, 5, 0), Bytes(kPull, 0, 5)}),
               TransferStrategy::kPulled,
               TransferReason::kOnlySourcesReachable);
  ExpectChoice(Decide({Bytes(kPush, 5, 5), Bytes(kPull, 5, 5)}),
               TransferStrategy::kMessages, TransferReason::kShardsOutOfReach);
}

TEST(TransferStrategyTest, MessagesHaveAReason) {
  const std::vector<TransferOffer> reachable = {Bytes(kBoth, 5, 0),
                                                Bytes(kBoth, 0, 5)};
  ASSERT_TRUE(Decide(reachable).direct());
  ExpectChoice(Decide(reachable, {.direct = false}),
               TransferStrategy::kMessages, TransferReason::kDirectIsOff);
  ExpectChoice(Decide(reachable, {.one_host = false}),
               TransferStrategy::kMessages, TransferReason::kSeveralHosts);
  ExpectChoice(Decide(reachable, {.reduces = true}),
               TransferStrategy::kMessages, TransferReason::kReduces);
  // Across hosts, only rounds are reported.
  ExpectChoice(Decide({Rounds(kReady, 0), Rounds(kReady | kShards, 2)},
                      {.one_host = false}),
               TransferStrategy::kMessages, TransferReason::kSeveralHosts);
}

TEST(TransferStrategyTest, DevicesCarryMessagesWhereAllShardsAreOnThem) {
  const TransferDecision all =
      Decide({Rounds(kDevice | kShards, 3), Rounds(kDevice | kReady, 0)});
  ExpectChoice(all, TransferStrategy::kDeviceMessages,
               TransferReason::kShardsOnGroupDevices);
  EXPECT_TRUE(all.on_devices);
  EXPECT_TRUE(all.prepared);
  EXPECT_EQ(all.rounds, 3);
  // One rank has shards in host memory, the other prepared for its device.
  const TransferDecision mixed =
      Decide({Rounds(kDevice | kShards, 3), Rounds(kReady | kShards, 2)});
  EXPECT_EQ(mixed.strategy, TransferStrategy::kMessages);
  EXPECT_FALSE(mixed.on_devices);
  EXPECT_FALSE(mixed.prepared);
}

TEST(TransferStrategyTest, PreparedMessagesTakeTheRoundsOfTheBusiestRank) {
  const TransferDecision decision =
      Decide({Rounds(kReady, 1), Rounds(kReady, 4), Rounds(kReady, 2)});
  EXPECT_EQ(decision.strategy, TransferStrategy::kMessages);
  EXPECT_FALSE(decision.on_devices);
  EXPECT_TRUE(decision.prepared);
  EXPECT_EQ(decision.rounds, 4);
}

TEST(TransferStrategyTest, FallsBackToMessagesThatNoRankPrepared) {
  const TransferDecision fallback = FallBackToMessages(
      Decide({Bytes(kBoth | kReady, 5, 0), Bytes(kBoth | kReady, 0, 5)}));
  ExpectChoice(fallback, TransferStrategy::kMessages,
               TransferReason::kMappingFailed);
  EXPECT_FALSE(fallback.prepared);
  EXPECT_FALSE(fallback.on_devices);
}

TEST(TransferStrategyTest, StrategiesAndReasonsHaveNames) {
  EXPECT_EQ(Name(TransferStrategy::kNone), "none");
  EXPECT_EQ(Name(TransferStrategy::kMessages), "messages");
  EXPECT_EQ(Name(TransferStrategy::kPulled), "pulled");
  EXPECT_EQ(Name(TransferStrategy::kPushed), "pushed");
  EXPECT_EQ(Name(TransferStrategy::kDeviceMessages), "device messages");
  std::set<std::string> texts;
  for (int i = 0; i <= static_cast<int>(TransferReason::kMappingFailed); ++i) {
    const auto text = Describe(static_cast<TransferReason>(i));
    EXPECT_NE(text, "unknown");
    EXPECT_TRUE(texts.emplace(text).second) << text;
  }
}

}  // namespace
}  // namespace sherd::internal
