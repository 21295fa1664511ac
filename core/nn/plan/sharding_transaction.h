#ifndef SHERD_CORE_NN_PLAN_SHARDING_TRANSACTION_H_
#define SHERD_CORE_NN_PLAN_SHARDING_TRANSACTION_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/tree/tree_snapshot.h"

namespace sherd::internal {

// One ShardModule, and those that its sharders call on the same thread: the
// first failure of any of them fails all, on every rank.
//
// How. A rank whose sharder fails is at the end of that sharder when the others
// may be in a call that theirs makes. Both are agreements over the group: the
// failed rank brings its error to the others' next agreement, wherever that is.
// The ranks that took part know of the failure, so their outer calls return
// without another agreement over this group; over another group, whose ranks
// still wait, they bring the error along.
//
// Each call puts back the tree of its own module, which may be one that a
// sharder made and that no longer exists when an outer call fails.
class ShardingTransaction {
 public:
  // Begins the call for `module`, which outlives it. `group` has this process.
  ShardingTransaction(Module& module, std::shared_ptr<ProcessGroup> group);
  ShardingTransaction(const ShardingTransaction&) = delete;
  ShardingTransaction& operator=(const ShardingTransaction&) = delete;
  ~ShardingTransaction();

  // Makes an error of one rank that of all, and compares `value`.
  absl::Status Agree(absl::Status local, const AgreedValue& value = {});

  // Records the error of a collective of the group, the same on all ranks.
  absl::Status Fail(absl::Status status);

  // Ends the call: returns its error, after everything was put back, or OK.
  absl::Status Finish();

 private:
  struct Shared;

  // Of the outermost call of this thread, which owns it.
  static thread_local Shared* shared_;

  std::unique_ptr<Shared> own_;
  const std::shared_ptr<ProcessGroup> group_;
  // What the tree held at first, or why it is not valid.
  absl::StatusOr<TreeSnapshot> before_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_PLAN_SHARDING_TRANSACTION_H_
