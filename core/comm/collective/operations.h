#ifndef SHERD_CORE_COMM_COLLECTIVE_OPERATIONS_H_
#define SHERD_CORE_COMM_COLLECTIVE_OPERATIONS_H_

#include <cstdint>
#include <iterator>
#include <string_view>

// The operations and the arguments that each of them uses: for the host and for
// plugins, hence based on the standard library alone.

namespace sherd {

// Numbers are those of the plugin ABI and never change.
enum class CollectiveOp : int32_t {
  kBarrier = 0,
  kBroadcast = 1,
  kAllGather = 2,
  kAllToAllV = 3,
  kAllReduce = 4,
  kReduce = 5,
  kReduceScatter = 6,
  kAllGatherV = 7,
  kGather = 8,
  kScatter = 9,
  kSend = 10,
  kRecv = 11,
};
inline constexpr int kNumCollectiveOps = 12;

// How elements at the same index on different ranks are combined. The numbers
// are those of the plugin ABI and never change; new ones are appended.
enum class ReduceOp : int32_t {
  kSum = 0,
  kAvg = 1,
  kProduct = 2,
  kMin = 3,
  kMax = 4,
  kBand = 5,
  kBor = 6,
  kBxor = 7,
};
inline constexpr int kNumReduceOps = 8;

namespace internal {

// Which lengths are compared, beside the operation's `bytes`.
enum class OperationLists {
  kNone,
  // All ranks pass the same list of lengths, for sending or receiving.
  kSameSends,
  kSameRecvs,
  // Lengths of single messages, on which two ranks must agree.
  kPairs,
};

struct OperationTraits {
  const char* name;
  bool has_root;
  // Computes with elements, and does not only move bytes.
  bool reduces;
  // `bytes` is the same on all ranks.
  bool has_common_bytes;
  OperationLists lists;
};

// In the order of the numbers. Of send and recv, root is the peer.
inline constexpr OperationTraits kOperationTraits[] = {
    {"barrier", false, false, false, OperationLists::kNone},
    {"broadcast", true, false, true, OperationLists::kNone},
    {"all_gather", false, false, true, OperationLists::kNone},
    {"all_to_all_v", false, false, false, OperationLists::kPairs},
    {"all_reduce", false, true, true, OperationLists::kNone},
    {"reduce", true, true, true, OperationLists::kNone},
    {"reduce_scatter", false, true, false, OperationLists::kSameSends},
    {"all_gather_v", false, false, false, OperationLists::kSameRecvs},
    {"gather", true, false, false, OperationLists::kPairs},
    {"scatter", true, false, false, OperationLists::kPairs},
    {"send", true, false, false, OperationLists::kNone},
    {"recv", true, false, false, OperationLists::kNone},
};
static_assert(std::size(kOperationTraits) == kNumCollectiveOps);

constexpr const OperationTraits& TraitsOf(CollectiveOp op) {
  return kOperationTraits[static_cast<int32_t>(op)];
}

// The operation of this name, or null.
constexpr const OperationTraits* FindOperation(std::string_view name) {
  for (const OperationTraits& traits : kOperationTraits) {
    if (traits.name == name) return &traits;
  }
  return nullptr;
}

inline constexpr const char* kReduceOpNames[] = {
    "sum", "avg", "product", "min", "max", "band", "bor", "bxor"};
static_assert(std::size(kReduceOpNames) == kNumReduceOps);

}  // namespace internal

// Whether `op` computes with elements, or only moves bytes.
constexpr bool IsReduction(CollectiveOp op) {
  return internal::TraitsOf(op).reduces;
}

// Whether `op` has a root; of send and recv that is the peer.
constexpr bool HasRoot(CollectiveOp op) {
  return internal::TraitsOf(op).has_root;
}

constexpr bool IsPointToPoint(CollectiveOp op) {
  return op == CollectiveOp::kSend || op == CollectiveOp::kRecv;
}

}  // namespace sherd

#endif  // SHERD_CORE_COMM_COLLECTIVE_OPERATIONS_H_
