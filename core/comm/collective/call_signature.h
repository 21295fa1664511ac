#ifndef SHERD_CORE_COMM_COLLECTIVE_CALL_SIGNATURE_H_
#define SHERD_CORE_COMM_COLLECTIVE_CALL_SIGNATURE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sherd/core/base/deviation.h"
#include "sherd/core/comm/collective/operations.h"
#include "sherd/core/tensor/types/dtype_names.h"

// Whether the ranks of a group made the same call, and the error text if not:
// the one rule of the host and of the plugins that compare by themselves,
// however calls are sent from rank to rank. Hence it depends on the standard
// library alone.
//
// Rule. Calls fit if they agree in operation, root and reduction, in the number
// of bytes or the list of lengths that the operation has in common, in the form
// of an all_to_all (equal blocks or lists), and in the device of the buffers;
// and in the type of the elements, where a call gives one: a call by bytes fits
// every type. The lengths of single messages agree between two ranks
// (LengthsWith). core/base/deviation.h defines who deviates.

namespace sherd::internal {

// The properties of a call that can be compared. Numbers are those of
// CollectiveOp, DType and ReduceOp.
struct CallFields {
  int32_t op = 0;
  int32_t root = 0;
  int32_t dtype = 0;
  int32_t reduction = 0;
  // Of an all_to_all_v with equal blocks, the length of one.
  uint64_t bytes = 0;
  // dtype is the type of elements that are only moved.
  bool is_typed = false;
  // Entries have one length.
  bool is_even = false;
  bool on_device = false;
};

// The properties of a call that are common to all ranks, as three words; the
// transport need not know more. Words received from elsewhere may hold any
// value.
struct CallSignature {
  // From the lowest bit: 8 bits operation, 8 bits 1 + type or 0, 8 bits
  // reduction, 8 bits form, 32 bits root. Fields that an operation does not use
  // are 0.
  uint64_t kind = 0;
  // The bytes that the operation has in common, or 0; of a list the sum.
  uint64_t bytes = 0;
  // A hash of the lengths in the list that the operation has in common, in
  // their order, if the list itself is not sent with the signature.
  uint64_t lengths = 0;

  static constexpr int kTypeShift = 8;
  static constexpr int kReductionShift = 16;
  static constexpr int kFormShift = 24;
  static constexpr int kRootShift = 32;
  static constexpr uint64_t kTypeMask = uint64_t{0xff} << kTypeShift;
  // Forms.
  static constexpr uint64_t kEqualBlocks = uint64_t{1} << kFormShift;
  static constexpr uint64_t kOnDevice = uint64_t{2} << kFormShift;
  // The call comes from a record without lists: of the common list only `bytes`
  // is known, or nothing, and without kEqualBlocks the form of an all_to_all is
  // unknown.
  static constexpr uint64_t kWithoutLists = uint64_t{4} << kFormShift;

  int32_t op() const { return static_cast<int32_t>(kind & 0xff); }
  // 1 + the number of the type; 0: by bytes.
  uint64_t type() const { return (kind & kTypeMask) >> kTypeShift; }
  int32_t root() const { return static_cast<int32_t>(kind >> kRootShift); }

  // Null if the operation is unknown.
  const OperationTraits* traits() const {
    return op() < kNumCollectiveOps ? &kOperationTraits[op()] : nullptr;
  }

  // All but the type.
  std::tuple<uint64_t, uint64_t, uint64_t> CommonPart() const {
    return {kind & ~kTypeMask, bytes, lengths};
  }

  // Adds an entry of the common list to the signature.
  void AddLength(uint64_t length) {
    bytes += length;
    lengths = Mix(lengths, length);
  }

