#include "sherd/backends/local/call_comparison.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

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

// "8, 8, 0, …": the blocks of a reduce_scatter, the same on all ranks.
std::string DescribeBlocks(const sherd_op_v0& op, int ranks) {
  constexpr int kMost = 8;
  std::string text;
  for (int r = 0; r < std::min(ranks, kMost); ++r) {
    text += (r == 0 ? "" : ", ") + std::to_string(op.sends[r].size);
  }
  return ranks > kMost ? text + ", …" : text;
}

// "reduce, root 1, 8 bytes, float32, max".
std::string Describe(const sherd_op_v0& op, int ranks) {
  const Traits traits = TraitsOf(op);
  std::string text = traits.name;
  if (traits.root) text += ", root " + std::to_string(op.root);
  if (traits.bytes) text += ", " + std::to_string(op.bytes) + " bytes";
  if (op.op == SHERD_REDUCE_SCATTER) {
    text += ", blocks of " + DescribeBlocks(op, ranks) + " bytes";
  }
  if (traits.elements) {
    text += ", " + NameOf(kDTypes, op.dtype) + ", " +
            NameOf(kReductions, op.reduction);
  }
  return text;
}

bool SameBlocks(const sherd_op_v0& a, const sherd_op_v0& b, int ranks) {
  return std::equal(
      a.sends, a.sends + ranks, b.sends,
      [](const auto& x, const auto& y) { return x.size == y.size; });
}

bool Fit(const sherd_op_v0& a, const sherd_op_v0& b, int ranks) {
  const Traits traits = TraitsOf(a);
  return a.op == b.op &&
         (a.op != SHERD_REDUCE_SCATTER || SameBlocks(a, b, ranks)) &&
         (!traits.root || a.root == b.root) &&
         (!traits.bytes || a.bytes == b.bytes) &&
         (!traits.elements ||
          (a.dtype == b.dtype && a.reduction == b.reduction));
}

// The lowest rank with the call that most ranks made.
int FindMostCommon(const std::vector<const sherd_op_v0*>& calls) {
  const int ranks = static_cast<int>(calls.size());
  int best = 0;
  ptrdiff_t most = 0;
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    const ptrdiff_t equal = std::count_if(
        calls.begin(), calls.end(),
        [&](auto* call) { return Fit(*call, *calls[rank], ranks); });
    if (equal > most) {
      best = static_cast<int>(rank);
      most = equal;
    }
  }
  return best;
}

// Bytes that go from one rank to another, as each of them says. The ranks'
// calls fit.
struct Sizes {
  uint64_t sent;
  uint64_t expected;
};

Sizes SizesOf(const std::vector<const sherd_op_v0*>& calls, int from, int to) {
  const sherd_op_v0& sender = *calls[from];
  const sherd_op_v0& receiver = *calls[to];
  switch (sender.op) {
    case SHERD_ALL_TO_ALL_V:
      return {sender.sends[to].size, receiver.recvs[from].size};
    case SHERD_ALL_GATHER_V:
      return {sender.bytes, receiver.recvs[from].size};
    case SHERD_GATHER:
      if (to != receiver.root) break;
      return {sender.bytes, receiver.recvs[from].size};
    case SHERD_SCATTER:
      if (from != sender.root) break;
      return {sender.sends[to].size, receiver.bytes};
    case SHERD_REDUCE_SCATTER:
      return {sender.sends[to].size, receiver.bytes};
    default:
      break;
  }
  return {0, 0};
}

}  // namespace

std::optional<CallDifference> FindDifference(
    const std::vector<const sherd_op_v0*>& calls) {
  const int size = static_cast<int>(calls.size());
  const auto misfit = [&](int model) {
    return std::find_if(calls.begin(), calls.end(), [&](auto* call) {
      return !Fit(*call, *calls[model], size);
    });
  };
  if (misfit(0) != calls.end()) {
    const int model = FindMostCommon(calls);
    const int rank = static_cast<int>(misfit(model) - calls.begin());
    return CallDifference{rank, "called " + Describe(*calls[rank], size) +
                                    "; rank " + std::to_string(model) +
                                    " called " + Describe(*calls[model], size)};
  }
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      const Sizes sizes = SizesOf(calls, from, to);
      if (sizes.sent == sizes.expected) continue;
      return CallDifference{
          from, "sends " + std::to_string(sizes.sent) + " bytes to rank " +
                    std::to_string(to) + " in " + TraitsOf(*calls[from]).name +
                    ", which expects " + std::to_string(sizes.expected)};
    }
  }
  return std::nullopt;
}

}  // namespace sherd::internal
