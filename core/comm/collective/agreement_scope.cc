#include "sherd/core/comm/collective/agreement_scope.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/error_info.h"

namespace sherd::internal {

namespace {

using Groups = std::vector<std::shared_ptr<ProcessGroup>>;

Groups::const_iterator Find(const Groups& groups, const ProcessGroup& group) {
  return std::find_if(groups.begin(), groups.end(),
                      [&group](const auto& g) { return g.get() == &group; });
}

// An error of `from` for `to`, where its ranks have other numbers, or none.
absl::Status Renumbered(const absl::Status& error, const ProcessGroup& from,
                        const ProcessGroup& to) {
  const auto number_of = [&](std::optional<int> rank) -> std::optional<int> {
    if (!rank || *rank < 0 || *rank >= from.size()) return std::nullopt;
    const int world = from.world_ranks()[static_cast<size_t>(*rank)];
    const absl::Span<const int> ranks = to.world_ranks();
    const auto at = std::find(ranks.begin(), ranks.end(), world);
    if (at == ranks.end()) return std::nullopt;
    return static_cast<int>(at - ranks.begin());
  };
  const ErrorInfo known = GetErrorInfo(error);
  ErrorInfo info;
  info.group = to.name();
  info.rank = number_of(known.rank);
  info.failed_rank = number_of(known.failed_rank);
  return WithErrorInfo(absl::Status(error.code(), error.message()), info);
}

}  // namespace

struct AgreementScope::Shared {
  // A group whose ranks know of the failure, and their error: kept, since
  // another group could have the address of one that is gone.
  struct Informed {
    std::shared_ptr<ProcessGroup> group;
    absl::Status error;
  };

  const Informed* Find(const ProcessGroup& group) const {
    for (const Informed& entry : informed) {
      if (entry.group.get() == &group) return &entry;
    }
    return nullptr;
  }

  // Of the scopes that exist, innermost last.
  Groups groups;
  // In the order in which they learned it.
  std::vector<Informed> informed;
};

thread_local AgreementScope::Shared* AgreementScope::shared_ = nullptr;

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

absl::Status AgreementScope::Agree(const OperationLabel& what,
                                   absl::Status local,
                                   const AgreedValue& value) {
  return AgreeOnMaximum(what, std::move(local), value, 0).status();
}

absl::StatusOr<uint64_t> AgreementScope::AgreeOnMaximum(
    const OperationLabel& what, absl::Status local, const AgreedValue& value,
    uint64_t number) {
  if (absl::Status known = FailureOf(*group_); !known.ok()) return known;
  if (!shared_->informed.empty()) {
    const Shared::Informed& first = shared_->informed.front();
    local = Renumbered(first.error, *first.group, *group_);
  }
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
  if (status.ok()) return status;
  Record(*group_, status);
  return FailureOf(*group_);
}

absl::Status AgreementScope::failure() const {
  if (absl::Status known = FailureOf(*group_); !known.ok()) return known;
  return shared_->informed.empty() ? absl::OkStatus()
                                   : shared_->informed.front().error;
}

bool AgreementScope::Covers(const ProcessGroup& group) {
  return shared_ != nullptr &&
         Find(shared_->groups, group) != shared_->groups.end();
}

absl::Status AgreementScope::FailureOf(const ProcessGroup& group) {
  const Shared::Informed* const known =
      shared_ == nullptr ? nullptr : shared_->Find(group);
  return known == nullptr ? absl::OkStatus() : known->error;
}

void AgreementScope::Record(const ProcessGroup& group,
                            const absl::Status& status) {
  if (!Covers(group) || shared_->Find(group) != nullptr) return;
  shared_->informed.push_back({*Find(shared_->groups, group), status});
}

}  // namespace sherd::internal
