#include "sherd/core/nn/tree/tree_snapshot.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/tree/module_contents.h"

namespace sherd::internal {

// Writes what a module holds to its entry, or puts it back.
class TreeSnapshot::Exchange : public ModuleVisitor {
 public:
  Exchange(Entry& entry, bool restore) : entry_(entry), restore_(restore) {}

 private:
  void OnMember(MemberKind /*kind*/, absl::string_view /*name*/,
                Value& member) override {
    Next(entry_.values, value_++, member);
  }
  void OnChild(absl::string_view /*name*/, ChildSlot& slot) override {
    std::shared_ptr<Module> child = slot.module();
    Next(entry_.children, child_++, child);
    if (!restore_) return;
    const absl::Status status = slot.Set(std::move(child));
    SHERD_CHECK(status.ok())
        << "a child that was there does not fit: " << status.ToString();
  }
  void OnChildren(std::vector<NamedModule>& members) override {
    Next(entry_.child_lists, list_++, members);
  }

  template <typename T>
  void Next(std::vector<T>& recorded, size_t position, T& held) const {
    if (!restore_) {
      recorded.push_back(held);
    } else if (position < recorded.size()) {
      held = recorded[position];
    }
  }

  Entry& entry_;
  const bool restore_;
  size_t value_ = 0;
  size_t child_ = 0;
  size_t list_ = 0;
};

absl::StatusOr<TreeSnapshot> TreeSnapshot::Take(Module& root) {
  // Without cycles, and with the same members on each visit.
  SHERD_RETURN_IF_ERROR(MembersOf(root).status());
  TreeSnapshot snapshot;
  absl::flat_hash_set<Module*> known;
  snapshot.Record(root, nullptr, known);
  return snapshot;
}

void TreeSnapshot::Record(Module& module, std::shared_ptr<Module> owner,
                          absl::flat_hash_set<Module*>& known) {
  if (!known.insert(&module).second) return;
  Entry entry;
  entry.module = &module;
  entry.owner = std::move(owner);
  entry.hooks = ModuleAccess::HooksOf(module);
  Exchange recorder(entry, /*restore=*/false);
  ModuleAccess::Visit(module, recorder);
  std::vector<std::shared_ptr<Module>> below = entry.children;
  for (const std::vector<NamedModule>& list : entry.child_lists) {
    for (const NamedModule& child : list) below.push_back(child.module);
  }
  entries_.push_back(std::move(entry));
  for (const std::shared_ptr<Module>& child : below) {
    if (child != nullptr) Record(*child, child, known);
  }
}

void TreeSnapshot::Restore() {
  for (Entry& entry : entries_) {
    Exchange restorer(entry, /*restore=*/true);
    ModuleAccess::Visit(*entry.module, restorer);
    ModuleAccess::HooksOf(*entry.module) = entry.hooks;
  }
}

}  // namespace sherd::internal
