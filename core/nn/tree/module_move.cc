#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/nn/tree/group_agreement.h"
#include "sherd/core/nn/tree/module_contents.h"
#include "sherd/core/nn/tree/value_identity.h"

namespace sherd {
namespace {

using internal::NamedMember;

constexpr char kOperation[] = "module_to";

bool IsSharded(const Value& value) {
  return value.kind() == ValueKind::kShardedTensor;
}

// The collectives of this rank: handles of the same elements move once.
std::string DescribeCalls(std::vector<NamedMember>& members) {
  absl::flat_hash_set<internal::ValueIdentity> sharded;
  for (NamedMember& member : members) {
    (void)internal::ForEachTensor(member.value, [&](Value& value) {
      if (IsSharded(value)) sharded.insert(*internal::IdentityOf(value));
      return absl::OkStatus();
    });
  }
  return absl::StrCat(sharded.size(), " sharded tensors");
}

}  // namespace

absl::Status To(Module& root, const Device& device,
                const ModuleToOptions& options) {
  internal::GroupAgreement groups(options.group);
  groups.AddMembers(root);
  absl::StatusOr<std::vector<NamedMember>> found = internal::MembersOf(root);
  absl::Status status = found.status();
  std::vector<NamedMember> members =
      found.ok() ? *std::move(found) : std::vector<NamedMember>();
  internal::ConvertedTensors moved;
  const auto to_device = [&](const Value& value) -> absl::StatusOr<Value> {
    if (const auto* sharded = value.get_if<ShardedTensor>()) {
      return sharded->To(device);
    }
    return internal::WithLocalTensor(
        value, [&](const Tensor& tensor) { return tensor.To(device); });
  };
  const auto move = [&](bool sharded) -> absl::Status {
    for (NamedMember& member : members) {
      SHERD_RETURN_IF_ERROR(
          internal::ForEachTensor(member.value, [&](Value& value) {
            if (IsSharded(value) != sharded) return absl::OkStatus();
            return moved.Convert(value, to_device);
          }));
    }
    return absl::OkStatus();
  };
  if (status.ok()) status = move(/*sharded=*/false);
  const std::string calls = DescribeCalls(members);
  SHERD_RETURN_IF_ERROR(
      groups.Agree(kOperation, std::move(status),
                   {Fingerprint().Add(calls).value(), [&] { return calls; }}));
  // To agrees.
  SHERD_RETURN_IF_ERROR(move(/*sharded=*/true));
  for (NamedMember& member : members) {
    internal::ReplaceMember(*member.module, member.name,
                            std::move(member.value));
  }
  return absl::OkStatus();
}

}  // namespace sherd
