#include "sherd/core/sharding/state_dict.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/state/state_name.h"

namespace sherd {
namespace {

using internal::JoinStateName;
using internal::NamePart;

using Parts = absl::Span<const NamePart>;

// "integer 3", "Tensor(…)".
std::string Describe(const StateValue& value) {
  const bool is_scalar =
      value.kind() >= StateKind::kBool && value.kind() <= StateKind::kString;
  return is_scalar ? absl::StrCat(Name(value.kind()), " ", value.ToString())
                   : value.ToString();
}

// The value at `parts` is a map or list if the next part of the name is a key
// or a position.
absl::Status CheckContainer(absl::string_view name, Parts parts,
                            const StateValue& value, const NamePart& next) {
  const StateKind expected = next.is_key() ? StateKind::kMap : StateKind::kList;
  if (value.kind() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(name), ": expected a ", Name(expected), " at ",
                   JoinStateName(parts), ", found ", Describe(value)));
}

absl::Status NoKey(absl::string_view name, Parts parent, absl::string_view key,
                   const StateDict& map) {
  constexpr int kFew = 5;
  std::string keys;
  int64_t shown = 0;
  for (const StateEntry& entry : map) {
    if (shown++ == kFew) break;
    absl::StrAppend(&keys, keys.empty() ? "" : ", ", Quoted(entry.name));
  }
  if (map.size() > kFew) {
    absl::StrAppend(&keys, ", … (", map.size(), " in all)");
  }
  return absl::NotFoundError(absl::StrCat(
      Quoted(name), ": there is no key ", Quoted(key), " in ",
      JoinStateName(parent), ", which has ", keys.empty() ? "none" : keys));
}

absl::Status NoItem(absl::string_view name, Parts list, int64_t position,
                    size_t size) {
  return absl::OutOfRangeError(
      absl::StrCat(Quoted(name), ": there is no item ", position, " in ",
                   JoinStateName(list), ", which has ", size));
}

absl::Status TooDeep(absl::string_view name) {
  return absl::InvalidArgumentError(absl::StrCat(
      Quoted(name), ": expected at most ", StateDict::kMaxDepth,
      " keys and positions to each value in it; its maps and lists are nested "
      "deeper"));
}

// The elements after `part` do not exist yet, and so have no items; the list
// in which `part` is a position has `size`.
absl::Status CheckPositions(absl::string_view name, Parts path, size_t part,
                            size_t size) {
  for (size_t i = part; i < path.size(); ++i) {
    if (path[i].position > static_cast<int64_t>(size)) {
      return NoItem(name, path.first(i), path[i].position, size);
    }
    size = 0;
  }
  return absl::OkStatus();
}

void FlattenInto(const std::string& name, const StateValue& value,
                 std::vector<StateEntry>& entries) {
  const StateList* list = value.get_if<StateList>();
  const StateDict* map = value.get_if<StateDict>();
  if ((list == nullptr || list->empty()) && (map == nullptr || map->empty())) {
    entries.push_back({name, value});
    return;
  }
  if (list != nullptr) {
    for (size_t i = 0; i < list->size(); ++i) {
      std::string item = name;
      internal::AppendPosition(static_cast<int64_t>(i), item);
      FlattenInto(item, (*list)[i], entries);
    }
    return;
  }
  for (const StateEntry& entry : *map) {
    std::string of_entry = name;
    internal::AppendKey(entry.name, of_entry);
    FlattenInto(of_entry, entry.value, entries);
  }
}

bool SameElements(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined() || a.dtype() != b.dtype() ||
      a.sizes() != b.sizes() || a.device().is_meta() != b.device().is_meta()) {
    return false;
  }
  return !a.defined() || a.device().is_meta() || a.BitwiseEqual(b);
}

bool SameShards(const ShardedTensor& a, const ShardedTensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.metadata() == b.metadata() &&
         std::equal(a.local_shards().begin(), a.local_shards().end(),
                    b.local_shards().begin(), b.local_shards().end(),
                    [](const Shard& x, const Shard& y) {
                      return x.metadata == y.metadata &&
                             SameElements(x.tensor, y.tensor);
                    });
}

