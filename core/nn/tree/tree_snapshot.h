#ifndef SHERD_CORE_NN_TREE_TREE_SNAPSHOT_H_
#define SHERD_CORE_NN_TREE_TREE_SNAPSHOT_H_

#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/tree/module_access.h"
#include "sherd/core/nn/value.h"

namespace sherd::internal {

// What every module of a tree holds at one moment: handles of its members, its
// children and its hooks, but no copies of elements.
class TreeSnapshot {
 public:
  // Of `root`, which outlives the snapshot, and all modules below.
  //   kInvalidArgument  The tree is not valid: see ForEachModule.
  static absl::StatusOr<TreeSnapshot> Take(Module& root);

  // Puts everything back, also into modules that have left the tree.
  void Restore();

 private:
  // One visit of a module: what its members hold, in the order of Visit.
  struct Entry {
    Module* module = nullptr;
    // Keeps `module`; null for the root.
    std::shared_ptr<Module> owner;
    std::vector<Value> values;
    std::vector<std::shared_ptr<Module>> children;
    std::vector<std::vector<NamedModule>> child_lists;
    ModuleAccess::Hooks hooks;
  };
  class Exchange;

  void Record(Module& module, std::shared_ptr<Module> owner,
              absl::flat_hash_set<Module*>& known);

  std::vector<Entry> entries_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_TREE_TREE_SNAPSHOT_H_
