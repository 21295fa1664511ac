#ifndef SHERD_CORE_NN_PLAN_PLAN_PATHS_H_
#define SHERD_CORE_NN_PLAN_PLAN_PATHS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/sharding_plan.h"
#include "sherd/core/nn/value.h"

namespace sherd::internal {

// A member that is to be sharded.
struct PlannedMember {
  Module* module = nullptr;
  std::string name;
  MemberKind kind = MemberKind::kParameter;
  Tensor tensor;
};

// The member at `path`, as ShardParameter expects it.
//   kNotFound, kInvalidArgument  As ShardParameter.
absl::StatusOr<PlannedMember> FindPlannedMember(Module& root,
                                                absl::string_view path);

// Checks what can be checked before the sharders run: see ShardModule.
absl::Status CheckPlan(Module& root, const ShardingPlan& plan);

// What ranks compare before they apply a plan to a module: paths, kinds of
// methods, sizes and dtypes. ShardTensor compares specs and src_rank.
std::string DescribePlan(Module& root, const ShardingPlan& plan);

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_PLAN_PLAN_PATHS_H_
