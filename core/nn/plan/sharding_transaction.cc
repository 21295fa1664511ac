#include "sherd/core/nn/plan/sharding_transaction.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/nn/tree/tree_snapshot.h"

namespace sherd::internal {

namespace {
constexpr char kOperation[] = "shard_module";
}  // namespace

struct ShardingTransaction::Shared {
  // In the order of the calls.
  std::vector<TreeSnapshot> snapshots;
  absl::Status failure;
  // Groups whose ranks know of the failure.
  std::vector<const ProcessGroup*> informed;
};

thread_local ShardingTransaction::Shared* ShardingTransaction::shared_ =
    nullptr;

ShardingTransaction::ShardingTransaction(Module& module, ProcessGroup& group)
    : own_(shared_ == nullptr ? std::make_unique<Shared>() : nullptr),
      group_(group) {
  if (own_ != nullptr) shared_ = own_.get();
  first_snapshot_ = shared_->snapshots.size();
  absl::StatusOr<TreeSnapshot> snapshot = TreeSnapshot::Take(module);
  if (snapshot.ok()) {
    shared_->snapshots.push_back(*std::move(snapshot));
  } else {
    invalid_ = snapshot.status();
  }
}

ShardingTransaction::~ShardingTransaction() {
  if (own_ != nullptr) shared_ = nullptr;
}

absl::Status ShardingTransaction::Agree(absl::Status local,
                                        const AgreedValue& value) {
  Shared& shared = *shared_;
  const auto& informed = shared.informed;
  if (std::find(informed.begin(), informed.end(), &group_) != informed.end()) {
    return shared.failure;
  }
  if (local.ok()) local = invalid_;
  if (!shared.failure.ok()) local = shared.failure;
  return Fail(sherd::Agree(group_, kOperation, local, value));
}

absl::Status ShardingTransaction::Fail(absl::Status status) {
  if (status.ok()) return status;
  shared_->informed.push_back(&group_);
  if (shared_->failure.ok()) shared_->failure = std::move(status);
  return shared_->failure;
}

absl::Status ShardingTransaction::Finish() {
  Shared& shared = *shared_;
  if (shared.failure.ok()) return shared.failure;
  for (size_t i = shared.snapshots.size(); i > first_snapshot_; --i) {
    shared.snapshots[i - 1].Restore();
  }
  return shared.failure;
}

}  // namespace sherd::internal
