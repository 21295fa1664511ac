#ifndef SHERD_CORE_NN_PLAN_SHARDING_TRANSACTION_H_
#define SHERD_CORE_NN_PLAN_SHARDING_TRANSACTION_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/collective/agreement_scope.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/tree/tree_snapshot.h"

namespace sherd::internal {

// One ShardModule, and those that its sharders call on the same thread: the
// first failure of any of them fails all, on every rank.
//
// How. Code of users runs between its agreements, and within calls of the
// sharders; see AgreementScope.
//
// Each call puts back the tree of its own module, which may be one that a
// sharder made and that no longer exists when an outer call fails.
class ShardingTransaction {
 public:
  // Begins the call for `module`, which outlives it. `group` has this process.
  ShardingTransaction(Module& module, std::shared_ptr<ProcessGroup> group);

  // Makes an error of one rank that of all, and compares `value`.
  absl::Status Agree(absl::Status local, const AgreedValue& value = {});
  // As Agree; returns the largest `number` of a rank.
  absl::StatusOr<uint64_t> AgreeOnMaximum(absl::Status local,
                                          const AgreedValue& value,
                                          uint64_t number);

  // Records the error of a collective of the group, the same on all ranks.
  absl::Status Fail(absl::Status status);

  // Ends the call: returns its error, after everything was put back, or OK.
  absl::Status Finish();

 private:
  AgreementScope scope_;
  // What the tree held at first, or why it is not valid.
  absl::StatusOr<TreeSnapshot> before_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_PLAN_SHARDING_TRANSACTION_H_
