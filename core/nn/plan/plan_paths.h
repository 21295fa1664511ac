#ifndef SHERD_CORE_NN_PLAN_PLAN_PATHS_H_
#define SHERD_CORE_NN_PLAN_PLAN_PATHS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/plan/plan_tree.h"
#include "sherd/core/nn/sharding_plan.h"
#include "sherd/core/nn/tree/module_contents.h"

namespace sherd::internal {

// The member at `path`, as ShardParameter expects it: it holds a Tensor.
//   kNotFound, kInvalidArgument  As ShardParameter.
absl::StatusOr<NamedMember> FindPlannedMember(const PlanTree& tree,
                                              absl::string_view path);

// Checks what can be checked before the sharders run: see ShardModule. `tree`:
// that of the module.
absl::Status CheckPlan(const PlanTree& tree, const ShardingPlan& plan);

// What ranks compare before they apply a plan to a module: paths, kinds of
// methods, sizes and dtypes. ShardTensor compares specs and src_rank.
std::string DescribePlan(Module& root, const ShardingPlan& plan,
                         const PlanTree& tree);

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_PLAN_PLAN_PATHS_H_
