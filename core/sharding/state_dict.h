#ifndef SHERD_CORE_SHARDING_STATE_DICT_H_
#define SHERD_CORE_SHARDING_STATE_DICT_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

class StateValue;
struct StateEntry;

namespace internal {
struct NamePart;
}  // namespace internal

using StateList = std::vector<StateValue>;

// Bytes without a meaning to Sherd; text is a std::string.
struct StateBytes {
  std::string data;

  friend bool operator==(const StateBytes&, const StateBytes&) = default;
};

// The kinds of values.
enum class StateKind : int32_t {
  kNone,
  kBool,
  kInteger,
  kFloat,
  kString,
  kBytes,
  kTensor,
  kShardedTensor,
  kList,
  kMap,
};

// "none", "boolean", "integer", "float", "string", "bytes", "tensor", "sharded
// tensor", "list", "map".
absl::string_view Name(StateKind kind);

// The state of a program, as of a model and its optimizer: a map from keys to
// values, which may be lists and maps in turn.
//
//     StateDict state;
//     SHERD_RETURN_IF_ERROR(state.Set("model.layer.weight", weight));
//     SHERD_RETURN_IF_ERROR(state.Set("optimizer.groups[0].lr", 0.01));
//     SHERD_ASSIGN_OR_RETURN(double lr, state.Get<double>(
//         "optimizer.groups[0].lr"));
//     std::cout << state;
//     // model.layer.weight: Tensor(float32, [4, 6], cpu)
//     // optimizer.groups[0].lr: 0.01
//
// Names. A name is a path from the map at the top: keys are joined by dots, and
// an item of a list is its position in brackets.
//
//     name = key { "." key | "[" position "]" }
//
// A key is any text that is not empty. In a name, dots, opening brackets and
// backslashes that belong to a key have a backslash before them: the value of
// the key "a.b" is `a\.b`, and `a.b` is the value of the key "b" in the map
// "a". So each value has one name, each name means one value, and the keys "0"
// and "a.b" differ from a position and from two keys. Positions are decimal,
// without leading zeros. Names are at most kMaxDepth keys and positions long,
// which bounds the nesting of every state.
//
// Order. Maps keep their keys in the order in which they were inserted.
//
// Value. A copy has maps and lists of its own; tensors and sharded tensors in
// it are handles, and share their elements.
//
// Errors. Messages begin with the name, in quotes. After an error nothing has
// changed.
//
// Threads. Like a standard container.
class StateDict {
 public:
  // Keys and positions in a name, at most.
  static constexpr int kMaxDepth = 100;

  StateDict();
  StateDict(const StateDict&);
  StateDict(StateDict&&) noexcept;
  StateDict& operator=(const StateDict&);
  StateDict& operator=(StateDict&&) noexcept;
  ~StateDict();

  // Of the map at the top: the number of its keys, and the keys, unchanged,
  // with their values.
  int64_t size() const;
  bool empty() const { return size() == 0; }
  const StateEntry* begin() const;
  const StateEntry* end() const;

  // The key as a part of a name.
  static std::string EscapeKey(absl::string_view key);

  // Sets a value, in place of the one that has this name, or else as the last
  // of its map or list. Maps and lists that the name needs are created.
  //   kInvalidArgument  The name is malformed or too long; it leads through a
  //                     value that is not a map or list, or not the one of
  //                     both that the name expects; the value is nested too
  //                     deep.
  //   kOutOfRange       A position is greater than the length of its list.
  absl::Status Set(absl::string_view name, StateValue value);

  // Removes a value; later items of its list move up.
  //
  // Errors. As Find.
  absl::Status Erase(absl::string_view name);

  bool Contains(absl::string_view name) const { return Find(name).ok(); }

  // The value, which is valid until the next change.
  //   kNotFound         There is no such key; the message lists keys that there
  //                     are.
  //   kOutOfRange       There is no such item in a list.
  //   kInvalidArgument  As Set.
  absl::StatusOr<const StateValue*> Find(absl::string_view name) const;

