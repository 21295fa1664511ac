#include "sherd/core/nn/plan/plan_paths.h"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
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

using Sharders = std::set<absl::string_view>;

Sharders ShardersOf(const ShardingPlan& plan) {
  Sharders sharders;
  for (const PlanEntry& entry : plan.plan) {
    if (IsSharder(entry)) sharders.insert(entry.path);
  }
  return sharders;
}

// The path of the sharder for a module in which `path` is; "" if there is none.
absl::string_view SharderAbove(const Sharders& sharders,
                               absl::string_view path) {
  while (!path.empty() && !sharders.contains(path)) {
    path = SplitPath(path).first;
  }
  return path;
}

// Compares every path with those above it: O(total names * log(entries)).
absl::Status CheckConflicts(const ShardingPlan& plan) {
  const Sharders sharders = ShardersOf(plan);
  std::set<absl::string_view> seen;
  for (const PlanEntry& entry : plan.plan) {
    // A sharder's own path does not conflict with itself.
    const absl::string_view above = SharderAbove(
        sharders, IsSharder(entry) ? SplitPath(entry.path).first
                                   : absl::string_view(entry.path));
    if (!above.empty()) {
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

// A tensor with several paths has one layout.
absl::Status CheckTies(const PlanTree& tree, const ShardingPlan& plan) {
  const Sharders sharders = ShardersOf(plan);
  std::map<absl::string_view, const ShardingSpec*> specs;
  for (const PlanEntry& entry : plan.plan) {
    if (IsSharder(entry)) continue;
    specs[entry.path] = std::get<ShardingSpecPtr>(entry.method).get();
  }
  for (const auto& [path, spec] : specs) {
    for (const TensorHolder& holder : tree.HoldersOf(path)) {
      const auto other = specs.find(holder.path);
      const bool differs = other != specs.end() && *other->second != *spec;
      const absl::string_view sharder = SharderAbove(sharders, holder.path);
      if (!differs && sharder.empty()) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("`", path, "` and `", holder.path,
                       "` are one tensor, which is sharded once, but ",
                       differs ? "the plan has two layouts for it"
                               : absl::StrCat("the sharder for `", sharder,
                                              "` decides about the latter")));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NamedMember> FindPlannedMember(const PlanTree& tree,
                                              absl::string_view path) {
  SHERD_ASSIGN_OR_RETURN(NamedMember member, tree.MemberAt(path));
  const auto* tensor = member.value.get_if<Tensor>();
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("Expected ", member.module->type_name(), ".", member.name,
                     " to be a Tensor, but found ", Name(member.value.kind())));
  }
  if (!tensor->is_contiguous()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "param: ", member.name, " is not a contiguous Tensor: it has size ",
        FormatDims(tensor->sizes()), " and strides ",
        FormatDims(tensor->strides())));
  }
  return member;
}

absl::Status CheckPlan(const PlanTree& tree, const ShardingPlan& plan) {
  for (const PlanEntry& entry : plan.plan) {
    SHERD_RETURN_IF_ERROR(CheckMethod(entry));
  }
  SHERD_RETURN_IF_ERROR(CheckConflicts(plan));
  for (const PlanEntry& entry : plan.plan) {
    SHERD_RETURN_IF_ERROR(IsSharder(entry)
                              ? tree.Find(entry.path).status()
                              : FindPlannedMember(tree, entry.path).status());
  }
  SHERD_RETURN_IF_ERROR(CheckTies(tree, plan));
  for (const OutputPlanEntry& entry : plan.output_plan) {
    if (entry.spec != nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("Only `ShardingSpec` is supported as output_plan, but the "
                     "entry of the path `",
                     entry.path, "` is null"));
  }
  return absl::OkStatus();
}

std::string DescribePlan(Module& root, const ShardingPlan& plan,
                         const PlanTree& tree) {
  std::string text = absl::StrCat("a ", root.type_name(), "\n");
  for (const PlanEntry& entry : plan.plan) {
    if (IsSharder(entry)) {
      absl::StrAppend(&text, "a sharder for `", entry.path, "`\n");
      continue;
    }
    absl::StrAppend(&text, "a spec for `", entry.path, "`");
    const auto member = FindPlannedMember(tree, entry.path);
    if (member.ok()) {
      const Tensor& tensor = *member->value.get_if<Tensor>();
      absl::StrAppend(&text, ", ", Name(tensor.dtype()), " ",
                      FormatDims(tensor.sizes()));
    }
    absl::StrAppend(&text, "\n");
  }
  const ShardingPlan outputs = {
      .output_plan = plan.output_plan,
      .return_local_tensor = plan.return_local_tensor};
  return absl::StrCat(text, outputs.ToString());
}

}  // namespace sherd::internal
