#include "sherd/core/nn/lookup/own_ops.h"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/nn/lookup/lookup_place.h"
#include "sherd/core/nn/lookup/lookup_plan.h"
#include "sherd/core/sharding/sharded_op_registry.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"

namespace sherd::internal {
namespace {

bool HasOwnOp(const TableLookUp& lookup) {
  const auto* const table = std::get_if<ShardedTensor>(&lookup.table);
  return table != nullptr && table->defined() &&
         FindShardedOp(typeid(LookUpOp), LookUpOp::kName, *table->spec()).ok();
}

bool IsShared(const TableLookUp& lookup) {
  const auto* const table = std::get_if<ShardedTensor>(&lookup.table);
  return table != nullptr && table->defined() && table->group() != nullptr;
}

// One call.
class OwnOpsCall {
 public:
  OwnOpsCall(ProcessGroup* group, absl::Span<const TableLookUp> lookups,
             absl::Span<Tensor> outputs, const LookUpOptions& options,
             TableNumbers numbers)
      : group_(group),
        lookups_(lookups),
        outputs_(outputs),
        options_(options),
        numbers_(numbers),
        results_(lookups.size()) {
    for (size_t t = 0; t < lookups.size(); ++t) {
      (HasOwnOp(lookups[t]) ? own_ : others_).push_back(t);
    }
    collective_.timeout = options.timeout;
  }

  absl::Status Run(const absl::Status& local, LookUpFunction look_up) {
    if (own_.empty()) {
      return look_up(local, lookups_, outputs_, options_, numbers_);
    }
    SHERD_RETURN_IF_ERROR(LookUpOthers(local, look_up));
    absl::Status status;
    for (const size_t t : others_) {
      status.Update(OfTable(t, CheckFit(t), numbers_));
    }
    for (const size_t t : own_) {
      // Even after an error: the operation may be collective.
      status.Update(OfTable(t, CallOwn(t), numbers_));
      if (status.ok()) status = OfTable(t, CheckFit(t), numbers_);
      SHERD_RETURN_IF_ERROR(Agree(status));
    }
    for (size_t t = 0; t < results_.size(); ++t) {
      if (!outputs_[t].defined()) {
        outputs_[t] = std::move(results_[t]);
      } else {
        SHERD_RETURN_IF_ERROR(outputs_[t].CopyFrom(results_[t]));
      }
    }
    if (options_.stats != nullptr) *options_.stats = stats_;
    return absl::OkStatus();
  }

 private:
  // Into new tensors: an operation may fail afterwards.
  absl::Status LookUpOthers(const absl::Status& local, LookUpFunction look_up) {
    std::vector<TableLookUp> lookups;
    std::vector<size_t> numbers;
    bool shared = false;
    for (const size_t t : others_) {
      shared = shared || IsShared(lookups_[t]);
      lookups.push_back(lookups_[t]);
      numbers.push_back(numbers_.empty() ? t : numbers_[t]);
    }
    std::vector<Tensor> results(lookups.size());
    LookUpOptions options = options_;
    options.stats = &stats_;
    absl::Status status =
        look_up(local, lookups, absl::MakeSpan(results), options, numbers);
    // With a shared table this was a collective call, and is agreed on.
    if (!shared) status = Agree(status);
    SHERD_RETURN_IF_ERROR(status);
    for (size_t i = 0; i < others_.size(); ++i) {
      results_[others_[i]] = std::move(results[i]);
    }
    return absl::OkStatus();
  }

  absl::Status CallOwn(size_t t) {
    SHERD_ASSIGN_OR_RETURN(
        results_[t],
        CallShardedOp<LookUpOp>(std::get<ShardedTensor>(lookups_[t].table),
                                lookups_[t].bags, lookups_[t].options));
    if (results_[t].defined()) return absl::OkStatus();
    return absl::InvalidArgumentError("the operation returned no Tensor");
  }

  // Whether the result can be copied into an output that was given.
  absl::Status CheckFit(size_t t) const {
    const Tensor& result = results_[t];
    return CheckOutput(outputs_[t], result.sizes(), result.dtype(),
                       result.device());
  }

  absl::Status Agree(const absl::Status& local) const {
    if (group_ == nullptr) return local;
    std::string text = absl::StrCat(lookups_.size(), " tables\n");
    for (const size_t t : own_) {
      absl::StrAppend(&text, TableName(t, numbers_),
                      " with an operation of its own\n");
    }
    return sherd::Agree(
        *group_, LookUpOp::kName, local,
        {Fingerprint().Add(text).value(), [&text] { return text; }},
        collective_);
  }

  ProcessGroup* const group_;
  const absl::Span<const TableLookUp> lookups_;
  const absl::Span<Tensor> outputs_;
  const LookUpOptions& options_;
  const TableNumbers numbers_;
  CollectiveOptions collective_;
  // Positions of tables.
  std::vector<size_t> own_;
  std::vector<size_t> others_;
  std::vector<Tensor> results_;
  LookUpStats stats_;
};

}  // namespace

absl::Status LookUpWithOwnOps(const absl::Status& local, ProcessGroup* group,
                              absl::Span<const TableLookUp> lookups,
                              absl::Span<Tensor> outputs,
                              const LookUpOptions& options,
                              TableNumbers numbers, LookUpFunction look_up) {
  if (group != nullptr) {
    SHERD_RETURN_IF_ERROR(CheckMember(*group, LookUpOp::kName));
  }
  return OwnOpsCall(group, lookups, outputs, options, numbers)
      .Run(local, look_up);
}

}  // namespace sherd::internal
