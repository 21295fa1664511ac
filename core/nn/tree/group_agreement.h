#ifndef SHERD_CORE_NN_TREE_GROUP_AGREEMENT_H_
#define SHERD_CORE_NN_TREE_GROUP_AGREEMENT_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/value.h"

namespace sherd::internal {

// The groups of the sharded and partial tensors of a model that this process is
// a member of, in the order in which Add saw them: the same on all members.
class GroupAgreement {
 public:
  // `group`: where the ranks agree, whatever tensors are found; null: over the
  // groups of the tensors.
  explicit GroupAgreement(std::shared_ptr<ProcessGroup> group = nullptr)
      : given_(std::move(group)) {}

  void Add(const Value& value);
  // The members of a module and of all below, also of a tree that is not valid:
  // a rank with such a tree meets the others, too.
  void AddMembers(Module& module, bool with_attributes = true);
  // No tensor was found that names a group, which may be one without this
  // process: the same on all ranks with the same tensors.
  bool empty() const { return !any_named_; }

  // Makes an error on one rank that of all ranks of its groups; see
  // sherd::Agree. Without a group returns `local`.
  //   kUnimplemented       There are several groups on a rank: an error would
  //                        have to pass from one to another.
  //   kInvalidArgument     The given group lacks a rank of one that was found.
  //   kFailedPrecondition  This process is not in the given group: on this rank
  //                        alone.
  //
  // Collective over the given group, or over each of those found, once.
  absl::Status Agree(absl::string_view operation, absl::Status local,
                     const AgreedValue& value = {}) const;

 private:
  void AddBelow(Module& module, bool with_attributes,
                absl::flat_hash_set<const Module*>& visited);
  absl::Status CheckGroups(absl::string_view operation) const;

  const std::shared_ptr<ProcessGroup> given_;
  std::vector<std::shared_ptr<ProcessGroup>> found_;
  bool any_named_ = false;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_TREE_GROUP_AGREEMENT_H_
