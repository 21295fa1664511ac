#include "sherd/core/nn/sharding_plan.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/collective/agreement_scope.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/nn/plan/plan_paths.h"
#include "sherd/core/nn/plan/plan_tree.h"
#include "sherd/core/nn/tree/module_contents.h"
#include "sherd/core/nn/tree/tree_snapshot.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"

namespace sherd {
namespace {

using internal::NamedMember;
using internal::PlanTree;
using SharderPtr = std::shared_ptr<Sharder>;

constexpr char kOperation[] = "shard_module";

// One ShardModule of this rank, and those that its sharders call on the same
// thread: the first failure of any of them fails all, on every rank; see
// AgreementScope. Each puts back the tree of its own module, which may be one
// that a sharder made and that no longer exists when an outer call fails.
class PlanRun {
 public:
  PlanRun(Module& root, const ShardingPlan& plan, const ShardOptions& options,
          std::shared_ptr<ProcessGroup> group)
      : root_(root),
        plan_(plan),
        src_rank_(options.src_rank),
        group_(std::move(group)),
        scope_(group_),
        before_(internal::TreeSnapshot::Take(root)),
        tree_(PlanTree::Of(root)) {}

  absl::Status Run() {
    (void)Apply();
    absl::Status failure = scope_.failure();
    if (!failure.ok() && before_.ok()) before_->Restore();
    return failure;
  }

 private:
  absl::Status Apply() {
    SHERD_RETURN_IF_ERROR(Begin());
    for (const PlanEntry& entry : plan_.plan) {
      const auto* spec = std::get_if<ShardingSpecPtr>(&entry.method);
      SHERD_RETURN_IF_ERROR(
          spec != nullptr
              ? Shard(entry.path, *spec)
              : Replace(entry.path, *std::get<SharderPtr>(entry.method)));
    }
    replacements_.Apply();
    absl::Status status = LookAtTree();
    if (status.ok()) status = AddHooks();
    return Agree(std::move(status));
  }

  // Makes an error of one rank that of all.
  absl::Status Agree(absl::Status local) {
    return AgreeOnMaximum(std::move(local), {}, 0).status();
  }
  // Also compares `value`; returns the largest `number` of a rank.
  absl::StatusOr<uint64_t> AgreeOnMaximum(absl::Status local,
                                          const AgreedValue& value,
                                          uint64_t number) {
    if (local.ok()) local = before_.status();
    return scope_.AgreeOnMaximum(kOperation, std::move(local), value, number);
  }

  // Compares plans and models.
  absl::Status Begin() {
    std::string text;
    bool needs_ties = false;
    absl::Status status = tree_.status();
    if (status.ok()) {
      text = internal::DescribePlan(root_, plan_, *tree_);
      status = internal::CheckPlan(*tree_, plan_);
      needs_ties = tree_->NeedsTies(plan_);
    }
    SHERD_ASSIGN_OR_RETURN(
        const uint64_t any_needs_ties,
        AgreeOnMaximum(
            status, {Fingerprint().Add(text).value(), [&text] { return text; }},
            needs_ties ? 1 : 0));
    return any_needs_ties == 0 ? absl::OkStatus() : AgreeOnTies();
  }

  // The source's ties are those of all ranks.
  absl::Status AgreeOnTies() {
    absl::StatusOr<std::vector<std::string>> all =
        AllGatherStrings(*group_, tree_->TiesOf(plan_));
    if (!all.ok()) return scope_.Fail(all.status());
    // ShardTensor refuses a source that is no rank: other ranks may have one.
    if (src_rank_ < 0 || src_rank_ >= group_->size()) {
      return Agree(absl::OkStatus());
    }
    ties_ = std::move((*all)[static_cast<size_t>(src_rank_)]);
    return Agree(tree_->TieAs(ties_, plan_));
  }

  // All ranks get here together: an error of ShardTensor is that of all.
  absl::Status Shard(const std::string& path, const ShardingSpecPtr& spec) {
    // With a tensor that is tied to it: the ranks have compared their ties.
    if (sharded_.contains(path)) return absl::OkStatus();
    if (!sharders_.empty()) {
      SHERD_RETURN_IF_ERROR(Agree(LookAtTree()));
    }
    const absl::StatusOr<NamedMember> member =
        internal::FindPlannedMember(*tree_, path);
    // A sharder has changed it.
    if (!member.ok()) return Agree(member.status());
    absl::StatusOr<ShardedTensor> sharded =
        ShardTensor(*member->value.get_if<Tensor>(), spec, src_rank_, group_);
    if (!sharded.ok()) {
      return scope_.Fail(Annotate(sharded.status(), path));
    }
    bool is_parameter = member->kind == MemberKind::kParameter;
    const auto holders = tree_->HoldersOf(path);
    for (const internal::TensorHolder& tied : holders) {
      is_parameter |= tied.kind == MemberKind::kParameter;
      sharded_.insert(tied.path);
    }
    sharded->SetRequiresGrad(is_parameter && (sharded->is_floating_point() ||
                                              sharded->is_complex()));
    replacements_.Add(holders, *std::move(sharded));
    return absl::OkStatus();
  }