  // The value, of the kind that T holds: see StateType. A number is converted
  // neither from an integer nor to one.
  //   kInvalidArgument  The value is of another kind; the message has both.
  //   other             As Find.
  template <typename T>
  absl::StatusOr<T> Get(absl::string_view name) const;

  // All values that are not maps or lists, and the empty ones of these, with
  // their names, in the order of the tree.
  std::vector<StateEntry> Flatten() const;

  // The inverse, for names from any source, such as a file: the state that
  // results from setting each value in turn, which may be maps and lists
  // themselves and get further entries. Entries of a map may be apart; the
  // items of a list are in their order.
  //   kInvalidArgument  As Set, for a name that leads through another one's
  //                     value too; or a name occurs twice.
  //   kOutOfRange       As Set.
  //
  // Cost. Time and memory are linear in the bytes of the names, whatever the
  // positions in them.
  static absl::StatusOr<StateDict> Unflatten(std::vector<StateEntry> entries);

  // The sharded tensors with their names: the argument of SaveCheckpoint.
  std::map<std::string, ShardedTensor> sharded_tensors() const;

  // Whether both have the same keys in the same order, and the same values:
  // floats and elements by their bits. Tensors may be on different devices; two
  // on meta, which have no elements, are equal if dtypes and sizes are. Of
  // sharded tensors, the metadata is compared, and the shards that are here.
  // Not collective: the result may differ between ranks.
  //
  // Devices. Waits for them, as Tensor::BitwiseEqual.
  bool BitwiseEqual(const StateDict& other) const;

  // The first difference: `"step": integer 3 and integer 4`. Empty if
  // BitwiseEqual.
  std::string Difference(const StateDict& other) const;

  // A line per entry of Flatten(): its name, and the value without elements.
  std::string ToString() const;

 private:
  // Where a name leads: to a value, or, if there is none, to the map or list
  // in which its first part without a value is missing.
  struct Place {
    StateDict* map = nullptr;
    StateList* list = nullptr;
    StateValue* value = nullptr;
    // The part of the name that is a key in `map` or a position in `list`.
    size_t part = 0;
  };

  // `path` has the parts of `name`, which is for messages. The second form
  // finds a value.
  absl::StatusOr<Place> Walk(absl::string_view name,
                             absl::Span<const internal::NamePart> path);
  absl::StatusOr<Place> WalkToTheEnd(absl::string_view name,
                                     absl::Span<const internal::NamePart> path);
  // As Set. With `replace` false, kInvalidArgument if there is a value.
  absl::Status Insert(absl::string_view name, StateValue value, bool replace);
  // The value inside new maps and lists, one for each part.
  static StateValue Nested(absl::Span<const internal::NamePart> path,
                           StateValue value);

  // Null if there is no such key.
  StateValue* FindKey(absl::string_view key);
  // There is no such key yet.
  void Append(std::string key, StateValue value);
  // There is such a key.
  void EraseKey(absl::string_view key);

  std::vector<StateEntry> entries_;
  // Positions in `entries_` by key.
  absl::flat_hash_map<std::string, size_t> index_;
};

// The types that hold the kinds of values.
template <typename T>
concept StateType = std::same_as<T, bool> || std::same_as<T, int64_t> ||
    std::same_as<T, double> || std::same_as<T, std::string> ||
    std::same_as<T, StateBytes> || std::same_as<T, Tensor> ||
    std::same_as<T, ShardedTensor> || std::same_as<T, StateList> ||
    std::same_as<T, StateDict>;

namespace internal {

template <typename T>
concept StateCharacter = std::same_as<T, char> || std::same_as<T, wchar_t> ||
    std::same_as<T, char8_t> || std::same_as<T, char16_t> ||
    std::same_as<T, char32_t>;

// Types from which a value can be made: integers of types whose values all fit
// in int64_t, floats likewise, text, and the types that are none of these.
template <typename T>
concept StateInteger =
    std::integral<T> && !std::same_as<T, bool> && !StateCharacter<T> &&
    (sizeof(T) < sizeof(int64_t) || std::signed_integral<T>);
template <typename T>
concept StateFloat = std::floating_point<T> && sizeof(T) <= sizeof(double);
template <typename T>
concept StateText = std::is_convertible_v<const T&, absl::string_view>;
template <typename T>
concept StateObject =
    StateType<T> && !std::is_scalar_v<T> && !std::same_as<T, std::string>;

}  // namespace internal