  static uint64_t Mix(uint64_t hash, uint64_t value) {
    // The multiplier and shift of SplitMix64.
    hash = (hash ^ value) * 0xbf58476d1ce4e5b9;
    return hash ^ (hash >> 29);
  }
};

inline CallSignature SignatureOf(const CallFields& call) {
  const OperationTraits& traits = kOperationTraits[call.op];
  const bool has_equal_blocks =
      call.op == static_cast<int32_t>(CollectiveOp::kAllToAllV) && call.is_even;
  CallSignature signature;
  signature.kind = static_cast<uint64_t>(call.op);
  if (traits.reduces || call.is_typed) {
    signature.kind |= (1 + static_cast<uint64_t>(call.dtype))
                      << CallSignature::kTypeShift;
  }
  if (traits.reduces) {
    signature.kind |= static_cast<uint64_t>(call.reduction)
                      << CallSignature::kReductionShift;
  }
  if (has_equal_blocks) signature.kind |= CallSignature::kEqualBlocks;
  if (call.on_device) signature.kind |= CallSignature::kOnDevice;
  if (traits.has_root) {
    signature.kind |= static_cast<uint64_t>(static_cast<uint32_t>(call.root))
                      << CallSignature::kRootShift;
  }
  if (traits.has_common_bytes || has_equal_blocks) signature.bytes = call.bytes;
  return signature;
}

// Whether two ranks have to agree about the lengths of single messages.
inline bool ComparesMessages(const CallFields& call) {
  return kOperationTraits[call.op].lists == OperationLists::kPairs &&
         (SignatureOf(call).kind & CallSignature::kEqualBlocks) == 0;
}

// Bytes between a rank and a peer, by the rank's own account.
struct MessageLengths {
  uint64_t sent = 0;
  uint64_t expected = 0;
};

// The lengths for an operation that ComparesMessages, 0 for any other;
// `send_to(r)` and `receive_from(r)` are the lengths in the rank's lists, and
// are called only if it has that list.
template <typename SendTo, typename ReceiveFrom>
MessageLengths LengthsWith(int peer, int rank, const CallFields& call,
                           const SendTo& send_to,
                           const ReceiveFrom& receive_from) {
  switch (static_cast<CollectiveOp>(call.op)) {
    case CollectiveOp::kAllToAllV:
      return {send_to(peer), receive_from(peer)};
    case CollectiveOp::kGather:
      return {peer == call.root ? call.bytes : 0,
              rank == call.root ? receive_from(peer) : 0};
    case CollectiveOp::kScatter:
      return {rank == call.root ? send_to(peer) : 0,
              peer == call.root ? call.bytes : 0};
    default:
      return {};
  }
}

// Takes the signatures of all ranks one by one, and reports whether they fit so
// far. Allocates nothing.
class CallAgreement {
 public:
  explicit CallAgreement(const CallSignature& first)
      : first_(first), type_(first.type()) {}

  bool Fits(const CallSignature& call) {
    if (((call.kind ^ first_.kind) & ~CallSignature::kTypeMask) != 0 ||
        call.bytes != first_.bytes || call.lengths != first_.lengths) {
      return false;
    }
    if (type_ == 0) type_ = call.type();
    return call.type() == 0 || call.type() == type_;
  }

