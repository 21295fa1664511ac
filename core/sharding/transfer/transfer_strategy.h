#ifndef SHERD_CORE_SHARDING_TRANSFER_TRANSFER_STRATEGY_H_
#define SHERD_CORE_SHARDING_TRANSFER_TRANSFER_STRATEGY_H_

#include <cstdint>
#include <ostream>

#include "absl/strings/string_view.h"

namespace sherd {

// How elements move from one rank to another.
enum class TransferStrategy {
  // No element changes rank.
  kNone,
  // By rounds of all_to_all_v, of messages in host memory.
  kMessages,
  // The rank that gets them reads the shards of the others.
  kPulled,
  // The rank that has them writes to the shards of the others.
  kPushed,
  // By rounds of all_to_all_v, of messages in the memory of the group's device.
  kDeviceMessages,
};

// "none", "messages", "pulled", "pushed", "device messages".
absl::string_view Name(TransferStrategy strategy);
std::ostream& operator<<(std::ostream& out, TransferStrategy strategy);

// Why a strategy was chosen.
enum class TransferReason {
  kNothingMoves,
  // Device messages.
  kShardsOnGroupDevices,
  // Pulled, or pushed: the other side cannot be reached, or the busiest rank
  // copies less in this direction.
  kOnlySourcesReachable,
  kOnlyDestinationsReachable,
  kReadingIsBalanced,
  kWritingIsBalanced,
  // Messages.
  kReduces,
  kDirectIsOff,
  kSeveralHosts,
  kShardsOutOfReach,
  kMappingFailed,
};

// The reason in words, to follow the name of the strategy: "ranks are on
// several hosts".
absl::string_view Describe(TransferReason reason);
std::ostream& operator<<(std::ostream& out, TransferReason reason);

namespace internal {

// A rank's report of its part in a move before it begins. The ranks gather all
// offers, and each decides from those alone.
struct TransferOffer {
  enum Ability : uint64_t {
    // Peers can reach all memory that they would read from this rank, or write
    // to it.
    kSourcesReachable = 1,
    kDestinationsReachable = 2,
    // It is ready for messages in host memory, in so many rounds.
    kMessagesReady = 4,
    // Where it has shards in the move, all are on its device of the group, and
    // it is ready for messages there, in so many rounds.
    kDeviceReady = 8,
    // It has shards in the move.
    kHasShards = 16,
  };

  bool can(Ability ability) const { return (abilities & ability) != 0; }

  uint64_t abilities = 0;
  int64_t rounds = 0;
  // Bytes that the rank sends to others, receives and copies itself. 0 across
  // hosts, where `rounds` shows whether anything moves.
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t bytes_local = 0;
};

// Facts that all ranks share without communication.
struct TransferSituation {
  // The move reduces (MessageMove::PrepareReduction).
  bool reduces = false;
  // ReshardOptions::direct.
  bool direct = true;
  bool one_host = true;
};

// The same on all ranks.
struct TransferDecision {
  TransferStrategy strategy = TransferStrategy::kNone;
  TransferReason reason = TransferReason::kNothingMoves;
  // The memory of messages, if there are any: on the group's devices or in host
  // memory; and whether every rank has already prepared its own there, in at
  // most so many rounds.
  bool on_devices = false;
  bool prepared = false;
  int64_t rounds = 0;

  bool direct() const {
    return strategy == TransferStrategy::kPulled ||
           strategy == TransferStrategy::kPushed;
  }
};

// Selects the strategy: add the offer of every rank, then decide.
//
// Shards that are all on the group's devices go by device messages. Otherwise
// ranks pull if all sources can be reached, push if all destinations can, and
// if both, in the direction in which the rank that copies most copies less, so
// that a scatter is pulled and a gather is pushed. Messages do the rest.
class TransferChooser {
 public:
  explicit TransferChooser(const TransferSituation& situation)
      : situation_(situation) {}

  void Add(const TransferOffer& offer);
  TransferDecision Decide() const;

 private:
  const TransferSituation situation_;
  uint64_t common_ = ~uint64_t{0};
  uint64_t any_ = 0;
  int64_t rounds_ = 0;
  bool moves_ = false;
  // Of the rank that would copy most.
  int64_t pulled_ = 0;
  int64_t pushed_ = 0;
};

// The decision after a direct one if a rank could not map another one's memory:
// by messages, which possibly no rank has prepared.
TransferDecision FallBackToMessages(const TransferDecision& decision);

}  // namespace internal
}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_TRANSFER_TRANSFER_STRATEGY_H_
