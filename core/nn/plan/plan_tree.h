#ifndef SHERD_CORE_NN_PLAN_PLAN_TREE_H_
#define SHERD_CORE_NN_PLAN_PLAN_TREE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/sharding_plan.h"
#include "sherd/core/nn/tree/module_contents.h"
#include "sherd/core/nn/tree/value_identity.h"
#include "sherd/core/nn/value.h"

namespace sherd::internal {

// A place of a tensor in a model: a member, or within the list or map that the
// member is.
struct TensorHolder {
  Module* module = nullptr;
  MemberKind kind = MemberKind::kParameter;
  // Of the member.
  std::string path;
  // Among the member's tensors, in the order of ForEachTensor.
  size_t position = 0;
  // The tensor is the member itself.
  bool whole = false;
};

// A model at one moment, by paths, and which places hold one tensor.
//
// Ties. Places with handles of the same elements hold one tensor. Tensors
// without elements here, as on meta, are tied as those of the plan's source are
// (TieAs); before that, each is for itself.
//
// Cost. One visit of each module; then each function one look into a table for
// each path and holder.
class PlanTree {
 public:
  // `root` outlives it.
  //   Errors. As ForEachModule.
  static absl::StatusOr<PlanTree> Of(Module& root);

  // As the functions of these names.
  absl::StatusOr<NamedMember> MemberAt(absl::string_view path) const;
  absl::StatusOr<Module*> Find(absl::string_view path) const;

  // The child at `path` as its parent holds it now.
  //   kNotFound  There is none, now or when the tree was walked.
  absl::StatusOr<std::shared_ptr<Module>> ChildAt(absl::string_view path) const;
  // Replaces it.
  //   kInvalidArgument  As ChildSlot::Set.
  absl::Status ReplaceChild(absl::string_view path,
                            std::shared_ptr<Module> child) const;

  // The places of the tensor that is the member at `path`, in the order of
  // MembersOf.
  absl::Span<const TensorHolder> HoldersOf(absl::string_view path) const;

  // Whether a tensor with a spec has no elements here, or several places.
  bool NeedsTies(const ShardingPlan& plan) const;
  // The places of the tensors with specs that have several, as text.
  std::string TiesOf(const ShardingPlan& plan) const;
  // Ties tensors without elements as `ties`, the text of the source.
  //   kInvalidArgument  Other tensors with specs are tied otherwise.
  //   kDataLoss         `ties` is not such a text.
  absl::Status TieAs(absl::string_view ties, const ShardingPlan& plan);
  // The same without that error, for a tree in which sharders have run.
  void TieWhatFits(absl::string_view ties);

  // Whether members that were one tensor here still are in `now`, where both
  // still exist. Those within lists and maps are not compared.
  //   kFailedPrecondition  With two paths that were.
  absl::Status CheckTies(const PlanTree& now) const;

 private:
  struct ChildPlace {
    Module* parent = nullptr;
    std::shared_ptr<Module> module;
    // In the order of ContentsOf, of which the parent's list is a part.
    size_t position = 0;
  };
  // A tensor and its places.
  struct TensorWithHolders {
    std::vector<TensorHolder> holders;
    DType dtype = kFloat32;
    Dims sizes;
    bool has_elements = false;
    // TieAs has seen it.
    bool is_tied = false;
  };
  // The path of a member, and a position in it.
  using TensorPlace = std::pair<std::string, size_t>;

  explicit PlanTree(Module& root) : root_(&root) {}
  void Add(const NamedMember& member);
  // The position of a tensor in held_, the end for what is not one. Adds a
  // tensor that has not been seen yet.
  size_t HeldAt(const NamedMember& member, const Value& tensor,
                size_t position);
  absl::Status Tie(absl::Span<const TensorPlace> places);

  Module* root_;
  absl::flat_hash_map<std::string, NamedMember> members_;
  absl::flat_hash_map<std::string, ChildPlace> children_;
  std::vector<TensorWithHolders> held_;
  // Positions in held_.
  absl::flat_hash_map<TensorPlace, size_t> places_;
  absl::flat_hash_map<ValueIdentity, size_t> by_elements_;
  // Of tensors without elements: a module may have several paths.
  absl::flat_hash_map<std::tuple<const Module*, std::string, size_t>, size_t>
      without_elements_;
};

// Tensors that take the places of others, put there together: each module is
// visited once.
class TensorReplacements {
 public:
  void Add(absl::Span<const TensorHolder> holders, const Value& value);
  // Puts them there, and forgets them.
  void Apply();

 private:
  using Member = std::vector<std::pair<size_t, Value>>;
  absl::flat_hash_map<Module*, absl::flat_hash_map<std::string, Member>>
      modules_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_PLAN_PLAN_TREE_H_
