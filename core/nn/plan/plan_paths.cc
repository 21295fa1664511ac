#include "sherd/core/nn/plan/plan_paths.h"

#include <memory>
#include <set>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/nn/tree/module_contents.h"
#include "sherd/core/tensor/shape.h"

namespace sherd::internal {
namespace {

using SharderPtr = std::shared_ptr<Sharder>;

bool IsSharder(const PlanEntry& entry) {
  return std::holds_alternative<SharderPtr>(entry.method);
}

absl::Status CheckMethod(const PlanEntry& entry) {
  const bool null = std::visit(
      [](const auto& method) { return method == nullptr; }, entry.method);
  if (null) {
    return absl::InvalidArgumentError(
        absl::StrCat("Only `ShardingSpec` and `Sharder` are supported to "
                     "shard, but the entry of the path `",
                     entry.path, "` is null"));
  }
  if (IsSharder(entry) && entry.path.empty()) {
    return absl::InvalidArgumentError(
        "path must not be empty for custom sharder! The root has no parent in "
        "which the result could take its place");
  }
  return absl::OkStatus();
}

// Compares every path with those above it: O(total names * log(entries)).
absl::Status CheckConflicts(const ShardingPlan& plan) {
  std::set<absl::string_view> sharders;
  std::set<absl::string_view> seen;
  for (const PlanEntry& entry : plan.plan) {
    if (IsSharder(entry)) sharders.insert(entry.path);
  }
  for (const PlanEntry& entry : plan.plan) {
    absl::string_view above = entry.path;
    // A sharder's own path does not conflict with itself.
    if (IsSharder(entry)) above = SplitPath(above).first;
    for (; !above.empty(); above = SplitPath(above).first) {
      if (!sharders.contains(above)) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "the path `", entry.path,
          "` should not conflict with the submodule tree of the sharder for `",
          above, "`, which decides about all below: take one of them out"));
    }
    if (!seen.insert(entry.path).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the path `", entry.path, "` occurs twice in the plan"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlannedMember> FindPlannedMember(Module& root,
                                                absl::string_view path) {
  const auto [parent, name] = SplitPath(path);
  SHERD_ASSIGN_OR_RETURN(Module * module, Find(root, parent));
  SHERD_ASSIGN_OR_RETURN(const ModuleContents contents, ContentsOf(*module));
  for (const NamedMember& member : contents.members) {
    if (member.name != name) continue;
    const auto* tensor = member.value.get_if<Tensor>();
    if (tensor == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Expected ", module->type_name(), ".", name,
          " to be a Tensor, but found ", Name(member.value.kind())));
    }
    if (!tensor->is_contiguous()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "param: ", name, " is not a contiguous Tensor: it has size ",
          FormatDims(tensor->sizes()), " and strides ",
          FormatDims(tensor->strides())));
    }
    return PlannedMember{module, member.name, member.kind, *tensor};
  }
  for (const NamedModule& child : contents.children) {
    if (child.name != name) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "Expected ", module->type_name(), ".", name,
        " to be a Tensor, but found module (a ", child.module->type_name(),
        "): a spec shards a parameter, a Sharder a module"));
  }
  return NoAttribute(*module, path, name);
}

absl::Status CheckPlan(Module& root, const ShardingPlan& plan) {
  for (const PlanEntry& entry : plan.plan) {
    SHERD_RETURN_IF_ERROR(CheckMethod(entry));
  }
  SHERD_RETURN_IF_ERROR(CheckConflicts(plan));
  for (const PlanEntry& entry : plan.plan) {
    SHERD_RETURN_IF_ERROR(IsSharder(entry)
                              ? Find(root, entry.path).status()
                              : FindPlannedMember(root, entry.path).status());
  }
  for (const OutputPlanEntry& entry : plan.output_plan) {
    if (entry.spec != nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("Only `ShardingSpec` is supported as output_plan, but the "
                     "entry of the path `",
                     entry.path, "` is null"));
  }
  return absl::OkStatus();
}

std::string DescribePlan(Module& root, const ShardingPlan& plan) {
  std::string text = absl::StrCat("a ", root.type_name(), "\n");
  for (const PlanEntry& entry : plan.plan) {
    if (IsSharder(entry)) {
      absl::StrAppend(&text, "a sharder for `", entry.path, "`\n");
      continue;
    }
    absl::StrAppend(&text, "a spec for `", entry.path, "`");
    const auto member = FindPlannedMember(root, entry.path);
    if (member.ok()) {
      absl::StrAppend(&text, ", ", Name(member->tensor.dtype()), " ",
                      FormatDims(member->tensor.sizes()));
    }
    absl::StrAppend(&text, "\n");
  }
  for (const OutputPlanEntry& entry : plan.output_plan) {
    absl::StrAppend(&text, "the output of `", entry.path, "` by ",
                    entry.spec == nullptr ? "null" : entry.spec->ToString(),
                    "\n");
  }
  for (const std::string& path : plan.return_local_tensor) {
    absl::StrAppend(&text, "the local tensor of `", path, "`\n");
  }
  return text;
}

}  // namespace sherd::internal
