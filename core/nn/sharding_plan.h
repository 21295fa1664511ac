#ifndef SHERD_CORE_NN_SHARDING_PLAN_H_
#define SHERD_CORE_NN_SHARDING_PLAN_H_

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/sharding/sharding_spec.h"

namespace sherd {

// Shards a module by a method of its own; see ShardModule.
class Sharder {
 public:
  virtual ~Sharder() = default;

  // Returns the module that takes the place of `module`: another one, or
  // `module` itself. It may call ShardModule and ShardParameter on what it was
  // given, over the same or other groups, and adopt its children; an error of
  // such a call is one of the whole plan, whatever Shard returns.
  //
  // Called by every rank of the group, with the module at the same path. If it
  // fails on one rank, operations on sharded tensors and modules over the
  // plan's group that it has begun on others return the error of that rank.
  // Calls of ProcessGroup, Coalescer and tensor_collectives.h, and those over
  // other groups, end with an error that names the rank, but not why it is
  // missing.
  virtual absl::StatusOr<std::shared_ptr<Module>> Shard(
      const std::shared_ptr<Module>& module) = 0;
};

using ShardingMethod = std::variant<ShardingSpecPtr, std::shared_ptr<Sharder>>;

// A layout for the parameter, or a sharder for the module, at a path.
struct PlanEntry {
  std::string path;
  ShardingMethod method;
};

// A layout for the output of the module at a path; "" is the root.
struct OutputPlanEntry {
  std::string path;
  ShardingSpecPtr spec;
};

// How a model is sharded, by the paths of module_tree.h:
//
//     {.plan = {{"ebc", sharder}, {"fc.weight", rows}},
//      .output_plan = {{"fc", columns}},
//      .return_local_tensor = {"fc"}}
struct ShardingPlan {
  // Applied in this order.
  std::vector<PlanEntry> plan = {};
  // Modules to which ReshardOutput applies, and then those to which
  // CollectLocalShard does.
  std::vector<OutputPlanEntry> output_plan = {};
  std::vector<std::string> return_local_tensor = {};
  // Why, for people: a planner writes a line per decision.
  std::string reasons = {};

  // A line per entry: `fc.weight: ChunkShardingSpec(…)`; then the reasons.
  std::string ToString() const;
};

// Makes plans for models.
class ShardingPlanner {
 public:
  virtual ~ShardingPlanner() = default;

  // Not collective: returns the same plan on every rank for the same model.
  virtual absl::StatusOr<ShardingPlan> BuildPlan(Module& module) = 0;
};

struct ShardOptions {
  // The rank in the group whose elements are those of the sharded parameters.
  int src_rank = 0;
  // Null: the default group.
  std::shared_ptr<ProcessGroup> group = nullptr;
};

// Shards a parameter, buffer or attribute of `module`, given by its path: the
// member holds a ShardedTensor of `spec` afterwards, as ShardTensor makes it.
// Parameters of floating-point or complex numbers have requires_grad set.
//
// Ties. Members of `module` that are the same tensor, handles of equal dtype,
// size and strides, hold the same ShardedTensor afterwards, also within lists
// and maps. Other views of its memory keep the old elements. Where a rank has
// tensors without elements, as on meta, they are tied as those of src_rank.
//
// Collective over the group; the ranks pass equal modules, names, specs and
// src_rank.
//
// Errors. In this order. The same on every rank, and nothing has changed.
//   kFailedPrecondition  There is no default group, or this process is not in
//                        the group: on this rank alone.
//   kNotFound            "Linear has no attribute `foo`".
//   kInvalidArgument     "Expected Linear.bias to be a Tensor, but found list";
//                        "param: weight is not a contiguous Tensor"; path,
//                        size, dtype or ties differ between ranks.
//   other                Those of ShardTensor: "does not match with src_rank",
//                        "does not match with sharding_spec", ….
//
// Memory. The whole tensor until the shards are there.
//
// Cost. Two small rounds, three more where tensors are tied or a rank has one
// without elements, and those of ShardTensor.
absl::Status ShardParameter(Module& module, absl::string_view name,
                            const ShardingSpecPtr& spec,
                            const ShardOptions& options = {});

// Applies a plan: shards each parameter that has a spec, as ShardParameter;
// puts what a sharder returns in the place of the module that it was given;
// then adds the output hooks.
//
// Collective over the group; the ranks pass equal modules and plans. A Sharder
// may call it within a call.
//
// Errors. The same on every rank of the group. After a failure anywhere, also
// in a call that a sharder makes, every module of the tree holds what it held
// before, on every rank: the same members, children and hooks. (What a sharder
// writes into elements stays.)
//   kInvalidArgument     "Only `ShardingSpec` and `Sharder` are supported to
//                        shard": null; "path must not be empty for custom
//                        sharder!"; a path occurs twice; "Only `ShardingSpec`
//                        is supported as output_plan": null; a sharder returned
//                        no module, one that its parent cannot hold, or one
//                        that contains its parent; plans or modules differ
//                        between ranks; and as ShardParameter.
//   kFailedPrecondition  "should not conflict with the submodule tree": a path
//                        is that of a sharder, or below it. Paths are compared
//                        name by name: "emb" and "embx.weight" do not conflict.
//                        "`a.w` and `b.w` are one tensor", for which the plan
//                        has two specs, or a spec and a sharder for a module
//                        above the other; or they "were one tensor", and a
//                        sharder has sharded one of them (not within lists and
//                        maps). And as ShardParameter.
//   kNotFound            "has no attribute", as ShardParameter; paths of the
//                        output plan are looked up after the sharders have run.
//   other                Of a sharder; of ShardTensor.
//
// Memory. The unsharded parameters until the end.
//
// Cost. Those of ShardParameter for each parameter, with the first rounds once;
// a small round for each sharder, and for each spec that follows one. One walk
// through the tree, O(n log n) for n entries, and one more after each sharder
// that a spec follows, and at the end after sharders.
absl::Status ShardModule(Module& module, const ShardingPlan& plan,
                         const ShardOptions& options = {});

// Adds an output hook that gives every sharded and partial tensor of an output,
// also within lists and maps, the layout `spec`, by ShardedTensor::Reshard or
// PartialTensor::Reshard; others pass through. The module's own handle of a
// tensor that it returns keeps its layout. The hook is collective over the
// tensors' groups.
//   kInvalidArgument  "Only `ShardingSpec` is supported as output_plan": null.
absl::Status ReshardOutput(Module& module, const ShardingSpecPtr& spec);

// Adds an output hook that replaces every sharded tensor of an output, also
// within lists and maps, by its only local shard; others pass through. Where
// the spec is a ChunkShardingSpec and the shard has the size 1 in its
// dimension, that dimension disappears: a [4, 16] over four ranks gives [16].
//
// Errors of the hook, on this rank alone.
//   kUnimplemented  "Only single local shard is supported."
void CollectLocalShard(Module& module);

}  // namespace sherd

#endif  // SHERD_CORE_NN_SHARDING_PLAN_H_
