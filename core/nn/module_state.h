#ifndef SHERD_CORE_NN_MODULE_STATE_H_
#define SHERD_CORE_NN_MODULE_STATE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/sharding/state_dict.h"

namespace sherd {

// The parameters and buffers of a tree, by their paths: `layers.0.weight`; and
// what state hooks add (Module::AddStateHook). It is what SaveCheckpoint takes:
//
//     SHERD_ASSIGN_OR_RETURN(StateDict state, State(*model));
//     SHERD_RETURN_IF_ERROR(SaveCheckpoint("ckpt", state, group));
//
// Layout. Keys of the state are names of modules and members, one map per
// module; a part of a name that needs it is escaped (StateDict::EscapeKey). A
// list of tensors is a list, a map a map. A member that several modules share
// has an entry for each. Members that are none have no entry.
//
// Buffers. Tensors in the state are handles: they share their elements with the
// module.
//
// Errors.
//   kInvalidArgument  The tree is not valid: see module_tree.h; or a member is
//                     a PartialTensor, which has no value yet: Reshard it.
//   other             Of a hook.
absl::StatusOr<StateDict> State(Module& root);

struct LoadStateOptions {
  // Whether a name that is missing or unexpected, or a value that does not fit,
  // is an error.
  bool strict = true;
  // As ModuleToOptions::group, for the tensors of module and state.
  std::shared_ptr<ProcessGroup> group = nullptr;
};

// Names of the state, with keys as they are.
struct LoadStateReport {
  // Members that the state has no value for: they are as before.
  std::vector<std::string> missing;
  // Values of the state that no member and no load hook took.
  std::vector<std::string> unexpected;
  // Members that the state has a value for which does not fit, with the reason,
  // each as a line that can be printed: "fc.weight: a tensor of size [4, 6]
  // does not fit one of size [6, 4]".
  std::vector<std::string> mismatched;
};

// Copies a state into the members of a tree.
//
// Layout. A value is copied into the tensor that is there, whatever the layouts
// of the two: sharded into sharded (ReshardInto), sharded into plain, where
// each rank gets the whole, and plain, which is the whole on every rank, into
// sharded. A member that is none becomes the handle of the state's value, which
// it then shares. A member of which State made a list or map takes the items
// one by one. Of a member with several paths the value of the last one counts.
//
// Load hooks run first, each before the members of its module.
//
// Collective over LoadStateOptions::group; without it over the group of the
// sharded and partial tensors of module and state, if there are any: plain
// tensors are a matter of one rank. The ranks pass the same tree, names and
// layouts.
//
// Errors. Nothing has changed, and the error is the same on every rank of that
// group, unless moving data fails: then values are unspecified.
//   kFailedPrecondition  With `strict`: "missing keys: …; unexpected keys: …;
//                        mismatched: …". This process is not in the given
//                        group: on this rank alone.
//   kInvalidArgument     As State; ranks differ in names or layouts, or in
//                        what fits, as where a rank outside the group of a
//                        sharded value has a plain member; or the given group
//                        lacks a rank of the tensors' group.
//   kUnimplemented       The sharded tensors of module and state are of
//                        several groups.
//   other                Of a hook; of ReshardInto, AllGather and
//                        Tensor::CopyFrom.
//
// Cost. One round of agreement, and that of the moves. A value that is the
// member's own elements already is not copied.
absl::StatusOr<LoadStateReport> LoadState(Module& root, const StateDict& state,
                                          const LoadStateOptions& options = {});

// Makes the ShardedTensors among the attributes of `root` and all modules below
// part of the state of every tree that `root` is in: State stores handles of
// them under their paths, and LoadState replaces each attribute by the
// ShardedTensor that the state has under its path, whatever it was before.
void AddShardedAttributeHooks(Module& root);

}  // namespace sherd

#endif  // SHERD_CORE_NN_MODULE_STATE_H_
