#include "sherd/core/nn/module_state.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/tree/module_access.h"
#include "sherd/core/nn/tree/module_contents.h"

namespace sherd {
namespace {

using internal::ModuleAccess;
using internal::ModuleContents;
using internal::NamedMember;

// A member's value as one of a state.
absl::StatusOr<StateValue> ToState(const Value& value) {
  if (const auto* tensor = value.get_if<Tensor>()) return StateValue(*tensor);
  if (const auto* sharded = value.get_if<ShardedTensor>()) {
    return StateValue(*sharded);
  }
  if (const auto* list = value.get_if<ValueList>()) {
    StateList items;
    for (const Value& item : *list) {
      SHERD_ASSIGN_OR_RETURN(StateValue converted, ToState(item));
      items.push_back(std::move(converted));
    }
    return StateValue(std::move(items));
  }
  if (const auto* map = value.get_if<ValueMap>()) {
    StateDict entries;
    for (const auto& [key, item] : *map) {
      SHERD_ASSIGN_OR_RETURN(StateValue converted, ToState(item));
      SHERD_RETURN_IF_ERROR(
          entries.Set(StateDict::EscapeKey(key), std::move(converted)));
    }
    return StateValue(std::move(entries));
  }
  if (value.is_none()) return StateValue();
  return absl::InvalidArgumentError(
      "a PartialTensor has no value to save before it is reduced: Reshard it");
}

absl::Status AddState(Module& module, const std::string& prefix, int depth,
                      StateDict& state) {
  if (depth >= StateDict::kMaxDepth) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tree below `", prefix, "` is deeper than ", StateDict::kMaxDepth,
        " modules, or a module is in itself"));
  }
  SHERD_ASSIGN_OR_RETURN(const ModuleContents contents,
                         internal::ContentsOf(module));
  for (const NamedMember& member : contents.members) {
    if (member.kind == MemberKind::kAttribute || member.value.is_none()) {
      continue;
    }
    const std::string name =
        absl::StrCat(prefix, StateDict::EscapeKey(member.name));
    absl::StatusOr<StateValue> value = ToState(member.value);
    if (!value.ok()) return Annotate(value.status(), name);
    SHERD_RETURN_IF_ERROR(state.Set(name, *std::move(value)));
  }
  for (const NamedModule& child : contents.children) {
    SHERD_RETURN_IF_ERROR(
        AddState(*child.module,
                 absl::StrCat(prefix, StateDict::EscapeKey(child.name), "."),
                 depth + 1, state));
  }
  for (const StateHook& hook : ModuleAccess::HooksOf(module).state) {
    SHERD_RETURN_IF_ERROR(hook(module, prefix, state));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StateDict> State(Module& root) {
  StateDict state;
  SHERD_RETURN_IF_ERROR(AddState(root, "", 0, state));
  return state;
}

}  // namespace sherd
