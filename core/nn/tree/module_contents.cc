#include "sherd/core/nn/tree/module_contents.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/nn/tree/module_access.h"
#include "sherd/core/sharding/state_dict.h"

namespace sherd::internal {
namespace {

absl::Status Walk(const std::string& prefix, Module& module, int depth,
                  ModuleFunction visit) {
  if (depth >= StateDict::kMaxDepth) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the ", module.type_name(), " at `", prefix, "` is ", depth,
        " modules below the root; at most ", StateDict::kMaxDepth - 1,
        " are supported, and no module may be a member of itself"));
  }
  SHERD_ASSIGN_OR_RETURN(const ModuleContents contents, ContentsOf(module));
  SHERD_RETURN_IF_ERROR(visit(prefix, module, contents));
  for (const NamedModule& child : contents.children) {
    SHERD_RETURN_IF_ERROR(Walk(absl::StrCat(prefix, child.name, "."),
                               *child.module, depth + 1, visit));
  }
  return absl::OkStatus();
}

}  // namespace

const NamedMember* ModuleContents::FindMember(absl::string_view name) const {
  for (const NamedMember& member : members) {
    if (member.name == name) return &member;
  }
  return nullptr;
}

std::shared_ptr<Module> ModuleContents::FindChild(
    absl::string_view name) const {
  for (const NamedModule& child : children) {
    if (child.name == name) return child.module;
  }
  return nullptr;
}

absl::StatusOr<ModuleContents> ContentsOf(Module& module) {
  ModuleContents contents;
  absl::flat_hash_set<std::string> names;
  absl::Status status;
  const auto check = [&](absl::string_view name) {
    const bool valid =
        !name.empty() && name.find('.') == absl::string_view::npos;
    const bool is_new = names.insert(std::string(name)).second;
    if (!status.ok() || (valid && is_new)) return;
    status = absl::InvalidArgumentError(absl::StrCat(
        module.type_name(), " names a member `", name, "`",
        valid ? " twice: names within a module differ"
              : ": a name is not empty and has no dot, which joins names"));
  };
  VisitMembers(
      module,
      [&](MemberKind kind, absl::string_view name, Value& member) {
        check(name);
        contents.members.push_back({kind, std::string(name), member, &module});
      },
      [&](absl::string_view name, ChildSlot& slot) {
        check(name);
        if (slot.module() == nullptr) return;
        contents.children.push_back({std::string(name), slot.module()});
      });
  if (!status.ok()) return status;
  return contents;
}

absl::StatusOr<NamedMember> MemberAt(Module& root, absl::string_view path) {
  const auto [parent, name] = SplitPath(path);
  SHERD_ASSIGN_OR_RETURN(Module * module, Find(root, parent));
  SHERD_ASSIGN_OR_RETURN(const ModuleContents contents, ContentsOf(*module));
  if (const std::shared_ptr<Module> child = contents.FindChild(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Expected ", module->type_name(), ".", name,
                     " to be a Tensor, but found module: `", path,
                     "` is a module (a ", child->type_name(),
                     "); Find finds modules, and a Sharder shards them"));
  }
  const NamedMember* const member = contents.FindMember(name);
  if (member == nullptr) return NoAttribute(*module, path, name);
  NamedMember result = *member;
  result.path = std::string(path);
  return result;
}

absl::StatusOr<std::vector<NamedMember>> MembersOf(Module& root) {
  std::vector<NamedMember> result;
  SHERD_RETURN_IF_ERROR(ForEachModule(
      root,
      [&](const std::string& prefix, Module&, const ModuleContents& contents) {
        for (const NamedMember& member : contents.members) {
          result.push_back(member);
          result.back().path = absl::StrCat(prefix, member.name);
        }
        return absl::OkStatus();
      }));
  return result;
}

void ReplaceMember(Module& module, absl::string_view name, Value value) {
  VisitMembers(module,
               [&](MemberKind, absl::string_view member_name, Value& member) {
                 if (member_name == name) member = value;
               });
}

absl::Status ForEachModule(Module& root, ModuleFunction visit) {
  return Walk("", root, 0, visit);
}

std::pair<absl::string_view, absl::string_view> SplitPath(
    absl::string_view path) {
  const size_t dot = path.rfind('.');
  if (dot == absl::string_view::npos || path == ".") return {"", path};
  // The parent of ".a" is not the root but the child "".
  if (dot == 0) return {".", path.substr(1)};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

absl::Status NoAttribute(Module& module, absl::string_view path,
                         absl::string_view name) {
  std::vector<std::string> names;
  if (const absl::StatusOr<ModuleContents> contents = ContentsOf(module);
      contents.ok()) {
    for (const NamedMember& member : contents->members) {
      names.push_back(member.name);
    }
    for (const NamedModule& child : contents->children) {
      names.push_back(child.name);
    }
  }
  constexpr size_t kShown = 10;
  const bool more = names.size() > kShown;
  if (more) names.resize(kShown);
  return absl::NotFoundError(absl::StrCat(
      module.type_name(), " has no attribute `", name, "`",
      path.empty() ? "" : absl::StrCat(" (of the path `", path, "`)"),
      "; it has: ", names.empty() ? "none" : absl::StrJoin(names, ", "),
      more ? ", …" : ""));
}

}  // namespace sherd::internal
