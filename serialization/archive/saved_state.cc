#include "sherd/serialization/archive/saved_state.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {
namespace {

// A map or list whose values are not all there yet.
struct Open {
  SavedItems items;
  std::string key;
  StateDict map;
  StateList list;
};

absl::Status Add(std::string key, StateValue value, Open& open) {
  --open.items.count;
  if (open.items.is_map) {
    return open.map.Set(StateDict::EscapeKey(key), std::move(value));
  }
  open.list.push_back(std::move(value));
  return absl::OkStatus();
}

StateValue Close(Open& open) {
  if (open.items.is_map) return std::move(open.map);
  return std::move(open.list);
}

// Appends values with all that is in them.
class Flattener {
 public:
  using Save =
      absl::FunctionRef<absl::StatusOr<SavedContents>(const StateValue&)>;

  explicit Flattener(Save save) : save_(save) {}

  absl::Status AddMap(const std::string& key, const StateDict& map) {
    values_.push_back({key, SavedItems{true, map.size()}});
    for (const StateEntry& entry : map) {
      SHERD_RETURN_IF_ERROR(Add(entry.name, entry.value));
    }
    return absl::OkStatus();
  }

  std::vector<SavedValue> Take() { return std::move(values_); }

 private:
  absl::Status AddList(const std::string& key, const StateList& list) {
    values_.push_back(
        {key, SavedItems{false, static_cast<int64_t>(list.size())}});
    for (const StateValue& value : list) SHERD_RETURN_IF_ERROR(Add("", value));
    return absl::OkStatus();
  }

  absl::Status Add(const std::string& key, const StateValue& value) {
    if (const auto* map = value.get_if<StateDict>()) return AddMap(key, *map);
    if (const auto* list = value.get_if<StateList>()) {
      return AddList(key, *list);
    }
    const size_t index = values_.size();
    values_.push_back({key, StateValue()});
    if (value.kind() != StateKind::kTensor &&
        value.kind() != StateKind::kShardedTensor) {
      values_[index].value = value;
      return absl::OkStatus();
    }
    absl::StatusOr<SavedContents> saved = save_(value);
    if (!saved.ok()) return Annotate(saved.status(), NameOf(values_, index));
    values_[index].value = *std::move(saved);
    return absl::OkStatus();
  }

  const Save save_;
  std::vector<SavedValue> values_;
};

}  // namespace

absl::StatusOr<std::vector<SavedValue>> FlattenState(
    const StateDict& state,
    absl::FunctionRef<absl::StatusOr<SavedContents>(const StateValue&)> save) {
  Flattener flattener(save);
  SHERD_RETURN_IF_ERROR(flattener.AddMap("", state));
  return flattener.Take();
}

size_t EndOf(const SavedState& state, size_t index) {
  int64_t open = 1;
  while (open > 0) {
    const SavedItems* const items = state.values[index].items();
    open += items == nullptr ? -1 : items->count - 1;
    ++index;
  }
  return index;
}

std::string NameOf(absl::Span<const SavedValue> values, size_t index) {
  struct Level {
    bool is_map = false;
    int64_t count = 0;
    int64_t next = 0;
  };
  std::vector<Level> levels;
  std::vector<std::string> parts;
  for (size_t i = 0; i <= index; ++i) {
    while (!levels.empty() && levels.back().next == levels.back().count) {
      levels.pop_back();
      parts.pop_back();
    }
    if (!levels.empty()) {
      Level& level = levels.back();
      parts.back() = level.is_map
                         ? absl::StrCat(levels.size() > 1 ? "." : "",
                                        StateDict::EscapeKey(values[i].key))
                         : absl::StrCat("[", level.next, "]");
      ++level.next;
    }
    const SavedItems* const items = values[i].items();
    if (items == nullptr || i == index) continue;
    levels.push_back({items->is_map, items->count, 0});
    parts.emplace_back();
  }
  std::string name;
  for (const std::string& part : parts) name += part;
  return Quoted(name);
}

absl::StatusOr<StateValue> BuildValue(
    const SavedState& state, size_t index,
    absl::FunctionRef<absl::StatusOr<StateValue>(size_t index)> load) {
  std::vector<Open> open;
  for (size_t i = index;; ++i) {
    const SavedValue& saved = state.values[i];
    std::string key = saved.key;
    StateValue value;
    if (const SavedItems* const items = saved.items()) {
      open.push_back({*items, std::move(key)});
      if (items->count > 0) continue;
      key = std::move(open.back().key);
      value = Close(open.back());
      open.pop_back();
    } else if (const auto* scalar = std::get_if<StateValue>(&saved.value)) {
      value = *scalar;
    } else {
      SHERD_ASSIGN_OR_RETURN(value, load(i));
    }
    while (!open.empty()) {
      // NOLINTNEXTLINE(bugprone-use-after-move): both are set again below.
      SHERD_RETURN_IF_ERROR(Add(std::move(key), std::move(value), open.back()));
      if (open.back().items.count > 0) break;
      key = std::move(open.back().key);
      value = Close(open.back());
      open.pop_back();
    }
    if (open.empty()) return value;
  }
}

}  // namespace sherd::internal
