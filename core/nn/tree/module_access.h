#ifndef SHERD_CORE_NN_TREE_MODULE_ACCESS_H_
#define SHERD_CORE_NN_TREE_MODULE_ACCESS_H_

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/value.h"

namespace sherd::internal {

// Internals of Module for its implementation, hidden from users.
class ModuleAccess {
 public:
  using Hooks = Module::Hooks;

  static void Visit(Module& module, ModuleVisitor& visitor) {
    module.Visit(visitor);
  }
  static Hooks& HooksOf(Module& module) { return module.hooks_; }
};

inline void IgnoreChild(absl::string_view, ChildSlot&) {}

// Calls the functions for the members and the children of a module, in the
// order of its Visit.
void VisitMembers(
    Module& module,
    absl::FunctionRef<void(MemberKind, absl::string_view, Value&)> on_member,
    absl::FunctionRef<void(absl::string_view, ChildSlot&)> on_child =
        IgnoreChild);

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_TREE_MODULE_ACCESS_H_