  absl::Status Replace(const std::string& path, Sharder& sharder) {
    replacements_.Apply();
    sharders_.push_back(path);
    return Agree(Annotate(ReplaceHere(path, sharder),
                          absl::StrCat("the sharder for `", path, "`")));
  }

  absl::Status ReplaceHere(const std::string& path, Sharder& sharder) {
    SHERD_ASSIGN_OR_RETURN(const std::shared_ptr<Module> child,
                           tree_->ChildAt(path));
    SHERD_ASSIGN_OR_RETURN(std::shared_ptr<Module> result,
                           sharder.Shard(child));
    if (result == nullptr) {
      return absl::InvalidArgumentError("Shard returned no module");
    }
    return tree_->ReplaceChild(path, std::move(result));
  }

  // After sharders: the tree is another one, and may be none, as when a module
  // is in itself.
  absl::Status LookAtTree() {
    if (sharders_.empty()) return absl::OkStatus();
    const std::string names =
        sharders_.size() == 1
            ? absl::StrCat("the sharder for `", sharders_[0], "`")
            : absl::StrCat("the sharders for `", sharders_.front(), "` to `",
                           sharders_.back(), "`");
    sharders_.clear();
    absl::StatusOr<PlanTree> now = PlanTree::Of(root_);
    SHERD_RETURN_IF_ERROR(Annotate(now.status(), names));
    now->TieWhatFits(ties_);
    SHERD_RETURN_IF_ERROR(Annotate(tree_->CheckTies(*now), names));
    tree_ = std::move(now);
    return absl::OkStatus();
  }

  absl::Status AddHooks() {
    for (const OutputPlanEntry& entry : plan_.output_plan) {
      SHERD_ASSIGN_OR_RETURN(Module * module, tree_->Find(entry.path));
      SHERD_RETURN_IF_ERROR(ReshardOutput(*module, entry.spec));
    }
    for (const std::string& path : plan_.return_local_tensor) {
      SHERD_ASSIGN_OR_RETURN(Module * module, tree_->Find(path));
      CollectLocalShard(*module);
    }
    return absl::OkStatus();
  }

  Module& root_;
  const ShardingPlan& plan_;
  const int src_rank_;
  const std::shared_ptr<ProcessGroup> group_;
  internal::AgreementScope scope_;
  // What the tree held at first, or why it is not valid.
  absl::StatusOr<internal::TreeSnapshot> before_;
  // As it was when LookAtTree was last called.
  absl::StatusOr<PlanTree> tree_;
  // Those of the source, if a rank needs them.
  std::string ties_;
  // Not yet in the model.
  internal::TensorReplacements replacements_;
  // Paths of members that hold what was sharded.
  absl::flat_hash_set<std::string> sharded_;
  // Paths of the sharders that have run since then.
  std::vector<std::string> sharders_;
};

}  // namespace

std::string ShardingPlan::ToString() const {
  std::string text;
  for (const PlanEntry& entry : plan) {
    const auto* spec = std::get_if<ShardingSpecPtr>(&entry.method);
    absl::StrAppend(&text, entry.path, ": ",
                    spec == nullptr    ? "a sharder"
                    : *spec == nullptr ? "null"
                                       : (*spec)->ToString(),
                    "\n");
  }
  for (const OutputPlanEntry& entry : output_plan) {
    absl::StrAppend(&text, "output of ", entry.path, ": ",
                    entry.spec == nullptr ? "null" : entry.spec->ToString(),
                    "\n");
  }
  for (const std::string& path : return_local_tensor) {
    absl::StrAppend(&text, "local tensor of ", path, "\n");
  }
  return absl::StrCat(text, reasons);
}

absl::Status ShardParameter(Module& module, absl::string_view name,
                            const ShardingSpecPtr& spec,
                            const ShardOptions& options) {
  ShardingPlan plan;
  plan.plan.push_back({std::string(name), spec});
  return ShardModule(module, plan, options);
}

absl::Status ShardModule(Module& module, const ShardingPlan& plan,
                         const ShardOptions& options) {
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> group,
                         internal::GroupOrDefault(options.group));
  SHERD_RETURN_IF_ERROR(internal::CheckMember(*group, kOperation));
  return PlanRun(module, plan, options, std::move(group)).Run();
}

}  // namespace sherd
