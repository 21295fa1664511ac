#include "sherd/serialization/archive/saved_state.h"

#include <utility>

#include "absl/strings/str_cat.h"
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

}  // namespace

size_t EndOf(const SavedState& state, size_t index) {
  int64_t open = 1;
  while (open > 0) {
    const SavedItems* const items = state.values[index].items();
    open += items == nullptr ? -1 : items->count - 1;
    ++index;
  }
  return index;
}

std::string NameOf(const SavedState& state, size_t index) {
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
      parts.back() =
          level.is_map ? absl::StrCat(levels.size() > 1 ? "." : "",
                                      StateDict::EscapeKey(state.values[i].key))
                       : absl::StrCat("[", level.next, "]");
      ++level.next;
    }
    const SavedItems* const items = state.values[i].items();
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