template <typename T>
bool Same(const StateValue& a, const StateValue& b) {
  const T* x = a.get_if<T>();
  const T* y = b.get_if<T>();
  if (x == nullptr || y == nullptr) return x == y;
  if constexpr (std::same_as<T, double>) {
    return std::bit_cast<uint64_t>(*x) == std::bit_cast<uint64_t>(*y);
  } else if constexpr (std::same_as<T, Tensor>) {
    return SameElements(*x, *y);
  } else if constexpr (std::same_as<T, ShardedTensor>) {
    return SameShards(*x, *y);
  } else {
    return *x == *y;
  }
}

// Of two results of Flatten, whose maps and lists are empty.
bool SameLeaf(const StateValue& a, const StateValue& b) {
  return a.kind() == b.kind() && Same<bool>(a, b) && Same<int64_t>(a, b) &&
         Same<double>(a, b) && Same<std::string>(a, b) &&
         Same<StateBytes>(a, b) && Same<Tensor>(a, b) &&
         Same<ShardedTensor>(a, b);
}

// How two leaves of one name differ, or two names at one place.
std::string Contrast(const StateEntry& a, const StateEntry& b) {
  if (a.name != b.name) {
    return absl::StrCat("the first has ", Quoted(a.name),
                        " where the second has ", Quoted(b.name));
  }
  const std::string first = Describe(a.value);
  const std::string second = Describe(b.value);
  return first == second
             ? absl::StrCat(Quoted(a.name), ": ", first, " of other contents")
             : absl::StrCat(Quoted(a.name), ": ", first, " and ", second);
}

}  // namespace

namespace internal {

absl::Status WrongStateKind(absl::string_view name, StateKind expected,
                            const StateValue& found) {
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(name), ": expected a value of the kind ",
                   Name(expected), ", found ", Describe(found)));
}

}  // namespace internal

StateDict::StateDict() = default;
StateDict::StateDict(const StateDict&) = default;
StateDict::StateDict(StateDict&&) noexcept = default;
StateDict& StateDict::operator=(const StateDict&) = default;
StateDict& StateDict::operator=(StateDict&&) noexcept = default;
StateDict::~StateDict() = default;

int64_t StateDict::size() const {
  return static_cast<int64_t>(entries_.size());
}
const StateEntry* StateDict::begin() const { return entries_.data(); }
const StateEntry* StateDict::end() const {
  return entries_.data() + entries_.size();
}

std::string StateDict::EscapeKey(absl::string_view key) {
  std::string name;
  internal::AppendKey(key, name);
  return name;
}

StateValue* StateDict::FindKey(absl::string_view key) {
  const auto it = index_.find(key);
  return it == index_.end() ? nullptr : &entries_[it->second].value;
}

void StateDict::Append(std::string key, StateValue value) {
  index_.emplace(key, entries_.size());
  entries_.push_back({std::move(key), std::move(value)});
}

void StateDict::EraseKey(absl::string_view key) {
  const auto it = index_.find(key);
  const size_t position = it->second;
  index_.erase(it);
  entries_.erase(entries_.begin() + static_cast<int64_t>(position));
  for (size_t i = position; i < entries_.size(); ++i) {
    index_[entries_[i].name] = i;
  }
}

absl::StatusOr<StateDict::Place> StateDict::Walk(absl::string_view name,
                                                 Parts path) {
  Place place = {.map = this};
  for (;; ++place.part) {
    const NamePart& part = path[place.part];
    if (place.value != nullptr) {
      SHERD_RETURN_IF_ERROR(
          CheckContainer(name, path.first(place.part), *place.value, part));
      place.map = std::get_if<StateDict>(&place.value->value_);
      place.list = std::get_if<StateList>(&place.value->value_);
    }
    if (place.map != nullptr) {
      place.value = place.map->FindKey(part.key);
    } else {
      const auto position = static_cast<size_t>(part.position);
      place.value =
          position < place.list->size() ? &(*place.list)[position] : nullptr;
    }
    if (place.value == nullptr || place.part + 1 == path.size()) return place;
  }
}

absl::StatusOr<StateDict::Place> StateDict::WalkToTheEnd(absl::string_view name,
                                                         Parts path) {
  SHERD_ASSIGN_OR_RETURN(const Place place, Walk(name, path));
  if (place.value != nullptr) return place;
  const Parts parent = path.first(place.part);
  if (place.map != nullptr) {
    return NoKey(name, parent, path[place.part].key, *place.map);
  }
  return NoItem(name, parent, path[place.part].position, place.list->size());
}

absl::Status StateDict::Set(absl::string_view name, StateValue value) {
  return Insert(name, std::move(value), /*replace=*/true);
}

