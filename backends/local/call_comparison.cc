#include "sherd/backends/local/call_comparison.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <tuple>

#include "sherd/core/base/deviation.h"

namespace sherd::internal {
namespace {

// What the ranks must have in common beyond the operation.
struct Traits {
  const char* name;
  bool root;
  bool bytes;
  bool elements;
};

constexpr Traits kTraits[] = {
    {"barrier", false, false, false},
    {"broadcast", true, true, false},
    {"all_gather", false, true, false},
    {"all_to_all_v", false, false, false},
    {"all_reduce", false, true, true},
    {"reduce", true, true, true},
    {"reduce_scatter", false, false, true},
    {"all_gather_v", false, false, false},
    {"gather", true, false, false},
    {"scatter", true, false, false},
};

constexpr const char* kDTypes[] = {
    "bool",     "uint8",   "int8",    "uint16",      "int16",       "uint32",
    "int32",    "uint64",  "int64",   "float8_e4m3", "float8_e5m2", "float16",
    "bfloat16", "float32", "float64", "complex64",   "complex128",
};
static_assert(std::size(kDTypes) == SHERD_NUM_DTYPES);

constexpr const char* kReductions[] = {"sum", "avg",  "product", "min",
                                       "max", "band", "bor",     "bxor"};
static_assert(std::size(kReductions) == SHERD_NUM_REDUCTIONS);

Traits TraitsOf(const sherd_op_v0& op) {
  if (op.op >= 0 && op.op < static_cast<int>(std::size(kTraits))) {
    return kTraits[op.op];
  }
  return {"an unknown operation", false, false, false};
}

template <size_t n>
std::string NameOf(const char* const (&names)[n], int32_t number) {
  return number >= 0 && number < static_cast<int32_t>(n)
             ? names[number]
             : "number " + std::to_string(number);
}

using Calls = std::vector<const sherd_op_v0*>;

// An all_to_all without lists is another call than one with lists.
bool HasEqualBlocks(const sherd_op_v0& op) {
  return op.op == SHERD_ALL_TO_ALL_V && (op.flags & SHERD_OP_EVEN) != 0;
}

// The list of an operation in which all ranks bring the same one, or null.
const sherd_bytes_v0* CommonList(const sherd_op_v0& op) {
  return op.op == SHERD_REDUCE_SCATTER                       ? op.sends
         : op.op == SHERD_ALL_GATHER_V || HasEqualBlocks(op) ? op.recvs
                                                             : nullptr;
}

// What all ranks must have in common, but for the type of the elements.
using CommonPart = std::tuple<int32_t, int32_t, uint64_t, int32_t, bool,
                              std::vector<uint64_t>>;

CommonPart CommonPartOf(const sherd_op_v0& op, size_t ranks) {
  const Traits traits = TraitsOf(op);
  std::vector<uint64_t> list;
  const sherd_bytes_v0* const entries = CommonList(op);
  for (size_t r = 0; entries != nullptr && r < ranks; ++r) {
    list.push_back(entries[r].size);
  }
  return {op.op,
          traits.root ? op.root : 0,
          traits.bytes ? op.bytes : 0,
          traits.elements ? op.reduction : 0,
          HasEqualBlocks(op),
          std::move(list)};
}

// The same question of two calls, without memory of its own.
bool Fit(const sherd_op_v0& a, const sherd_op_v0& b, size_t ranks) {
  const Traits traits = TraitsOf(a);
  if (a.op != b.op || (traits.root && a.root != b.root) ||
      (traits.bytes && a.bytes != b.bytes) ||
      (traits.elements && a.reduction != b.reduction) ||
      HasEqualBlocks(a) != HasEqualBlocks(b)) {
    return false;
  }
  const sherd_bytes_v0* const list = CommonList(a);
  return list == nullptr || std::equal(list, list + ranks, CommonList(b),
                                       [](const auto& x, const auto& y) {
                                         return x.size == y.size;
                                       });
}

// Unset for a call by bytes, which fits any type.
std::optional<int32_t> TypeOf(const sherd_op_v0& op) {
  if (!TraitsOf(op).elements && (op.flags & SHERD_OP_TYPED) == 0) {
    return std::nullopt;
  }
  return op.dtype;
}

bool HaveOneType(const Calls& calls) {
  std::optional<int32_t> type;
  for (const sherd_op_v0* call : calls) {
    const std::optional<int32_t> its_type = TypeOf(*call);
    if (!type) type = its_type;
    if (its_type && its_type != type) return false;
  }
  return true;
}

// "reduce, root 1, 8 bytes, float32, max", "all_gather_v, list of 8, 0 bytes".
std::string Describe(const sherd_op_v0& op, size_t ranks) {
  constexpr size_t kMost = 8;
  const Traits traits = TraitsOf(op);
  std::string text = traits.name;
  if (traits.root) text += ", root " + std::to_string(op.root);
  if (traits.bytes) text += ", " + std::to_string(op.bytes) + " bytes";
  const sherd_bytes_v0* const list = CommonList(op);
  for (size_t r = 0; list != nullptr && r < std::min(ranks, kMost); ++r) {
    text += (r == 0 ? ", blocks of " : ", ") + std::to_string(list[r].size);
  }
  if (list != nullptr) text += ranks > kMost ? ", … bytes" : " bytes";
  if (op.op == SHERD_ALL_TO_ALL_V && list == nullptr) text += ", with lists";
  if (const std::optional<int32_t> type = TypeOf(op)) {
    text += ", " + NameOf(kDTypes, *type);
  }
  if (traits.elements) text += ", " + NameOf(kReductions, op.reduction);
  return text;
}

template <typename Value>
CallDifference DifferenceOf(const std::vector<std::optional<Value>>& values,
                            const Calls& calls) {
  const Deviation deviation = FindDeviation(values);
  return {deviation.Rank(), "the ranks made different calls: " +
                                deviation.ToText("called", [&](int rank) {
                                  return Describe(*calls[rank], calls.size());
                                })};
}

// Bytes that go from one rank to another, as each of them says. The ranks'
// calls fit.
struct Sizes {
  uint64_t sent;
  uint64_t expected;
};

Sizes SizesOf(const Calls& calls, int from, int to) {
  const sherd_op_v0& sender = *calls[from];
  const sherd_op_v0& receiver = *calls[to];
  switch (sender.op) {
    case SHERD_ALL_TO_ALL_V:
      return {sender.sends[to].size, receiver.recvs[from].size};
    case SHERD_GATHER:
      if (to != receiver.root) break;
      return {sender.bytes, receiver.recvs[from].size};
    case SHERD_SCATTER:
      if (from != sender.root) break;
      return {sender.sends[to].size, receiver.bytes};
    default:
      break;
  }
  return {0, 0};
}

}  // namespace

std::optional<CallDifference> FindDifference(const Calls& calls) {
  const size_t ranks = calls.size();
  if (!std::all_of(calls.begin(), calls.end(), [&](const sherd_op_v0* call) {
        return Fit(*call, *calls[0], ranks);
      })) {
    std::vector<std::optional<CommonPart>> values;
    for (const sherd_op_v0* call : calls) {
      values.emplace_back(CommonPartOf(*call, ranks));
    }
    return DifferenceOf(values, calls);
  }
  if (!HaveOneType(calls)) {
    std::vector<std::optional<int32_t>> types;
    for (const sherd_op_v0* call : calls) types.push_back(TypeOf(*call));
    return DifferenceOf(types, calls);
  }
  for (int from = 0; from < static_cast<int>(ranks); ++from) {
    for (int to = 0; to < static_cast<int>(ranks); ++to) {
      const Sizes sizes = SizesOf(calls, from, to);
      if (sizes.sent == sizes.expected) continue;
      return CallDifference{
          std::nullopt,
          "the ranks made different calls: rank " + std::to_string(from) +
              " sends " + std::to_string(sizes.sent) + " bytes to rank " +
              std::to_string(to) + " in " + TraitsOf(*calls[from]).name +
              ", which expects " + std::to_string(sizes.expected)};
    }
  }
  return std::nullopt;
}

}  // namespace sherd::internal
