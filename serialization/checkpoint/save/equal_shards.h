#ifndef SHERD_SERIALIZATION_CHECKPOINT_SAVE_EQUAL_SHARDS_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SAVE_EQUAL_SHARDS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "sherd/serialization/checkpoint/save/save_plan.h"

namespace sherd {

// Consecutive shards of one size, with owners as of an OwnerRun: what is
// planned as a whole, however many shards it has.
struct EqualShards {
  // Number of the first one.
  int64_t first = 0;
  int64_t shards = 0;
  // Of each.
  int64_t bytes = 0;
  // Of the first one; see OwnerRun.
  int32_t rank = 0;
  int32_t placement = 0;
  int32_t rank_step = 0;
  int32_t placement_step = 0;

  // Behind the last rank.
  int end_rank() const {
    return rank + (rank_step == 0 ? 1 : static_cast<int>(shards));
  }
};

// Calls `visit` for the shards of a tensor, in order, in as few parts as
// possible.
//
// Cost. For a grid O(parts + rows of cells along the last dimension that is
// cut), otherwise O(shards).
void ForEachEqualShards(const TensorLayout& tensor,
                        absl::FunctionRef<void(const EqualShards&)> visit);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SAVE_EQUAL_SHARDS_H_
