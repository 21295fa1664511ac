#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/tree/module_access.h"
#include "sherd/core/nn/tree/value_identity.h"
#include "sherd/core/sharding/state_dict.h"

namespace sherd::internal {
namespace {

// What the clones of one tree have cloned so far: they are made within one
// another, on one thread.
struct CloneMemory {
  int depth = 0;
  bool reported = false;
  ConvertedTensors tensors;
  absl::flat_hash_map<std::shared_ptr<Module>, std::shared_ptr<Module>> modules;
};

// Of the outermost clone of this thread.
thread_local CloneMemory* current_memory = nullptr;

absl::Status CloneChild(ChildSlot& slot, CloneMemory& memory) {
  const std::shared_ptr<Module> original = slot.module();
  if (original == nullptr) return absl::OkStatus();
  if (memory.depth > StateDict::kMaxDepth) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a ", original->type_name(), " is more than ", StateDict::kMaxDepth,
        " modules deep, or a member of itself"));
  }
  std::shared_ptr<Module> clone = memory.modules[original];
  if (clone == nullptr) {
    clone = original->Clone();
    if (clone == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "Clone of its child, a ", original->type_name(), ", returned null"));
    }
    memory.modules[original] = clone;
  }
  return slot.Set(std::move(clone));
}

}  // namespace

bool CloneMembers(Module& module) {
  CloneMemory own;
  const bool is_outermost = current_memory == nullptr;
  if (is_outermost) current_memory = &own;
  CloneMemory& memory = *current_memory;
  ++memory.depth;
  absl::Status status;
  VisitMembers(
      module,
      [&](MemberKind, absl::string_view, Value& member) {
        if (status.ok()) status = memory.tensors.Convert(member, CloneTensor);
      },
      [&](absl::string_view, ChildSlot& slot) {
        if (status.ok()) status = CloneChild(slot, memory);
      });
  --memory.depth;
  if (is_outermost) current_memory = nullptr;
  if (status.ok()) return true;
  if (!std::exchange(memory.reported, true)) {
    SHERD_LOG(kError) << "Clone of a " << module.type_name()
                      << " returns null: " << status.ToString();
  }
  return false;
}

}  // namespace sherd::internal
