#include "sherd/core/nn/plan/sharding_transaction.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sherd::internal {

ShardingTransaction::ShardingTransaction(Module& module,
                                         std::shared_ptr<ProcessGroup> group)
    : scope_(std::move(group)), before_(TreeSnapshot::Take(module)) {}

absl::Status ShardingTransaction::Agree(absl::Status local,
                                        const AgreedValue& value) {
  return AgreeOnMaximum(std::move(local), value, 0).status();
}

absl::StatusOr<uint64_t> ShardingTransaction::AgreeOnMaximum(
    absl::Status local, const AgreedValue& value, uint64_t number) {
  if (local.ok()) local = before_.status();
  return scope_.AgreeOnMaximum("shard_module", std::move(local), value, number);
}

absl::Status ShardingTransaction::Fail(absl::Status status) {
  return scope_.Fail(std::move(status));
}

absl::Status ShardingTransaction::Finish() {
  absl::Status failure = scope_.failure();
  if (!failure.ok() && before_.ok()) before_->Restore();
  return failure;
}

}  // namespace sherd::internal
