#ifndef SHERD_CORE_NN_MODULE_TREE_H_
#define SHERD_CORE_NN_MODULE_TREE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/value.h"
#include "sherd/core/tensor/device.h"

namespace sherd {

// Functions on the tree of a module and its members, by paths:
//
//     path = [ name { "." name } ]
//
// The path of the root is empty; "encoder.layers.0.weight" is the member
// `weight` of the child `0` of the child `layers` of the child `encoder`.
//
// Errors of all functions:
//   kInvalidArgument  A module in the tree names a member "", with a dot, or
//                     like another one; or the tree is deeper than
//                     StateDict::kMaxDepth, as where a module is in itself.
//
// Cost. A function visits each module that it passes once; no element moves,
// but in To.

// The module at `path`, which is valid as long as its parent holds it.
//   kNotFound  "Linear has no attribute `foo`".
absl::StatusOr<Module*> Find(Module& root, absl::string_view path);

// The parameter, buffer or attribute at `path`: a handle.
//   kNotFound         As Find.
//   kInvalidArgument  The path is that of a module.
absl::StatusOr<Value> Get(Module& root, absl::string_view path);

// Replaces what Get returns. After an error nothing has changed. Errors as
// Get.
absl::Status Set(Module& root, absl::string_view path, Value value);

struct NamedValue {
  std::string name;
  Value value;
};

// All members of one kind, with their paths: those of a module in the order of
// its Visit, and then those of its children. Handles of the same elements occur
// once, by their first path; members that are none do not occur. ShardedTensors
// are among them.
absl::StatusOr<std::vector<NamedValue>> NamedParameters(Module& root);
absl::StatusOr<std::vector<NamedValue>> NamedBuffers(Module& root);
absl::StatusOr<std::vector<NamedValue>> NamedAttributes(Module& root);

// All modules but the root, parents first. The same module occurs once, by its
// first path.
absl::StatusOr<std::vector<NamedModule>> NamedModules(Module& root);

struct ModuleToOptions {
  // The ranks that call To together; it has those of the tensors' group. Null:
  // the group of the sharded and partial tensors; a rank that has none, where
  // others have some, does not wait for these, who notice its absence only by
  // its next call or their deadline.
  std::shared_ptr<ProcessGroup> group = nullptr;
};

// Moves every tensor of the tree to `device`: plain tensors as by Tensor::To,
// sharded ones as by ShardedTensor::To with ToOptions::device. Members that
// share elements share them afterwards.
//
// Collective over ModuleToOptions::group; without it over the group of the
// sharded and partial tensors, if there are any: a tree of plain tensors is a
// matter of one rank.
//
// Errors. After an error no member has changed. It is the same on every rank of
// that group.
//   kInvalidArgument     Ranks have other numbers of sharded tensors; the given
//                        group lacks a rank of theirs.
//   kFailedPrecondition  This process is not in the given group: on this rank
//                        alone.
//   kUnimplemented       The sharded tensors of a rank are of several groups.
//   other                Those of Tensor::To and ShardedTensor::To.
//
// Memory. The old elements until the end.
absl::Status To(Module& root, const Device& device,
                const ModuleToOptions& options = {});

}  // namespace sherd

#endif  // SHERD_CORE_NN_MODULE_TREE_H_
