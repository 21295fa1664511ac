#include "sherd/core/nn/module.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/tree/module_access.h"

namespace sherd {

absl::StatusOr<Value> Module::Call(absl::Span<const Value> inputs) {
  SHERD_ASSIGN_OR_RETURN(Value output, Forward(inputs));
  // By position: a hook may add another one.
  for (size_t i = 0; i < hooks_.output.size(); ++i) {
    const OutputHook hook = hooks_.output[i];
    SHERD_ASSIGN_OR_RETURN(output, hook(std::move(output)));
  }
  return output;
}

void Module::AddOutputHook(OutputHook hook) {
  if (hook != nullptr) hooks_.output.push_back(std::move(hook));
}

void Module::AddStateHook(StateHook hook) {
  if (hook != nullptr) hooks_.state.push_back(std::move(hook));
}

void Module::AddLoadHook(LoadHook hook) {
  if (hook != nullptr) hooks_.load.push_back(std::move(hook));
}

absl::Status ChildSlot::Set(std::shared_ptr<Module> module) {
  if (!assign_(member_, module)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ", module->type_name(),
                     " cannot replace a child that its parent declares with "
                     "another class; declare it as std::shared_ptr<Module>"));
  }
  module_ = std::move(module);
  return absl::OkStatus();
}

void ModuleVisitor::OnChildren(std::vector<NamedModule>& members) {
  for (NamedModule& member : members) {
    ChildSlot slot(member.module);
    OnChild(member.name, slot);
  }
}

namespace internal {

void VisitMembers(
    Module& module,
    absl::FunctionRef<void(MemberKind, absl::string_view, Value&)> on_member,
    absl::FunctionRef<void(absl::string_view, ChildSlot&)> on_child) {
  class Visitor : public ModuleVisitor {
   public:
    Visitor(decltype(on_member) on_member, decltype(on_child) on_child)
        : on_member_(on_member), on_child_(on_child) {}

   private:
    void OnMember(MemberKind kind, absl::string_view name,
                  Value& member) override {
      on_member_(kind, name, member);
    }
    void OnChild(absl::string_view name, ChildSlot& slot) override {
      on_child_(name, slot);
    }

    const decltype(on_member) on_member_;
    const decltype(on_child) on_child_;
  };
  Visitor visitor(on_member, on_child);
  ModuleAccess::Visit(module, visitor);
}

}  // namespace internal
}  // namespace sherd
