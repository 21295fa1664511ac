#include "sherd/core/comm/collective/agreement_scope.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"

namespace sherd::internal {

namespace {

using Groups = std::vector<std::shared_ptr<ProcessGroup>>;

Groups::const_iterator Find(const Groups &groups, const ProcessGroup &group) {
  return std::find_if(groups.begin(), groups.end(),
                      [&group](const auto &g) { return g.get() == &group; });
}

bool Contains(const Groups &groups, const ProcessGroup &group) {
  return Find(groups, group) != groups.end();
}

}  // namespace

struct AgreementScope::Shared {
  // Of the scopes that exist, innermost last.
  Groups groups;
  absl::Status failure;
  // Groups whose ranks know of the failure: kept, since another one could have
  // the address of one that is gone.
  Groups informed;
};

thread_local AgreementScope::Shared *AgreementScope::shared_ = nullptr;

AgreementScope::AgreementScope(std::shared_ptr<ProcessGroup> group)
    : own_(shared_ == nullptr ? std::make_unique<Shared>() : nullptr),
      group_(std::move(group)) {
  if (own_ != nullptr) shared_ = own_.get();
  shared_->groups.push_back(group_);
}

AgreementScope::~AgreementScope() {
  shared_->groups.pop_back();
  if (own_ != nullptr) shared_ = nullptr;
}

absl::Status AgreementScope::Agree(const OperationLabel &what,
                                   absl::Status local,
                                   const AgreedValue &value) {
  return AgreeOnMaximum(what, std::move(local), value, 0).status();
}

absl::StatusOr<uint64_t> AgreementScope::AgreeOnMaximum(
    const OperationLabel &what, absl::Status local, const AgreedValue &value,
    uint64_t number) {
  if (absl::Status known = FailureOf(*group_); !known.ok()) return known;
  if (!shared_->failure.ok()) local = shared_->failure;
  absl::StatusOr<uint64_t> agreed =
      AgreeLast(*group_, what, local, value, number);
  if (agreed.ok()) return agreed;
  absl::Status error = agreed.status();
  if (!local.ok() && !group_->health().ok()) {
    // The others have not received it. An error of the group is theirs, too.
    error = ErrorRank(local).has_value()
                ? std::move(local)
                : WithRank(absl::Status(local.code(),
                                        absl::StrCat(local.message(), "; ",
                                                     error.message())),
                           group_->rank());
  }
  return Fail(std::move(error));
}

absl::Status AgreementScope::Fail(absl::Status status) {
  if (!status.ok()) Record(*group_, status);
  return status.ok() ? status : shared_->failure;
}

const absl::Status &AgreementScope::failure() const { return shared_->failure; }

bool AgreementScope::Covers(const ProcessGroup &group) {
  return shared_ != nullptr && Contains(shared_->groups, group);
}

absl::Status AgreementScope::FailureOf(const ProcessGroup &group) {
  return shared_ != nullptr && Contains(shared_->informed, group)
             ? shared_->failure
             : absl::OkStatus();
}

void AgreementScope::Record(const ProcessGroup &group,
                            const absl::Status &status) {
  if (!Covers(group) || Contains(shared_->informed, group)) return;
  shared_->informed.push_back(*Find(shared_->groups, group));
  if (shared_->failure.ok()) shared_->failure = status;
}

}  // namespace sherd::internal