 private:
  const CallSignature first_;
  uint64_t type_;
};

template <size_t n>
std::string NumberedName(const char* const (&names)[n], uint64_t number) {
  return number < n ? names[number] : "number " + std::to_string(number);
}

// "all_reduce (float32, sum, 16 bytes)", "gather (root 1)", "barrier". `list`:
// the lengths that the operation has in common, if they are known.
inline std::string ToText(const CallSignature& call,
                          const std::vector<uint64_t>* list = nullptr) {
  const OperationTraits* const traits = call.traits();
  if (traits == nullptr) {
    return "operation number " + std::to_string(call.op());
  }
  std::string details;
  const auto add = [&details](const std::string& detail) {
    details += (details.empty() ? "" : ", ") + detail;
  };
  if (traits->has_root) add("root " + std::to_string(call.root()));
  if (call.type() != 0) add(NumberedName(kDTypeNames, call.type() - 1));
  if (traits->reduces) {
    add(NumberedName(kReduceOpNames,
                     call.kind >> CallSignature::kReductionShift & 0xff));
  }
  const std::string bytes = std::to_string(call.bytes) + " bytes";
  const bool has_equal_blocks = (call.kind & CallSignature::kEqualBlocks) != 0;
  if (traits->has_common_bytes) {
    add(bytes);
  } else if ((call.kind & CallSignature::kWithoutLists) != 0 &&
             !has_equal_blocks) {
    if (traits->lists == OperationLists::kSameSends) add(bytes);
  } else if (call.op() == static_cast<int32_t>(CollectiveOp::kAllToAllV)) {
    add(has_equal_blocks ? bytes + " to each rank" : "lists");
  } else if (traits->lists == OperationLists::kSameSends ||
             traits->lists == OperationLists::kSameRecvs) {
    if (list == nullptr) {
      add("blocks of " + bytes + " in all, hash " +
          std::to_string(call.lengths));
    } else {
      constexpr size_t kMost = 8;
      std::string blocks;
      for (size_t i = 0; i < std::min(list->size(), kMost); ++i) {
        blocks += (i == 0 ? "blocks of " : ", ") + std::to_string((*list)[i]);
      }
      add(blocks + (list->size() > kMost ? ", … bytes" : " bytes"));
    }
  }
  if ((call.kind & CallSignature::kOnDevice) != 0) add("on its device");
  return traits->name + (details.empty() ? "" : " (" + details + ")");
}

struct CallDifference {
  // The rank that deviates. Unset: no rank more than others.
  std::optional<int> rank;
  // "the ranks made different calls: rank 1 called barrier; ranks 0, 2 …".
  std::string text;
};

inline constexpr char kDifferentCalls[] = "the ranks made different calls: ";

// Finds the ranks that deviate: calls[r] is the call of rank r, unset if
// unknown. `lists[r]`: the common list of lengths as rank r gave it, where
// lists are sent; empty: only their hash is sent, or nothing.
inline Deviation FindDeviatingCalls(
    const std::vector<std::optional<CallSignature>>& calls,
    const std::vector<std::optional<std::vector<uint64_t>>>& lists = {}) {
  // With the common list, or none.
  using Part = std::pair<decltype(CallSignature().CommonPart()),
                         std::optional<std::vector<uint64_t>>>;
  std::vector<std::optional<Part>> parts(calls.size());
  std::vector<std::optional<uint64_t>> types(calls.size());
  for (size_t r = 0; r < calls.size(); ++r) {
    if (!calls[r]) continue;
    parts[r].emplace(calls[r]->CommonPart(),
                     lists.empty() ? std::nullopt : lists[r]);
    if (calls[r]->type() != 0) types[r] = calls[r]->type();
  }
  Deviation deviation = FindDeviation(parts);
  return deviation.Exists() ? deviation : FindDeviation(types);
}

// How the calls contradict each other, if they do: calls[r] is the call of rank
// r, unset if unknown. `list_of(r)`: the common list of lengths as rank r gave
// it, where lists are sent; null: only their hash is.
inline std::optional<CallDifference> FindDifference(
    const std::vector<std::optional<CallSignature>>& calls,
    const std::function<std::vector<uint64_t>(int rank)>& list_of = nullptr) {
  std::vector<std::optional<std::vector<uint64_t>>> lists(calls.size());
  std::vector<int> unknown;
  for (size_t r = 0; r < calls.size(); ++r) {
    if (!calls[r]) {
      unknown.push_back(static_cast<int>(r));
      continue;
    }
    const OperationTraits* const traits = calls[r]->traits();
    if (list_of != nullptr && traits != nullptr &&
        (traits->lists == OperationLists::kSameSends ||
         traits->lists == OperationLists::kSameRecvs)) {
      lists[r] = list_of(static_cast<int>(r));
    }
  }
  const Deviation deviation = FindDeviatingCalls(calls, lists);
  if (!deviation.Exists()) return std::nullopt;
  std::string text = kDifferentCalls;
  text += deviation.ToText("called", [&](int r) {
    return ToText(*calls[r], lists[r] ? &*lists[r] : nullptr);
  });
  if (!unknown.empty()) {
    text += "; of " + RankList(unknown) + " nothing is known";
  }
  return CallDifference{deviation.Rank(), std::move(text)};
}

// The difference between two ranks that disagree about the length of a message:
// the text names both, and neither is reported as deviating.
inline CallDifference DifferenceOfLengths(int32_t op, int from, uint64_t sent,
                                          int to, uint64_t expected) {
  return {std::nullopt,
          std::string(kDifferentCalls) + "rank " + std::to_string(from) +
              " sends " + std::to_string(sent) + " bytes to rank " +
              std::to_string(to) + " in " + kOperationTraits[op].name +
              ", which expects " + std::to_string(expected)};
}

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_COLLECTIVE_CALL_SIGNATURE_H_
