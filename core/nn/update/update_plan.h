#ifndef SHERD_CORE_NN_UPDATE_UPDATE_PLAN_H_
#define SHERD_CORE_NN_UPDATE_UPDATE_PLAN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/nn/lookup/planned_table.h"
#include "sherd/core/nn/update/accumulators.h"
#include "sherd/core/nn/update/gradient_messages.h"
#include "sherd/core/nn/update/peer_bytes.h"
#include "sherd/core/nn/update/shard_updates.h"
#include "sherd/core/nn/update/update_checks.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd::internal {

// What a LookUpPlan keeps for Update.
class UpdatePlan {
 public:
  // Forgets what was planned if a Tensor has another size than that of the last
  // call: it may be another one.
  void PlanFor(absl::Span<const PlannedTable> tables) {
    Fingerprint sizes;
    for (const PlannedTable& table : tables) {
      sizes.Add(table.plain ? table.rows : -1).Add(table.columns);
    }
    if (sizes.value() == sizes_) return;
    sizes_ = sizes.value();
    messages_ = {};
    shards.reset();
  }

  // The messages in one of their forms.
  std::optional<GradientMessages>& messages(bool for_all) {
    return messages_[for_all ? 1 : 0];
  }

  std::optional<ShardUpdates> shards;
  // Messages and sums of squares of this rank: read by the others, or sent.
  PeerBytes outbox;
  PeerBytes sums;
  // What was received of each, if it was sent. A peer announces how much: the
  // memory is not touched before that has arrived.
  PeerBytes inbox;
  PeerBytes sums_inbox;
  // That of each rank, wherever it is.
  std::vector<absl::Span<const std::byte>> received;
  // Of the tables that were last found to share no memory.
  std::optional<uint64_t> apart;
  // A rank could not map the others' messages.
  bool unreachable = false;

  // Lets go of the call's tensors.
  void EndCall() {
    gradients.clear();
    prepared.clear();
    accumulators.clear();
  }

  // Of the call, by lookup.
  std::vector<Tensor> gradients;
  std::vector<size_t> same;
  std::vector<std::pair<TableIdentity, size_t>> by_identity;
  std::vector<PreparedAccumulator> prepared;
  std::vector<Value> accumulators;
  // Of agreements and exchanges.
  std::vector<uint64_t> note;
  std::vector<uint64_t> notes;
  std::vector<std::byte*> writers;
  std::vector<ConstBytes> sends;
  std::vector<MutableBytes> recvs;

 private:
  uint64_t sizes_ = 0;
  std::array<std::optional<GradientMessages>, 2> messages_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_UPDATE_UPDATE_PLAN_H_
