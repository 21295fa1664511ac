#include "sherd/core/nn/tree/group_agreement.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/tree/module_access.h"
#include "sherd/core/nn/tree/value_identity.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"

namespace sherd::internal {

void GroupAgreement::Add(const Value& value) {
  std::shared_ptr<ProcessGroup> group;
  if (const auto* sharded = value.get_if<ShardedTensor>()) {
    group = sharded->group();
  } else if (const auto* partial = value.get_if<PartialTensor>()) {
    group = partial->group();
  }
  if (group == nullptr) return;
  any_named_ = true;
  if (!group->is_member()) return;
  if (std::find(found_.begin(), found_.end(), group) != found_.end()) return;
  found_.push_back(std::move(group));
}

void GroupAgreement::AddMembers(Module& module, bool with_attributes) {
  absl::flat_hash_set<const Module*> visited;
  AddBelow(module, with_attributes, visited);
}

void GroupAgreement::AddBelow(Module& module, bool with_attributes,
                              absl::flat_hash_set<const Module*>& visited) {
  if (!visited.insert(&module).second) return;
  VisitMembers(
      module,
      [&](MemberKind kind, absl::string_view, Value& member) {
        if (kind == MemberKind::kAttribute && !with_attributes) return;
        (void)ForEachTensor(member, [this](Value& tensor) {
          Add(tensor);
          return absl::OkStatus();
        });
      },
      [&](absl::string_view, ChildSlot& slot) {
        if (slot.module() == nullptr) return;
        AddBelow(*slot.module(), with_attributes, visited);
      });
}

absl::Status GroupAgreement::CheckGroups(absl::string_view operation) const {
  if (found_.size() > 1) {
    return absl::UnimplementedError(absl::StrCat(
        operation, ": the sharded tensors of this rank are spread over ",
        found_.size(), " groups; expected one"));
  }
  if (given_ == nullptr || found_.empty() || found_[0] == given_) {
    return absl::OkStatus();
  }
  const absl::flat_hash_set<int> ranks(given_->world_ranks().begin(),
                                       given_->world_ranks().end());
  for (const int rank : found_[0]->world_ranks()) {
    if (ranks.contains(rank)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        operation, ": the group '", given_->name(), "' lacks rank ", rank,
        " of the group '", found_[0]->name(), "' of a sharded tensor"));
  }
  return absl::OkStatus();
}

absl::Status GroupAgreement::Agree(absl::string_view operation,
                                   absl::Status local,
                                   const AgreedValue& value) const {
  if (local.ok()) local = CheckGroups(operation);
  if (given_ != nullptr) {
    SHERD_RETURN_IF_ERROR(CheckMember(*given_, operation));
    return sherd::Agree(*given_, operation, local, value);
  }
  absl::Status result;
  for (const std::shared_ptr<ProcessGroup>& group : found_) {
    result.Update(sherd::Agree(*group, operation, local, value));
  }
  return found_.empty() ? local : result;
}

}  // namespace sherd::internal
