#ifndef SHERD_SERIALIZATION_CHECKPOINT_STATE_STATE_MATCH_H_
#define SHERD_SERIALIZATION_CHECKPOINT_STATE_STATE_MATCH_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/state/state_plan.h"

namespace sherd {

// The trees of a checkpoint that concern one rank; their tensors are undefined.
struct SavedTrees {
  // Whether it was saved from a state. Otherwise there are none.
  bool is_state = false;
  StateDict shared;
  // Empty for ranks that did not save.
  StateDict own;
  int world_size = 0;
};

// What a load does with one rank's state. Names of destinations, but for
// `unexpected`, as in LoadReport.
struct StateMatch {
  // A per-rank tensor has its name in the checkpoint.
  std::vector<StateTensor> tensors;
  // To be set.
  std::vector<StateEntry> values;
  // Of values only: those of tensors are found when they are loaded.
  LoadReport report;
};

// Matches the destinations of `state` with the trees of a checkpoint.
//   kInvalidArgument     Strict: a value is missing, or a value is a tensor
//                        there or the reverse. Or as CheckStateTensor.
//   kFailedPrecondition  As CheckStateTensor.
absl::StatusOr<StateMatch> MatchState(const StateDict& state,
                                      const SavedTrees& saved,
                                      const LoadOptions& options,
                                      const ProcessGroup& group);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_STATE_STATE_MATCH_H_
