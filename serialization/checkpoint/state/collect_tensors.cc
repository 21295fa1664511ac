#include "sherd/serialization/checkpoint/state/collect_tensors.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/sharding/state/state_name.h"
#include "sherd/serialization/archive/saved_state.h"
#include "sherd/serialization/archive/state_codec.h"
#include "sherd/serialization/checkpoint/save/saver.h"
#include "sherd/serialization/checkpoint/sharded_layout.h"
#include "sherd/serialization/checkpoint/state/state_blob.h"
#include "sherd/serialization/checkpoint/state/state_exchange.h"

namespace sherd {
namespace {

using internal::SavedValue;

// Moves what is below the names in `per_rank` from `shared` to `own`. Names
// above others come first: a map that came after some of its values were moved
// would take their place.
absl::Status Split(std::vector<std::string> per_rank, StateDict& shared,
                   StateDict& own) {
  // A name is shorter than those below it.
  std::sort(per_rank.begin(), per_rank.end(),
            [](const std::string& a, const std::string& b) {
              return a.size() < b.size();
            });
  for (const std::string& name : per_rank) {
    SHERD_ASSIGN_OR_RETURN(const auto parts, internal::ParseStateName(name));
    for (const internal::NamePart& part : parts) {
      if (part.is_key()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "per_rank: ", Quoted(name),
          " is in a list, expected a name that leads through maps; give that "
          "of the list"));
    }
    const auto value = shared.Find(name);
    // Other ranks may have it, or it was moved with what is above it.
    if (absl::IsNotFound(value.status())) continue;
    if (!value.ok()) return Annotate(value.status(), "per_rank");
    SHERD_RETURN_IF_ERROR(own.Set(name, **value));
    SHERD_RETURN_IF_ERROR(shared.Erase(name));
  }
  return absl::OkStatus();
}

// Adds the tensors of a tree.
absl::Status AddTensors(const std::vector<StateEntry>& entries, bool per_rank,
                        const ProcessGroup& group,
                        std::vector<StateTensor>& tensors) {
  for (const StateEntry& entry : entries) {
    StateTensor tensor = {entry.name, per_rank};
    if (const auto* plain = entry.value.get_if<Tensor>()) {
      tensor.value = *plain;
    } else if (const auto* sharded = entry.value.get_if<ShardedTensor>()) {
      tensor.value = *sharded;
    } else {
      continue;
    }
    SHERD_RETURN_IF_ERROR(CheckStateTensor(tensor, group));
    tensors.push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

// Of keys and kinds: of values, neither kind nor contents.
void AddTree(const std::vector<SavedValue>& values, Fingerprint& fingerprint) {
  for (const SavedValue& value : values) {
    fingerprint.Add(value.key);
    if (const internal::SavedItems* const items = value.items()) {
      fingerprint.Add(items->is_map ? 1 : 2).Add(items->count);
    } else {
      const bool is_tensor =
          std::holds_alternative<internal::StoredTensor>(value.value);
      fingerprint.Add(is_tensor ? 3 : 4);
    }
  }
}

absl::StatusOr<LocalState> MakeLocalState(const StateDict& state,
                                          const std::vector<std::string>& names,
                                          const ProcessGroup& group) {
  StateDict shared = state;
  StateDict own;
  SHERD_RETURN_IF_ERROR(Split(names, shared, own));
  LocalState local;
  local.entries = shared.Flatten();
  SHERD_RETURN_IF_ERROR(AddTensors(local.entries, false, group, local.tensors));
  SHERD_RETURN_IF_ERROR(AddTensors(own.Flatten(), true, group, local.tensors));
  SHERD_ASSIGN_OR_RETURN(const std::vector<SavedValue> values,
                         StateTreeOf(shared));
  SHERD_ASSIGN_OR_RETURN(local.shared, internal::EncodeTree(values));
  if (!own.empty()) {
    SHERD_ASSIGN_OR_RETURN(const std::vector<SavedValue> own_values,
                           StateTreeOf(own));
    SHERD_ASSIGN_OR_RETURN(local.own, internal::EncodeTree(own_values));
  }
  SHERD_ASSIGN_OR_RETURN(const uint64_t tensors,
                         FingerprintOf(local.tensors, group));
  Fingerprint structure;
  AddTree(values, structure);
  local.structure = structure.Add(static_cast<int64_t>(tensors)).value();
  return local;
}

// In which order they are given, and how often, makes no difference.
std::string DescribePerRank(const std::vector<std::string>& names) {
  const std::set<std::string> ordered(names.begin(), names.end());
  return absl::StrCat(
      "per_rank ",
      absl::StrJoin(ordered, ", ",
                    [](std::string* text, const std::string& name) {
                      absl::StrAppend(text, Quoted(name));
                    }),
      "\n");
}

absl::StatusOr<SaveJob> Collect(const OperationLabel& operation,
                                const std::string& path, const StateDict& state,
                                const std::shared_ptr<ProcessGroup>& group,
                                const SaveOptions& options) {
  LongStep step(*group, operation,
                {.timeout = options.timeout, .note_bytes = sizeof(StateNote)});
  absl::StatusOr<LocalState> made =
      MakeLocalState(state, options.per_rank, *group);
  const LocalState local = made.ok() ? std::move(*made) : LocalState();
  StateExchange exchange(group, operation, local, options.timeout);
  const auto describe = [&] { return DescribePerRank(options.per_rank); };
  SHERD_RETURN_IF_ERROR(exchange.Agree(
      step, made.status(), {Fingerprint().Add(describe()).value(), describe}));
  auto tensors = std::make_shared<SaveJob::Tensors>(exchange.Tensors());
  absl::Status failure = exchange.AddBlobs(*tensors);
  return SaveJob{.path = path,
                 .tensors = std::move(tensors),
                 .group = group,
                 .options = options,
                 .failure = std::move(failure)};
}

}  // namespace

absl::StatusOr<SaveJob> CollectTensors(
    const std::string& path, const StateDict& state,
    const std::shared_ptr<ProcessGroup>& group, const SaveOptions& options) {
  const std::string label = Saver::LabelOf(path);
  const OperationLabel operation(Saver::kOperation, label);
  return InOperation(operation, Collect(operation, path, state, group, options),
                     group->name());
}

absl::Status SaveCheckpoint(const std::string& path, const StateDict& state,
                            std::shared_ptr<ProcessGroup> group,
                            const SaveOptions& options) {
  if (group == nullptr) {
    SHERD_ASSIGN_OR_RETURN(group, DefaultGroup());
  }
  SHERD_ASSIGN_OR_RETURN(SaveJob job,
                         CollectTensors(path, state, group, options));
  return RunSave(std::move(job));
}

}  // namespace sherd
