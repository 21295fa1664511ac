#include "sherd/core/nn/plan/sharding_transaction.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace sherd::internal {

namespace {
constexpr char kOperation[] = "shard_module";
}  // namespace

struct ShardingTransaction::Shared {
  absl::Status failure;
  // Groups whose ranks know of the failure.
  std::vector<std::shared_ptr<ProcessGroup>> informed;
};

thread_local ShardingTransaction::Shared* ShardingTransaction::shared_ =
    nullptr;

ShardingTransaction::ShardingTransaction(Module& module,
                                         std::shared_ptr<ProcessGroup> group)
    : own_(shared_ == nullptr ? std::make_unique<Shared>() : nullptr),
      group_(std::move(group)),
      before_(TreeSnapshot::Take(module)) {
  if (own_ != nullptr) shared_ = own_.get();
}

ShardingTransaction::~ShardingTransaction() {
  if (own_ != nullptr) shared_ = nullptr;
}

absl::Status ShardingTransaction::Agree(absl::Status local,
                                        const AgreedValue& value) {
  Shared& shared = *shared_;
  const auto& informed = shared.informed;
  if (std::find(informed.begin(), informed.end(), group_) != informed.end()) {
    return shared.failure;
  }
  if (local.ok()) local = before_.status();
  if (!shared.failure.ok()) local = shared.failure;
  return Fail(sherd::Agree(*group_, kOperation, local, value));
}

absl::Status ShardingTransaction::Fail(absl::Status status) {
  if (status.ok()) return status;
  shared_->informed.push_back(group_);
  if (shared_->failure.ok()) shared_->failure = std::move(status);
  return shared_->failure;
}

absl::Status ShardingTransaction::Finish() {
  if (!shared_->failure.ok() && before_.ok()) before_->Restore();
  return shared_->failure;
}

}  // namespace sherd::internal
