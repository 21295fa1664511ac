#include "sherd/core/nn/plan/tensor_holders.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/tree/module_access.h"
#include "sherd/core/nn/tree/module_contents.h"

namespace sherd::internal {

absl::StatusOr<TensorHolders> TensorHolders::Find(Module& root) {
  SHERD_ASSIGN_OR_RETURN(std::vector<NamedMember> members, MembersOf(root));
  TensorHolders result;
  for (NamedMember& member : members) {
    const ValueKind kind = member.value.kind();
    const bool whole = kind != ValueKind::kList && kind != ValueKind::kMap;
    SHERD_RETURN_IF_ERROR(ForEachTensor(member.value, [&](Value& tensor) {
      const std::optional<ValueIdentity> identity = IdentityOf(tensor);
      if (!identity) return absl::OkStatus();
      const size_t next = result.holders_.size();
      const size_t at =
          result.positions_.emplace(*identity, next).first->second;
      if (at == next) result.holders_.emplace_back();
      result.holders_[at].push_back(
          {member.module, member.kind, member.path, whole});
      return absl::OkStatus();
    }));
  }
  return result;
}

absl::Span<const TensorHolder> TensorHolders::Of(const Value& tensor) const {
  const std::optional<ValueIdentity> identity = IdentityOf(tensor);
  if (!identity) return {};
  const auto position = positions_.find(*identity);
  if (position == positions_.end()) return {};
  return holders_[position->second];
}

void TensorHolders::Replace(const Value& tensor,
                            const Value& replacement) const {
  const std::optional<ValueIdentity> identity = IdentityOf(tensor);
  for (const TensorHolder& holder : Of(tensor)) {
    VisitMembers(*holder.module,
                 [&](MemberKind, absl::string_view, Value& member) {
                   (void)ForEachTensor(member, [&](Value& held) {
                     if (IdentityOf(held) == identity) held = replacement;
                     return absl::OkStatus();
                   });
                 });
  }
}

absl::Status TensorHolders::CheckTies(Module& root) const {
  for (const std::vector<TensorHolder>& tied : holders_) {
    if (tied.size() == 1) continue;
    std::optional<NamedMember> first;
    for (const TensorHolder& holder : tied) {
      absl::StatusOr<NamedMember> member = MemberAt(root, holder.path);
      if (!holder.whole || !member.ok()) continue;
      if (!first) first = *member;
      if (IdentityOf(first->value) == IdentityOf(member->value)) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "`", first->path, "` and `", holder.path,
          "` were one tensor and are two: expected both to be sharded, or "
          "none"));
    }
  }
  return absl::OkStatus();
}

}  // namespace sherd::internal
