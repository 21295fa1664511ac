#ifndef SHERD_CORE_NN_BALANCED_PLANNER_H_
#define SHERD_CORE_NN_BALANCED_PLANNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/sharding_plan.h"
#include "sherd/core/sharding/placement.h"

namespace sherd {

struct BalancedPlannerOptions {
  // The most bytes of tables on a rank. 0: an equal part, 5 % more, and a row.
  int64_t bytes_per_rank = 0;
  // One place per rank; bytes of places of one rank are not added up. Empty:
  // the ranks of `group`, on the type of device that each table is on.
  std::vector<Placement> placements = {};
  // Null: the default group.
  std::shared_ptr<ProcessGroup> group = nullptr;
  // Which parameters are tables: called with the module, its path and the
  // member's name, for plain tensors of two dimensions. Null: those of modules
  // whose type_name is "Embedding" or "EmbeddingBag".
  std::function<bool(const Module& module, absl::string_view path,
                     absl::string_view name)>
      is_table = nullptr;
};

// Spreads the tables of a model over ranks, so that each has about the same
// bytes of them.
//
// Layout. Tables are taken by falling bytes, equal ones by path. Each goes as a
// whole to the rank that has the fewest bytes, the lowest of several, if that
// has at most bytes_per_rank afterwards. Any other is cut by rows, over the
// ranks that have the fewest bytes, so that these have the same bytes
// afterwards, up to a row.
//
// ShardingPlan::reasons has a line per table:
//
//     a.weight, 640 B: whole on rank:1/cpu, which had the fewest bytes, 0 B
//     b.weight, 2.56 kB: rows 0-19 on rank:0/cpu, 20-39 on rank:1/cpu; as
//     a whole it exceeds 1.68 kB per rank
//
// BuildPlan is not collective.
//   kResourceExhausted   The tables exceed bytes_per_rank on all ranks.
//   kInvalidArgument     bytes_per_rank is negative, or a placement is
//                        malformed.
//   kFailedPrecondition  There are no placements and there is no default group.
//
// Cost. O(tables * ranks), and for tables that are cut log(bytes_per_rank)
// times that.
class BalancedPlanner : public ShardingPlanner {
 public:
  explicit BalancedPlanner(BalancedPlannerOptions options = {})
      : options_(std::move(options)) {}

  absl::StatusOr<ShardingPlan> BuildPlan(Module& module) override;

 private:
  const BalancedPlannerOptions options_;
};

}  // namespace sherd

#endif  // SHERD_CORE_NN_BALANCED_PLANNER_H_
