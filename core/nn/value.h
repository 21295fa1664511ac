#ifndef SHERD_CORE_NN_VALUE_H_
#define SHERD_CORE_NN_VALUE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/sharding/partial_tensor.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

class Value;

using ValueList = std::vector<Value>;
// In the order of the keys, so that all ranks walk through it alike.
using ValueMap = std::map<std::string, Value, std::less<>>;

enum class ValueKind : int32_t {
  kNone,
  kTensor,
  kShardedTensor,
  kPartialTensor,
  kList,
  kMap,
};

// "none", "tensor", "sharded tensor", "partial tensor", "list", "map".
absl::string_view Name(ValueKind kind);

namespace internal {

// The types of which a Value is one, and the kinds that they are.
template <typename T>
struct KindOfValue;
template <>
struct KindOfValue<Tensor> {
  static constexpr ValueKind kKind = ValueKind::kTensor;
};
template <>
struct KindOfValue<ShardedTensor> {
  static constexpr ValueKind kKind = ValueKind::kShardedTensor;
};
template <>
struct KindOfValue<PartialTensor> {
  static constexpr ValueKind kKind = ValueKind::kPartialTensor;
};
template <>
struct KindOfValue<ValueList> {
  static constexpr ValueKind kKind = ValueKind::kList;
};
template <>
struct KindOfValue<ValueMap> {
  static constexpr ValueKind kKind = ValueKind::kMap;
};

absl::Status WrongValueKind(ValueKind expected, const Value& found);

}  // namespace internal

// What modules take and return, and what their members hold: a tensor, plain,
// sharded or partial, or a list or map of Values; or none.
//
//     SHERD_ASSIGN_OR_RETURN(Value y, linear->Call({x}));
//     SHERD_ASSIGN_OR_RETURN(Tensor rows, y.Get<Tensor>());
//
// Value. Tensors are handles: a copy of a Value shares their elements. Lists
// and maps are copied. A list of one list is ValueList{Value(list)}: compilers
// differ on whether ValueList{list} is one, or a copy.
//
// Threads. Like a standard container.
class Value {
 public:
  // None.
  Value() = default;

  // Implicit, so that a value may be written as what it holds. A tensor that is
  // not defined is none.
  Value(Tensor tensor);         // NOLINT(google-explicit-constructor)
  Value(ShardedTensor tensor);  // NOLINT(google-explicit-constructor)
  Value(PartialTensor tensor);  // NOLINT(google-explicit-constructor)
  Value(ValueList list);        // NOLINT(google-explicit-constructor)
  Value(ValueMap map);          // NOLINT(google-explicit-constructor)

  ValueKind kind() const { return static_cast<ValueKind>(value_.index()); }
  bool is_none() const { return kind() == ValueKind::kNone; }

  // The value as a T; null if it is of another type. Valid as long as the Value
  // exists and does not change.
  template <typename T>
  const T* get_if() const {
    return std::get_if<T>(&value_);
  }
  template <typename T>
  T* get_if() {
    return std::get_if<T>(&value_);
  }

  // The value as a T.
  //   kInvalidArgument  "Expected a tensor, but found list".
  template <typename T>
  absl::StatusOr<T> Get() const {
    if (const T* held = get_if<T>()) return *held;
    return internal::WrongValueKind(internal::KindOfValue<T>::kKind, *this);
  }

  // "Tensor(float32, [4, 6], cpu)", "ShardedTensor(float32, [4, 6], 2 shards)",
  // "PartialTensor(sum, float32, [4, 8], group default)", "[…, …]", "{a: …}",
  // "none": no elements of tensors.
  std::string ToString() const;

 private:
  std::variant<std::monostate, Tensor, ShardedTensor, PartialTensor, ValueList,
               ValueMap>
      value_;
};

std::ostream& operator<<(std::ostream& out, const Value& value);

}  // namespace sherd

#endif  // SHERD_CORE_NN_VALUE_H_
