#include "sherd/core/nn/tree/group_agreement.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/nn/tree/module_access.h"
#include "sherd/core/nn/tree/value_identity.h"

namespace sherd::internal {

void GroupAgreement::Add(const Value& value) {
  const auto* sharded = value.get_if<ShardedTensor>();
  if (sharded == nullptr || sharded->group() == nullptr) return;
  const std::shared_ptr<ProcessGroup>& group = sharded->group();
  if (!group->is_member()) return;
  if (std::find(groups_.begin(), groups_.end(), group) != groups_.end()) return;
  groups_.push_back(group);
}

void GroupAgreement::AddMembers(Module& module, bool with_attributes) {
  if (!visited_.insert(&module).second) return;
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
        AddMembers(*slot.module(), with_attributes);
      });
}

absl::Status GroupAgreement::Agree(absl::string_view operation,
                                   absl::Status local,
                                   const AgreedValue& value) const {
  if (groups_.size() > 1 && local.ok()) {
    local = absl::UnimplementedError(absl::StrCat(
        operation, ": the sharded tensors of this rank are spread over ",
        groups_.size(), " groups; expected one"));
  }
  absl::Status result;
  for (const std::shared_ptr<ProcessGroup>& group : groups_) {
    result.Update(sherd::Agree(*group, operation, local, value));
  }
  return groups_.empty() ? local : result;
}

}  // namespace sherd::internal