absl::Status StateDict::Insert(absl::string_view name, StateValue value,
                               bool replace) {
  SHERD_ASSIGN_OR_RETURN(const std::vector<NamePart> path,
                         internal::ParseStateName(name));
  if (!value.IsWithin(kMaxDepth - static_cast<int>(path.size()))) {
    return TooDeep(name);
  }
  SHERD_ASSIGN_OR_RETURN(const Place place, Walk(name, path));
  if (place.value != nullptr) {
    if (!replace) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(name), ": expected each name once"));
    }
    *place.value = std::move(value);
    return absl::OkStatus();
  }
  SHERD_RETURN_IF_ERROR(CheckPositions(
      name, path, place.part, place.list == nullptr ? 0 : place.list->size()));
  value = Nested(Parts(path).subspan(place.part + 1), std::move(value));
  if (place.map != nullptr) {
    place.map->Append(path[place.part].key, std::move(value));
  } else {
    place.list->push_back(std::move(value));
  }
  return absl::OkStatus();
}

absl::StatusOr<const StateValue*> StateDict::Find(
    absl::string_view name) const {
  SHERD_ASSIGN_OR_RETURN(const std::vector<NamePart> path,
                         internal::ParseStateName(name));
  // Walking changes nothing, and the caller gets a pointer to const.
  SHERD_ASSIGN_OR_RETURN(
      const Place place,
      const_cast<StateDict*>(this)->WalkToTheEnd(name, path));
  return place.value;
}

absl::Status StateDict::Erase(absl::string_view name) {
  SHERD_ASSIGN_OR_RETURN(const std::vector<NamePart> path,
                         internal::ParseStateName(name));
  SHERD_ASSIGN_OR_RETURN(const Place place, WalkToTheEnd(name, path));
  if (place.map != nullptr) {
    place.map->EraseKey(path.back().key);
  } else {
    place.list->erase(place.list->begin() + path.back().position);
  }
  return absl::OkStatus();
}

StateValue StateDict::Nested(Parts path, StateValue value) {
  for (size_t i = path.size(); i-- > 0;) {
    StateValue outer;
    if (path[i].is_key()) {
      outer.value_.emplace<StateDict>().Append(path[i].key, std::move(value));
    } else {
      outer.value_.emplace<StateList>().push_back(std::move(value));
    }
    value = std::move(outer);
  }
  return value;
}

std::vector<StateEntry> StateDict::Flatten() const {
  std::vector<StateEntry> entries;
  for (const StateEntry& entry : entries_) {
    FlattenInto(EscapeKey(entry.name), entry.value, entries);
  }
  return entries;
}

absl::StatusOr<StateDict> StateDict::Unflatten(
    std::vector<StateEntry> entries) {
  StateDict state;
  for (StateEntry& entry : entries) {
    SHERD_RETURN_IF_ERROR(state.Insert(entry.name, std::move(entry.value),
                                       /*replace=*/false));
  }
  return state;
}

std::map<std::string, ShardedTensor> StateDict::sharded_tensors() const {
  std::map<std::string, ShardedTensor> tensors;
  for (const StateEntry& entry : Flatten()) {
    if (const auto* tensor = entry.value.get_if<ShardedTensor>()) {
      tensors.emplace(entry.name, *tensor);
    }
  }
  return tensors;
}

bool StateDict::BitwiseEqual(const StateDict& other) const {
  return Difference(other).empty();
}

std::string StateDict::Difference(const StateDict& other) const {
  const std::vector<StateEntry> a = Flatten();
  const std::vector<StateEntry> b = other.Flatten();
  const size_t both = std::min(a.size(), b.size());
  for (size_t i = 0; i < both; ++i) {
    if (a[i].name != b[i].name || !SameLeaf(a[i].value, b[i].value)) {
      return Contrast(a[i], b[i]);
    }
  }
  if (a.size() == b.size()) return "";
  return a.size() > both
             ? absl::StrCat("only the first has ", Quoted(a[both].name))
             : absl::StrCat("only the second has ", Quoted(b[both].name));
}

std::string StateDict::ToString() const {
  std::string text;
  for (const StateEntry& entry : Flatten()) {
    absl::StrAppend(&text, PrintableLine(entry.name), ": ",
                    entry.value.ToString(), "\n");
  }
  return text;
}

std::ostream& operator<<(std::ostream& out, const StateDict& state) {
  return out << state.ToString();
}

}  // namespace sherd
