#include "sherd/core/nn/sharding_plan.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/nn/plan/plan_paths.h"
#include "sherd/core/nn/plan/sharding_transaction.h"
#include "sherd/core/nn/plan/tensor_holders.h"
#include "sherd/core/nn/tree/module_contents.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"

namespace sherd {
namespace {

using internal::NamedMember;
using internal::ShardingTransaction;
using internal::TensorHolders;
using SharderPtr = std::shared_ptr<Sharder>;

constexpr char kOperation[] = "shard_module";

// One ShardModule of this rank.
class PlanRun {
 public:
  PlanRun(Module& root, const ShardingPlan& plan, const ShardOptions& options,
          std::shared_ptr<ProcessGroup> group)
      : root_(root),
        plan_(plan),
        src_rank_(options.src_rank),
        group_(std::move(group)),
        transaction_(root, group_),
        holders_(TensorHolders::Find(root)) {}

  absl::Status Run() {
    (void)Apply();
    return transaction_.Finish();
  }

 private:
  absl::Status Apply() {
    std::string text;
    absl::Status status = holders_.status();
    if (status.ok()) {
      text = internal::DescribePlan(root_, plan_, *holders_);
      status = internal::CheckPlan(root_, plan_, *holders_);
    }
    SHERD_RETURN_IF_ERROR(transaction_.Agree(
        status, {Fingerprint().Add(text).value(), [&text] { return text; }}));
    for (const PlanEntry& entry : plan_.plan) {
      const auto* spec = std::get_if<ShardingSpecPtr>(&entry.method);
      SHERD_RETURN_IF_ERROR(
          spec != nullptr
              ? Shard(entry.path, *spec)
              : Replace(entry.path, *std::get<SharderPtr>(entry.method)));
    }
    return transaction_.Agree(AddHooks());
  }

  // All ranks get here together: an error of ShardTensor is that of all.
  absl::Status Shard(const std::string& path, const ShardingSpecPtr& spec) {
    // With a tensor that is tied to it: the ranks have compared their ties.
    if (sharded_.contains(path)) return absl::OkStatus();
    const absl::StatusOr<NamedMember> member =
        internal::FindPlannedMember(root_, path);
    // A sharder has changed it.
    if (!member.ok()) return transaction_.Agree(member.status());
    absl::StatusOr<ShardedTensor> sharded =
        ShardTensor(*member->value.get_if<Tensor>(), spec, src_rank_, group_);
    if (!sharded.ok()) {
      return transaction_.Fail(Annotate(sharded.status(), path));
    }
    bool is_parameter = member->kind == MemberKind::kParameter;
    for (const internal::TensorHolder& tied : holders_->Of(member->value)) {
      is_parameter |= tied.kind == MemberKind::kParameter;
      sharded_.insert(tied.path);
    }
    sharded->SetRequiresGrad(is_parameter && (sharded->is_floating_point() ||
                                              sharded->is_complex()));
    internal::ReplaceMember(*member->module, member->name, *sharded);
    holders_->Replace(member->value, *std::move(sharded));
    return absl::OkStatus();
  }

  absl::Status Replace(const std::string& path, Sharder& sharder) {
    return transaction_.Agree(
        Annotate(ReplaceHere(path, sharder),
                 absl::StrCat("the sharder for `", path, "`")));
  }

  absl::Status ReplaceHere(const std::string& path, Sharder& sharder) {
    const auto [parent_path, name] = internal::SplitPath(path);
    SHERD_ASSIGN_OR_RETURN(Module * parent, Find(root_, parent_path));
    SHERD_ASSIGN_OR_RETURN(const internal::ModuleContents contents,
                           internal::ContentsOf(*parent));
    const std::shared_ptr<Module> child = contents.FindChild(name);
    if (child == nullptr) return internal::NoAttribute(*parent, path, name);
    SHERD_ASSIGN_OR_RETURN(std::shared_ptr<Module> result,
                           sharder.Shard(child));
    if (result == nullptr) {
      return absl::InvalidArgumentError("Shard returned no module");
    }
    SHERD_RETURN_IF_ERROR(
        internal::ReplaceChild(*parent, name, std::move(result)));
    // The tree is another one, and may be none: a module may be in itself.
    absl::StatusOr<TensorHolders> holders = TensorHolders::Find(root_);
    SHERD_RETURN_IF_ERROR(holders.status());
    SHERD_RETURN_IF_ERROR(holders_->CheckTies(root_));
    holders_ = std::move(holders);
    return absl::OkStatus();
  }

  absl::Status AddHooks() {
    for (const OutputPlanEntry& entry : plan_.output_plan) {
      SHERD_ASSIGN_OR_RETURN(Module * module, Find(root_, entry.path));
      SHERD_RETURN_IF_ERROR(ReshardOutput(*module, entry.spec));
    }
    for (const std::string& path : plan_.return_local_tensor) {
      SHERD_ASSIGN_OR_RETURN(Module * module, Find(root_, path));
      CollectLocalShard(*module);
    }
    return absl::OkStatus();
  }

  Module& root_;
  const ShardingPlan& plan_;
  const int src_rank_;
  const std::shared_ptr<ProcessGroup> group_;
  ShardingTransaction transaction_;
  absl::StatusOr<TensorHolders> holders_;
  // Paths of members that hold what was sharded.
  absl::flat_hash_set<std::string> sharded_;
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
