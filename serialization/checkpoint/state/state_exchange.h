#ifndef SHERD_SERIALIZATION_CHECKPOINT_STATE_STATE_EXCHANGE_H_
#define SHERD_SERIALIZATION_CHECKPOINT_STATE_STATE_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/collective/operation_label.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/serialization/checkpoint/state/state_plan.h"

namespace sherd {

// A rank's part of a state that is saved, or of the destinations of a load.
struct LocalState {
  std::vector<StateTensor> tensors;
  // Of a save: the flat tree of what is not per rank, and its message; and the
  // message of what is per rank, empty if nothing is.
  std::vector<StateEntry> entries;
  std::string shared;
  std::string own;
  // Of all that plans depend on.
  uint64_t structure = 0;
};

// What each rank lets all others know; sent as it is in memory.
struct StateNote {
  uint64_t structure = 0;
  // Fingerprint of the plan that this rank expects to use; 0 if it has none.
  uint64_t expected = 0;
  // Of the shared message; and the weighted sum of its values.
  uint64_t values = 0;
  uint64_t weighted = 0;
  uint64_t shared_bytes = 0;
  uint64_t own_bytes = 0;
};

// The messages of all ranks, on all; where a rank has none but an error, that,
// on all. Collective.
absl::StatusOr<std::vector<std::string>> GatherFromAll(
    ProcessGroup& group, const OperationLabel& operation,
    const absl::StatusOr<std::string>& own,
    std::optional<absl::Duration> timeout);

// One rank's part of making tensors over a group of the states of all ranks.
class StateExchange {
 public:
  // The references outlive it. `step` has notes of sizeof(StateNote).
  // `timeout` is of each collective; unset: the group's.
  StateExchange(const std::shared_ptr<ProcessGroup>& group,
                const OperationLabel& operation, const LocalState& local,
                std::optional<absl::Duration> timeout)
      : group_(group),
        operation_(operation),
        local_(local),
        timeout_(timeout) {}

  // Ends `step`, in which the ranks made their local states: `made` is how that
  // went. Afterwards all ranks have one plan.
  absl::Status Agree(LongStep& step, const absl::Status& made,
                     const AgreedValue& value);

  // The tensors, without those of values.
  std::map<std::string, ShardedTensor> Tensors() const;

  // Adds those of values.
  //   kResourceExhausted  This rank has no memory for them. The others do not
  //                       know.
  absl::Status AddBlobs(std::map<std::string, ShardedTensor>& tensors) const;

 private:
  // Whether no rank need know more than the notes say.
  bool IsKnown(const StatePlan& classes) const;
  uint64_t WeightedValues(const StatePlan& plan) const;
  // The ranks whose descriptions stand for those of all others.
  std::vector<int> Sources() const;
  absl::StatusOr<std::vector<StateDescription>> Exchange(
      const std::vector<int>& sources);
  absl::Status Compare(const std::vector<int>& sources,
                       const std::vector<StateDescription>& states) const;

  const std::shared_ptr<ProcessGroup>& group_;
  const OperationLabel& operation_;
  const LocalState& local_;
  const std::optional<absl::Duration> timeout_;
  std::vector<StateNote> notes_;
  KeptStatePlans::Plan plan_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_STATE_STATE_EXCHANGE_H_
