#include <algorithm>
#include <array>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

// The fewest digits that give the number back, and never those of an integer.
std::string FormatFloat(double value) {
  std::array<char, 32> buffer;
  const auto result =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  std::string text(buffer.data(), result.ptr);
  const bool like_integer = text.find_first_not_of("-0123456789") == text.npos;
  return like_integer ? text + ".0" : text;
}

struct Formatter {
  std::string operator()(std::monostate) const { return "none"; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return absl::StrCat(value); }
  std::string operator()(double value) const { return FormatFloat(value); }
  std::string operator()(const std::string& value) const {
    return Quoted(value);
  }
  std::string operator()(const StateBytes& value) const {
    return absl::StrCat(value.data.size(), " bytes");
  }
  std::string operator()(const Tensor& tensor) const {
    if (!tensor.defined()) return "Tensor(undefined)";
    return absl::StrCat("Tensor(", Name(tensor.dtype()), ", ",
                        FormatDims(tensor.sizes()), ", ",
                        tensor.device().ToString(), ")");
  }
  std::string operator()(const ShardedTensor& tensor) const {
    if (!tensor.defined()) return tensor.ToString();
    const size_t shards = tensor.metadata().shards.size();
    return absl::StrCat("ShardedTensor(", Name(tensor.dtype()), ", ",
                        FormatDims(tensor.size()), ", ", shards,
                        shards == 1 ? " shard)" : " shards)");
  }
  std::string operator()(const StateList& list) const {
    return list.empty() ? "[]" : absl::StrCat("list of ", list.size());
  }
  std::string operator()(const StateDict& map) const {
    return map.empty() ? "{}" : absl::StrCat("map of ", map.size());
  }
};

}  // namespace

absl::string_view Name(StateKind kind) {
  switch (kind) {
    case StateKind::kNone:
      return "none";
    case StateKind::kBool:
      return "boolean";
    case StateKind::kInteger:
      return "integer";
    case StateKind::kFloat:
      return "float";
    case StateKind::kString:
      return "string";
    case StateKind::kBytes:
      return "bytes";
    case StateKind::kTensor:
      return "tensor";
    case StateKind::kShardedTensor:
      return "sharded tensor";
    case StateKind::kList:
      return "list";
    case StateKind::kMap:
      return "map";
  }
  return "invalid";
}

bool StateValue::IsWithin(int depth) const {
  if (const StateList* list = get_if<StateList>(); list && !list->empty()) {
    return depth > 0 &&
           std::all_of(list->begin(), list->end(), [&](const StateValue& item) {
             return item.IsWithin(depth - 1);
           });
  }
  if (const StateDict* map = get_if<StateDict>(); map && !map->empty()) {
    return depth > 0 &&
           std::all_of(map->begin(), map->end(), [&](const StateEntry& entry) {
             return entry.value.IsWithin(depth - 1);
           });
  }
  return true;
}

std::string StateValue::ToString() const {
  return std::visit(Formatter(), value_);
}

std::ostream& operator<<(std::ostream& out, const StateValue& value) {
  return out << value.ToString();
}

}  // namespace sherd