// A value of one of these types, or none.
class StateValue {
 public:
  // None.
  StateValue() = default;

  // Implicit, so that a value may be written as what it holds: 3, 0.01, "adam".
  // Does not compile for uint64_t, whose values may not fit, and for
  // characters.
  template <std::same_as<bool> T>
  StateValue(T value)  // NOLINT(google-explicit-constructor)
      : value_(value) {}
  template <internal::StateInteger T>
  StateValue(T value)  // NOLINT(google-explicit-constructor)
      : value_(static_cast<int64_t>(value)) {}
  template <internal::StateFloat T>
  StateValue(T value)  // NOLINT(google-explicit-constructor)
      : value_(static_cast<double>(value)) {}
  template <internal::StateText T>
  StateValue(const T& value)  // NOLINT(google-explicit-constructor)
      : value_(std::string(absl::string_view(value))) {}
  template <internal::StateObject T>
  StateValue(T value)  // NOLINT(google-explicit-constructor)
      : value_(std::move(value)) {}
  StateValue(std::nullptr_t) = delete;

  StateKind kind() const { return static_cast<StateKind>(value_.index()); }
  bool is_none() const { return kind() == StateKind::kNone; }

  // The value as a T; null if it is of another type. Valid as long as the value
  // exists and does not change.
  template <StateType T>
  const T* get_if() const {
    return std::get_if<T>(&value_);
  }
  template <StateType T>
  T* get_if() {
    return std::get_if<T>(&value_);
  }

  // Whether maps and lists are nested in it at most `depth` deep: 0 for a value
  // that is not a map or list, or an empty one.
  bool IsWithin(int depth) const;

  // "3", "0.01", "\"adam\"", "12 bytes", "Tensor(float32, [4, 6], cpu)",
  // "ShardedTensor(float32, [4, 6], 2 shards)", "map of 2", "[]": of text the
  // beginning and the end, and of a tensor no element.
  std::string ToString() const;

 private:
  friend class StateDict;

  std::variant<std::monostate, bool, int64_t, double, std::string, StateBytes,
               Tensor, ShardedTensor, StateList, StateDict>
      value_;
};

// A value with its key in a map, or with its name in all of a state.
struct StateEntry {
  std::string name;
  StateValue value;
};

namespace internal {

template <StateType T>
constexpr StateKind StateKindOf() {
  if constexpr (std::same_as<T, bool>) return StateKind::kBool;
  if constexpr (std::same_as<T, int64_t>) return StateKind::kInteger;
  if constexpr (std::same_as<T, double>) return StateKind::kFloat;
  if constexpr (std::same_as<T, std::string>) return StateKind::kString;
  if constexpr (std::same_as<T, StateBytes>) return StateKind::kBytes;
  if constexpr (std::same_as<T, Tensor>) return StateKind::kTensor;
  if constexpr (std::same_as<T, ShardedTensor>) {
    return StateKind::kShardedTensor;
  }
  if constexpr (std::same_as<T, StateList>) return StateKind::kList;
  return StateKind::kMap;
}

absl::Status WrongStateKind(absl::string_view name, StateKind expected,
                            const StateValue& found);

}  // namespace internal

template <typename T>
absl::StatusOr<T> StateDict::Get(absl::string_view name) const {
  static_assert(StateType<T>, "a state holds the types of StateType");
  const absl::StatusOr<const StateValue*> value = Find(name);
  if (!value.ok()) return value.status();
  if (const T* held = (*value)->get_if<T>()) return *held;
  return internal::WrongStateKind(name, internal::StateKindOf<T>(), **value);
}

std::ostream& operator<<(std::ostream& out, const StateValue& value);
std::ostream& operator<<(std::ostream& out, const StateDict& state);

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_STATE_DICT_H_
