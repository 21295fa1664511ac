#include "sherd/serialization/checkpoint/state/state_match.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/state/state_name.h"
#include "sherd/serialization/checkpoint/state/state_blob.h"

namespace sherd {
namespace {

bool IsTensor(const StateValue& value) {
  return value.kind() == StateKind::kTensor ||
         value.kind() == StateKind::kShardedTensor;
}

bool HasTensor(const StateValue& value) {
  if (const auto* list = value.get_if<StateList>()) {
    return std::any_of(list->begin(), list->end(), HasTensor);
  }
  if (const auto* map = value.get_if<StateDict>()) {
    return std::any_of(map->begin(), map->end(), [](const StateEntry& entry) {
      return HasTensor(entry.value);
    });
  }
  return IsTensor(value);
}

// What a load replaces as a whole: lists without tensors, whose length may
// differ, empty maps, and values that are none of both.
void ListDestinations(const std::string& name, const StateValue& value,
                      std::vector<StateEntry>& destinations) {
  const auto* list = value.get_if<StateList>();
  const auto* map = value.get_if<StateDict>();
  if (list != nullptr && HasTensor(value)) {
    for (size_t i = 0; i < list->size(); ++i) {
      std::string item = name;
      internal::AppendPosition(static_cast<int64_t>(i), item);
      ListDestinations(item, (*list)[i], destinations);
    }
  } else if (map != nullptr && !map->empty()) {
    for (const StateEntry& entry : *map) {
      std::string below = name;
      internal::AppendKey(entry.name, below);
      ListDestinations(below, entry.value, destinations);
    }
  } else {
    destinations.push_back({name, value});
  }
}

// The value without its tensors: in maps they are left out, in lists none
// stands for them.
StateValue WithoutTensors(const StateValue& value) {
  if (IsTensor(value)) return StateValue();
  if (const auto* list = value.get_if<StateList>()) {
    StateList result;
    for (const StateValue& item : *list) result.push_back(WithoutTensors(item));
    return result;
  }
  const auto* map = value.get_if<StateDict>();
  if (map == nullptr) return value;
  StateDict result;
  for (const StateEntry& entry : *map) {
    if (IsTensor(entry.value)) continue;
    SHERD_CHECK(
        result
            .Set(StateDict::EscapeKey(entry.name), WithoutTensors(entry.value))
            .ok());
  }
  return result;
}

class Matcher {
 public:
  Matcher(const SavedTrees& saved, const LoadOptions& options,
          const ProcessGroup& group)
      : saved_(saved), options_(options), group_(group), all_(saved.shared) {}

  absl::StatusOr<StateMatch> Match(const StateDict& state) {
    for (StateEntry& entry : saved_.own.Flatten()) {
      SHERD_RETURN_IF_ERROR(all_.Set(entry.name, std::move(entry.value)));
    }
    if (state.empty()) {
      const StateValue values = WithoutTensors(all_);
      for (const StateEntry& entry : *values.get_if<StateDict>()) {
        const std::string name = StateDict::EscapeKey(entry.name);
        match_.values.push_back({name, entry.value});
        taken_.insert(name);
      }
    }
    std::vector<StateEntry> destinations;
    if (!state.empty()) ListDestinations("", state, destinations);
    for (const StateEntry& entry : destinations) {
      SHERD_RETURN_IF_ERROR(IsTensor(entry.value) ? MatchTensor(entry)
                                                  : MatchValue(entry));
    }
    if (options_.report != nullptr) ListUnexpected();
    return std::move(match_);
  }

 private:
  std::string SavedName(const std::string& name) const {
    for (const RenameRule& rule : options_.rename) {
      if (absl::StartsWith(name, rule.loaded)) {
        return absl::StrCat(rule.saved, name.substr(rule.loaded.size()));
      }
    }
    return name;
  }

