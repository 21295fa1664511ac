#include "sherd/core/sharding/transfer/transfer_strategy.h"

#include <algorithm>

namespace sherd {

absl::string_view Name(TransferStrategy strategy) {
  switch (strategy) {
    case TransferStrategy::kNone:
      return "none";
    case TransferStrategy::kMessages:
      return "messages";
    case TransferStrategy::kPulled:
      return "pulled";
    case TransferStrategy::kPushed:
      return "pushed";
    case TransferStrategy::kDeviceMessages:
      return "device messages";
  }
  return "unknown";
}

std::ostream& operator<<(std::ostream& out, TransferStrategy strategy) {
  return out << Name(strategy);
}

absl::string_view Describe(TransferReason reason) {
  switch (reason) {
    case TransferReason::kNothingMoves:
      return "no element changes rank";
    case TransferReason::kShardsOnGroupDevices:
      return "the shards of every rank are on its device of the group";
    case TransferReason::kOnlySourcesReachable:
      return "ranks reach all sources, but not all destinations";
    case TransferReason::kOnlyDestinationsReachable:
      return "ranks reach all destinations, but not all sources";
    case TransferReason::kReadingIsBalanced:
      return "ranks reach all shards, and the busiest one copies no more by "
             "reading than by writing";
    case TransferReason::kWritingIsBalanced:
      return "ranks reach all shards, and the busiest one copies less by "
             "writing than by reading";
    case TransferReason::kReduces:
      return "summands are reduced by the rank that receives them";
    case TransferReason::kDirectIsOff:
      return "the options exclude direct moves";
    case TransferReason::kSeveralHosts:
      return "ranks are on several hosts";
    case TransferReason::kShardsOutOfReach:
      return "ranks reach neither all sources nor all destinations";
    case TransferReason::kMappingFailed:
      return "a rank could not map the memory of another one";
  }
  return "unknown";
}

std::ostream& operator<<(std::ostream& out, TransferReason reason) {
  return out << Describe(reason);
}

namespace internal {
namespace {

TransferReason ReasonForMessages(const TransferSituation& situation) {
  if (situation.reduces) return TransferReason::kReduces;
  if (!situation.direct) return TransferReason::kDirectIsOff;
  if (!situation.one_host) return TransferReason::kSeveralHosts;
  return TransferReason::kShardsOutOfReach;
}

}  // namespace

void TransferChooser::Add(const TransferOffer& offer) {
  common_ &= offer.abilities;
  any_ |= offer.abilities;
  rounds_ = std::max(rounds_, offer.rounds);
  moves_ = moves_ || offer.rounds > 0 || offer.bytes_sent > 0 ||
           offer.bytes_received > 0;
  pulled_ = std::max(pulled_, offer.bytes_local + offer.bytes_received);
  pushed_ = std::max(pushed_, offer.bytes_local + offer.bytes_sent);
}

TransferDecision TransferChooser::Decide() const {
  TransferDecision decision;
  decision.rounds = rounds_;
  decision.on_devices = (common_ & TransferOffer::kDeviceReady) != 0 &&
                        (any_ & TransferOffer::kHasShards) != 0;
  decision.prepared =
      decision.on_devices || (common_ & TransferOffer::kMessagesReady) != 0;
  const auto choose = [&](TransferStrategy strategy, TransferReason reason) {
    decision.strategy = strategy;
    decision.reason = reason;
    return decision;
  };
  if (!moves_) return decision;
  if (decision.on_devices) {
    return choose(TransferStrategy::kDeviceMessages,
                  TransferReason::kShardsOnGroupDevices);
  }
  const bool direct =
      situation_.direct && situation_.one_host && !situation_.reduces;
  const bool can_pull =
      direct && (common_ & TransferOffer::kSourcesReachable) != 0;
  const bool can_push =
      direct && (common_ & TransferOffer::kDestinationsReachable) != 0;
  if (can_pull && can_push) {
    return pulled_ <= pushed_ ? choose(TransferStrategy::kPulled,
                                       TransferReason::kReadingIsBalanced)
                              : choose(TransferStrategy::kPushed,
                                       TransferReason::kWritingIsBalanced);
  }
  if (can_pull) {
    return choose(TransferStrategy::kPulled,
                  TransferReason::kOnlySourcesReachable);
  }
  if (can_push) {
    return choose(TransferStrategy::kPushed,
                  TransferReason::kOnlyDestinationsReachable);
  }
  return choose(TransferStrategy::kMessages, ReasonForMessages(situation_));
}

TransferDecision FallBackToMessages(const TransferDecision& decision) {
  return {.strategy = TransferStrategy::kMessages,
          .reason = TransferReason::kMappingFailed,
          .prepared = false,
          .rounds = decision.rounds};
}

}  // namespace internal
}  // namespace sherd
