#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/nn/tree/group_agreement.h"
#include "sherd/core/nn/tree/module_contents.h"
#include "sherd/core/nn/tree/value_identity.h"

namespace sherd {
namespace {

using internal::ModuleContents;
using internal::NamedMember;

constexpr char kOperation[] = "module_to";

// A member that moves.
struct Member {
  Module* module;
  std::string name;
  Value value;
};

absl::StatusOr<std::vector<Member>> MembersOf(Module& root) {
  std::vector<Member> members;
  SHERD_RETURN_IF_ERROR(internal::ForEachModule(
      root,
      [&](const std::string&, Module& module, const ModuleContents& contents) {
        for (const NamedMember& member : contents.members) {
          members.push_back({&module, member.name, member.value});
        }
        return absl::OkStatus();
      }));
  return members;
}

bool IsSharded(const Value& value) {
  return value.kind() == ValueKind::kShardedTensor;
}

}  // namespace

absl::Status To(Module& root, const Device& device) {
  SHERD_ASSIGN_OR_RETURN(std::vector<Member> members, MembersOf(root));
  internal::ConvertedTensors moved;
  internal::GroupAgreement groups;
  for (Member& member : members) {
    (void)internal::ForEachTensor(member.value, [&](Value& value) {
      groups.Add(value);
      return absl::OkStatus();
    });
  }
  const auto to_device = [&](const Value& value) -> absl::StatusOr<Value> {
    if (const auto* sharded = value.get_if<ShardedTensor>()) {
      return sharded->To(device);
    }
    return internal::WithLocalTensor(
        value, [&](const Tensor& tensor) { return tensor.To(device); });
  };
  const auto move = [&](bool sharded) {
    absl::Status status;
    for (Member& member : members) {
      status.Update(internal::ForEachTensor(member.value, [&](Value& value) {
        if (IsSharded(value) != sharded) return absl::OkStatus();
        return moved.Convert(value, to_device);
      }));
      if (sharded && !status.ok()) break;
    }
    return status;
  };
  SHERD_RETURN_IF_ERROR(groups.Agree(kOperation, move(/*sharded=*/false)));
  // To agrees.
  SHERD_RETURN_IF_ERROR(move(/*sharded=*/true));
  for (Member& member : members) {
    SHERD_RETURN_IF_ERROR(internal::ReplaceMember(*member.module, member.name,
                                                  std::move(member.value)));
  }
  return absl::OkStatus();
}

}  // namespace sherd