  absl::Status MatchTensor(const StateEntry& entry) {
    StateTensor tensor = {.name = entry.name};
    if (const auto* plain = entry.value.get_if<Tensor>()) {
      tensor.value = *plain;
    } else {
      tensor.value = *entry.value.get_if<ShardedTensor>();
    }
    SHERD_RETURN_IF_ERROR(CheckStateTensor(tensor, group_));
    const std::string saved_name = SavedName(entry.name);
    const auto saved = all_.Find(saved_name);
    if (saved.ok() && !IsTensor(**saved)) {
      return Mismatch(entry.name, saved_name, **saved, "a tensor");
    }
    if (saved_.own.Contains(saved_name)) {
      tensor.name = saved_name;
      tensor.per_rank = true;
      if (!own_.insert(saved_name).second) {
        return absl::InvalidArgumentError(
            absl::StrCat(Quoted(saved_name),
                         " is this rank's own in the checkpoint, and "
                         "two destinations get it: expected one"));
      }
    }
    match_.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  absl::Status MatchValue(const StateEntry& entry) {
    const std::string saved_name = SavedName(entry.name);
    const auto saved = all_.Find(saved_name);
    if (!saved.ok()) return Missing(entry.name, saved_name);
    if (IsTensor(**saved)) {
      return Mismatch(entry.name, saved_name, **saved,
                      StateConflict::Describe(entry.value));
    }
    match_.values.push_back({entry.name, WithoutTensors(**saved)});
    taken_.insert(saved_name);
    return absl::OkStatus();
  }

  absl::Status Missing(const std::string& name, const std::string& saved_name) {
    if (!options_.strict) {
      match_.report.missing.push_back(name);
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "the checkpoint has no value ", Quoted(saved_name),
        saved_.is_state ? ""
                        : ": it was saved from a map of tensors, which has "
                          "no other values",
        saved_.is_state && group_.rank() >= saved_.world_size
            ? absl::StrCat(": ", saved_.world_size,
                           " ranks saved it, with values of their own, and "
                           "this is rank ",
                           group_.rank())
            : ""));
  }

  absl::Status Mismatch(const std::string& name, const std::string& saved_name,
                        const StateValue& saved,
                        const std::string& destination) {
    const std::string reason = absl::StrCat(
        "the checkpoint has ", Quoted(saved_name), " as ",
        IsTensor(saved) ? "a tensor" : StateConflict::Describe(saved),
        ", but the destination ", Quoted(name), " is ", destination);
    if (options_.strict) return absl::InvalidArgumentError(reason);
    match_.report.mismatched.push_back({name, reason});
    taken_.insert(saved_name);
    return absl::OkStatus();
  }

  // A name is taken with all that is below it.
  bool IsTaken(const std::string& name) const {
    for (size_t i = 1; i <= name.size(); ++i) {
      const bool is_end = i == name.size() || name[i] == '.' || name[i] == '[';
      if (is_end && taken_.contains(name.substr(0, i))) return true;
    }
    return false;
  }

  void ListUnexpected() {
    for (const StateEntry& entry : all_.Flatten()) {
      if (IsTensor(entry.value) || IsTaken(entry.name)) continue;
      match_.report.unexpected.push_back(
          saved_.own.Contains(entry.name)
              ? RankTensorName(group_.rank(), entry.name)
              : entry.name);
    }
  }

  const SavedTrees& saved_;
  const LoadOptions& options_;
  const ProcessGroup& group_;
  // What ranks share, and what is this rank's own.
  StateDict all_;
  StateMatch match_;
  // Names in the checkpoint.
  absl::flat_hash_set<std::string> taken_;
  absl::flat_hash_set<std::string> own_;
};

}  // namespace

absl::StatusOr<StateMatch> MatchState(const StateDict& state,
                                      const SavedTrees& saved,
                                      const LoadOptions& options,
                                      const ProcessGroup& group) {
  return Matcher(saved, options, group).Match(state);
}

}  // namespace sherd
