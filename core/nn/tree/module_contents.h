#ifndef SHERD_CORE_NN_TREE_MODULE_CONTENTS_H_
#define SHERD_CORE_NN_TREE_MODULE_CONTENTS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/value.h"

namespace sherd::internal {

// A member of a module, as a handle.
struct NamedMember {
  MemberKind kind = MemberKind::kParameter;
  std::string name;
  Value value;
  Module* module = nullptr;
  // In the tree of which MemberAt or MembersOf was asked.
  std::string path = {};
};

// What a module holds, as handles, in the order of its Visit. Children that are
// null are not among them.
struct ModuleContents {
  std::vector<NamedMember> members;
  std::vector<NamedModule> children;

  // Null if there is none of this name.
  const NamedMember* FindMember(absl::string_view name) const;
  std::shared_ptr<Module> FindChild(absl::string_view name) const;
};

//   kInvalidArgument  A name is empty, has a dot or occurs twice.
absl::StatusOr<ModuleContents> ContentsOf(Module& module);

// The member at a path. Errors as sherd::Get.
absl::StatusOr<NamedMember> MemberAt(Module& root, absl::string_view path);
// All members, in the order of ForEachModule, with its errors.
absl::StatusOr<std::vector<NamedMember>> MembersOf(Module& root);

// Replaces what a member holds, which the module has.
void ReplaceMember(Module& module, absl::string_view name, Value value);

// Calls `visit` for the root and every module below, parents first; a module
// with several paths is visited for each. `prefix` is "", or the path of the
// module and a dot.
//   kInvalidArgument  As ContentsOf, or the tree is too deep.
//   other             The first error of `visit`.
using ModuleFunction = absl::FunctionRef<absl::Status(
    const std::string& prefix, Module& module, const ModuleContents& contents)>;
absl::Status ForEachModule(Module& root, ModuleFunction visit);

// Splits "a.b.weight" into the path of the parent, "a.b", and "weight".
std::pair<absl::string_view, absl::string_view> SplitPath(
    absl::string_view path);

// "Linear has no attribute `foo`", with the path and the names that there are.
absl::Status NoAttribute(Module& module, absl::string_view path,
                         absl::string_view name);

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_TREE_MODULE_CONTENTS_H_
