#include "sherd/core/nn/module_tree.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/tree/module_contents.h"
#include "sherd/core/nn/tree/value_identity.h"
#include "sherd/core/sharding/state_dict.h"

namespace sherd {
namespace {

using internal::ContentsOf;
using internal::ModuleContents;
using internal::NamedMember;

absl::StatusOr<std::vector<NamedValue>> NamedMembers(Module& root,
                                                     MemberKind kind) {
  SHERD_ASSIGN_OR_RETURN(std::vector<NamedMember> members,
                         internal::MembersOf(root));
  std::vector<NamedValue> result;
  absl::flat_hash_set<internal::ValueIdentity> known;
  for (NamedMember& member : members) {
    if (member.kind != kind || member.value.is_none()) continue;
    const auto identity = internal::IdentityOf(member.value);
    if (identity && !known.insert(*identity).second) continue;
    result.push_back({std::move(member.path), std::move(member.value)});
  }
  return result;
}

}  // namespace

absl::StatusOr<Module*> Find(Module& root, absl::string_view path) {
  Module* module = &root;
  if (path.empty()) return module;
  int depth = 0;
  for (const absl::string_view name : absl::StrSplit(path, '.')) {
    SHERD_ASSIGN_OR_RETURN(const ModuleContents contents, ContentsOf(*module));
    Module* const next = contents.FindChild(name).get();
    if (next == nullptr || ++depth >= StateDict::kMaxDepth) {
      return internal::NoAttribute(*module, path, name);
    }
    module = next;
  }
  return module;
}

absl::StatusOr<Value> Get(Module& root, absl::string_view path) {
  SHERD_ASSIGN_OR_RETURN(NamedMember member, internal::MemberAt(root, path));
  return std::move(member.value);
}

absl::Status Set(Module& root, absl::string_view path, Value value) {
  SHERD_ASSIGN_OR_RETURN(const NamedMember member,
                         internal::MemberAt(root, path));
  internal::ReplaceMember(*member.module, member.name, std::move(value));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<NamedValue>> NamedParameters(Module& root) {
  return NamedMembers(root, MemberKind::kParameter);
}

absl::StatusOr<std::vector<NamedValue>> NamedBuffers(Module& root) {
  return NamedMembers(root, MemberKind::kBuffer);
}

absl::StatusOr<std::vector<NamedValue>> NamedAttributes(Module& root) {
  return NamedMembers(root, MemberKind::kAttribute);
}

absl::StatusOr<std::vector<NamedModule>> NamedModules(Module& root) {
  std::vector<NamedModule> result;
  absl::flat_hash_set<const Module*> known = {&root};
  SHERD_RETURN_IF_ERROR(internal::ForEachModule(
      root,
      [&](const std::string& prefix, Module&, const ModuleContents& contents) {
        for (const NamedModule& child : contents.children) {
          if (!known.insert(child.module.get()).second) continue;
          result.push_back({absl::StrCat(prefix, child.name), child.module});
        }
        return absl::OkStatus();
      }));
  return result;
}

}  // namespace sherd
