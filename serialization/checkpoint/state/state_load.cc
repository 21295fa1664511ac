#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/init.h"
#include "sherd/serialization/archive/state_codec.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/load/load_tensors.h"
#include "sherd/serialization/checkpoint/load/loader.h"
#include "sherd/serialization/checkpoint/state/state_blob.h"
#include "sherd/serialization/checkpoint/state/state_exchange.h"
#include "sherd/serialization/checkpoint/state/state_match.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/checkpoint_reader.h"

namespace sherd {
namespace {

// One rank's part of one attempt to load a state.
class StateLoader {
 public:
  StateLoader(const std::string& path, const StateDict& state,
              const std::shared_ptr<ProcessGroup>& group,
              const LoadOptions& options)
      : path_(path),
        label_(Loader::LabelOf(path)),
        operation_(Loader::kOperation, label_),
        state_(state),
        group_(group),
        options_(options),
        files_(options.files != nullptr ? *options.files : CheckpointFiles()) {}

  // Collective.
  absl::Status Run() { return InOperation(operation_, Load(), group_->name()); }

  // After success: whether what was loaded is of one save.
  bool is_whole() const { return save_id_ == loaded_save_id_; }
  const StateMatch& match() const { return match_; }

  // After an error that all ranks have: whether a rank sees a checkpoint.
  // Collective.
  absl::StatusOr<bool> AnyFinds() const {
    SHERD_ASSIGN_OR_RETURN(const uint64_t found,
                           AgreeOnMaximum(*group_, operation_, absl::OkStatus(),
                                          {}, save_id_.empty() ? 0 : 1,
                                          {.timeout = options_.timeout}));
    return found != 0;
  }
  const OperationLabel& operation() const { return operation_; }

 private:
  absl::Status Load();
  // What needs no other rank: the trees, and what they have for this state.
  absl::StatusOr<LocalState> Prepare(LongStep& step);
  uint64_t FingerprintOfCall() const;
  std::string DescribeCall() const;
  // Brings the reports of all ranks together.
  absl::Status MergeReports(LoadReport tensors);

