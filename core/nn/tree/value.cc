#include "sherd/core/nn/value.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/core/sharding/state_dict.h"

namespace sherd {

absl::string_view Name(ValueKind kind) {
  switch (kind) {
    case ValueKind::kNone:
      return "none";
    case ValueKind::kTensor:
      return "tensor";
    case ValueKind::kShardedTensor:
      return "sharded tensor";
    case ValueKind::kPartialTensor:
      return "partial tensor";
    case ValueKind::kList:
      return "list";
    case ValueKind::kMap:
      return "map";
  }
  return "unknown";
}

Value::Value(Tensor tensor) {
  if (tensor.defined()) value_ = std::move(tensor);
}

Value::Value(ShardedTensor tensor) {
  if (tensor.defined()) value_ = std::move(tensor);
}

Value::Value(PartialTensor tensor) {
  if (tensor.defined()) value_ = std::move(tensor);
}

Value::Value(ValueList list) : value_(std::move(list)) {}

Value::Value(ValueMap map) : value_(std::move(map)) {}

std::string Value::ToString() const {
  if (const auto* tensor = get_if<Tensor>()) {
    return StateValue(*tensor).ToString();
  }
  if (const auto* tensor = get_if<ShardedTensor>()) {
    return StateValue(*tensor).ToString();
  }
  if (const auto* tensor = get_if<PartialTensor>()) return tensor->ToString();
  if (const auto* list = get_if<ValueList>()) {
    return absl::StrCat("[",
                        absl::StrJoin(*list, ", ",
                                      [](std::string* out, const Value& value) {
                                        absl::StrAppend(out, value.ToString());
                                      }),
                        "]");
  }
  if (const auto* map = get_if<ValueMap>()) {
    return absl::StrCat("{",
                        absl::StrJoin(*map, ", ",
                                      [](std::string* out, const auto& entry) {
                                        absl::StrAppend(
                                            out, entry.first, ": ",
                                            entry.second.ToString());
                                      }),
                        "}");
  }
  return std::string(Name(ValueKind::kNone));
}

std::ostream& operator<<(std::ostream& out, const Value& value) {
  return out << value.ToString();
}

namespace internal {

absl::Status WrongValueKind(ValueKind expected, const Value& found) {
  return absl::InvalidArgumentError(absl::StrCat(
      "Expected a ", Name(expected), ", but found ", Name(found.kind())));
}

}  // namespace internal
}  // namespace sherd