  const std::string& path_;
  const std::string label_;
  const OperationLabel operation_;
  const StateDict& state_;
  const std::shared_ptr<ProcessGroup>& group_;
  const LoadOptions& options_;
  FileSystem& files_;
  std::string save_id_;
  std::string loaded_save_id_;
  StateMatch match_;
};

absl::StatusOr<LocalState> StateLoader::Prepare(LongStep& step) {
  SHERD_ASSIGN_OR_RETURN(const CheckpointReader reader,
                         CheckpointReader::Open(path_, files_));
  save_id_ = reader.manifest().summary().save_id;
  SHERD_RETURN_IF_ERROR(step.MadeProgress());
  int64_t memory = 0;
  SHERD_ASSIGN_OR_RETURN(
      std::optional<StateDict> shared,
      ReadSharedTree(
          reader, [&] { return step.MadeProgress(); }, memory));
  SavedTrees saved = {.is_state = shared.has_value(),
                      .shared = std::move(shared).value_or(StateDict()),
                      .world_size = reader.manifest().summary().world_size};
  SHERD_ASSIGN_OR_RETURN(saved.own,
                         ReadRankTree(reader, group_->rank(), memory));
  SHERD_ASSIGN_OR_RETURN(match_, MatchState(state_, saved, options_, *group_));
  LocalState local;
  local.tensors = match_.tensors;
  SHERD_ASSIGN_OR_RETURN(local.structure,
                         FingerprintOf(local.tensors, *group_));
  return local;
}

uint64_t StateLoader::FingerprintOfCall() const {
  Fingerprint fingerprint;
  fingerprint.Add(path_)
      .Add(save_id_)
      .Add(options_.strict ? 1 : 0)
      .Add(options_.report != nullptr ? 1 : 0);
  return fingerprint.value();
}

std::string StateLoader::DescribeCall() const {
  return absl::StrCat("path ", PrintableLine(path_), "\nstrict ",
                      options_.strict ? "true" : "false", "\nreport ",
                      options_.report != nullptr ? "wanted" : "not wanted",
                      "\nsave ", save_id_, "\n");
}

absl::Status StateLoader::Load() {
  LongStep step(*group_, operation_,
                {.timeout = options_.timeout, .note_bytes = sizeof(StateNote)});
  absl::StatusOr<LocalState> prepared = Prepare(step);
  const LocalState local = prepared.ok() ? std::move(*prepared) : LocalState();
  StateExchange exchange(group_, operation_, local, options_.timeout);
  SHERD_RETURN_IF_ERROR(
      exchange.Agree(step, prepared.status(),
                     {FingerprintOfCall(), [this] { return DescribeCall(); }}));
  const std::map<std::string, ShardedTensor> tensors = exchange.Tensors();
  std::vector<absl::string_view> names;
  std::vector<const ShardedTensor*> destinations;
  for (const auto& [name, tensor] : tensors) {
    names.push_back(name);
    destinations.push_back(&tensor);
  }
  LoadReport report;
  LoadOptions options = options_;
  if (options.report != nullptr) options.report = &report;
  // Names of ranks are those in the checkpoint.
  options.rename.insert(options.rename.begin(),
                        {kRankTensorPrefix, kRankTensorPrefix});
  SHERD_ASSIGN_OR_RETURN(
      LoadedTensors loaded,
      LoadTensors(path_, names, {.given = destinations}, group_, options));
  loaded_save_id_ = std::move(loaded.save_id);
  return options_.report != nullptr ? MergeReports(std::move(report))
                                    : absl::OkStatus();
}

// A name of a destination in a report of tensors.
std::string NameInState(const std::string& name) {
  if (!absl::StartsWith(name, kRankTensorPrefix)) return name;
  return name.substr(name.find('.', sizeof(kRankTensorPrefix) - 1) + 1);
}

void AddNames(const std::vector<std::string>& from,
              std::vector<std::string>& to) {
  to.insert(to.end(), from.begin(), from.end());
  std::sort(to.begin(), to.end());
  to.erase(std::unique(to.begin(), to.end()), to.end());
}

// A report as a tree, and the inverse.
StateList ToList(const std::vector<std::string>& names) {
  return StateList(names.begin(), names.end());
}

std::vector<std::string> FromList(const StateDict& tree, const char* key) {
  std::vector<std::string> names;
  for (const StateValue& name :
       tree.Get<StateList>(key).value_or(StateList())) {
    names.push_back(*name.get_if<std::string>());
  }
  return names;
}

absl::StatusOr<std::string> EncodeReport(const LoadReport& report) {
  StateDict tree;
  StateList names, reasons;
  for (const LoadReport::Mismatch& mismatch : report.mismatched) {
    names.push_back(mismatch.name);
    reasons.push_back(mismatch.reason);
  }
  SHERD_RETURN_IF_ERROR(tree.Set("missing", ToList(report.missing)));
  SHERD_RETURN_IF_ERROR(tree.Set("unexpected", ToList(report.unexpected)));
  SHERD_RETURN_IF_ERROR(tree.Set("mismatched", std::move(names)));
  SHERD_RETURN_IF_ERROR(tree.Set("reasons", std::move(reasons)));
  SHERD_ASSIGN_OR_RETURN(const auto values, StateTreeOf(tree));
  return internal::EncodeTree(values);
}

absl::Status StateLoader::MergeReports(LoadReport tensors) {
  absl::StatusOr<std::string> own = EncodeReport(match_.report);
  SHERD_ASSIGN_OR_RETURN(
      const std::vector<std::string> gathered,
      GatherFromAll(*group_, operation_, own, options_.timeout));
  LoadReport& report = match_.report;
  report = std::move(tensors);
  for (std::string& name : report.missing) name = NameInState(name);
  std::map<std::string, std::string> reasons;
  for (auto& mismatch : report.mismatched) {
    reasons.emplace(NameInState(mismatch.name), std::move(mismatch.reason));
  }
  // What some rank has a place for is expected.
  std::map<std::string, int> unexpected;
  for (const std::string& bytes : gathered) {
    int64_t memory = 0;
    SHERD_ASSIGN_OR_RETURN(const StateDict tree,
                           DecodeStateTree(bytes, memory));
    AddNames(FromList(tree, "missing"), report.missing);
    const std::vector<std::string> names = FromList(tree, "mismatched");
    const std::vector<std::string> why = FromList(tree, "reasons");
    for (size_t i = 0; i < names.size(); ++i) reasons.emplace(names[i], why[i]);
    for (const std::string& name : FromList(tree, "unexpected")) {
      ++unexpected[name];
    }
  }
  report.mismatched.clear();
  for (auto& [name, reason] : reasons) {
    report.mismatched.push_back({name, std::move(reason)});
  }
  std::vector<std::string> nowhere;
  for (const auto& [name, ranks] : unexpected) {
    if (absl::StartsWith(name, kRankTensorPrefix) || ranks == group_->size()) {
      nowhere.push_back(name);
    }
  }
  AddNames(nowhere, report.unexpected);
  return absl::OkStatus();
}

// Of a load that failed on all ranks, twice.
absl::Status Explain(const StateLoader& loader, absl::Status status,
                     const ProcessGroup& group) {
  if (!absl::IsNotFound(status) || !group.health().ok()) return status;
  const absl::StatusOr<bool> found = loader.AnyFinds();
  if (!found.ok()) {
    return InOperation(loader.operation(), found.status(), group.name());
  }
  return *found ? FoundElsewhere(status) : status;
}

absl::Status SetValues(const StateMatch& match, StateDict& state) {
  for (const StateEntry& entry : match.values) {
    SHERD_RETURN_IF_ERROR(state.Set(entry.name, entry.value));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadCheckpointInto(const std::string& path, StateDict& state,
                                std::shared_ptr<ProcessGroup> group,
                                const LoadOptions& options) {
  if (group == nullptr) {
    SHERD_ASSIGN_OR_RETURN(group, DefaultGroup());
  }
  // A save may replace the checkpoint after its trees were read, or after some
  // ranks have read it; all ranks know, and start over.
  constexpr int kAttempts = 3;
  for (int attempt = 1;; ++attempt) {
    StateLoader loader(path, state, group, options);
    const absl::Status status = loader.Run();
    if (status.ok() && loader.is_whole()) {
      if (options.report != nullptr) *options.report = loader.match().report;
      return SetValues(loader.match(), state);
    }
    const bool may_be_replaced = status.ok() || absl::IsNotFound(status) ||
                                 absl::IsDataLoss(status) ||
                                 absl::IsInvalidArgument(status);
    if (may_be_replaced && group->health().ok() &&
        attempt < (status.ok() ? kAttempts : 2)) {
      continue;
    }
    if (!status.ok()) return Explain(loader, status, *group);
    return InOperation(loader.operation(),
                       absl::AbortedError(absl::StrCat(
                           "saves replaced the checkpoint ", kAttempts,
                           " times while it was loaded; load it between them")),
                       group->name());
  }
}

}  // namespace sherd
