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

// Whether the ranks of a group made the same call, and how to say it if not:
// the one rule of the host and of the plugins that compare by themselves,
// whatever carries the calls from rank to rank. Hence of the standard library
// alone.
//
// Rule. Calls fit if they agree in operation, root and reduction, in the number
// of bytes or the list of lengths that the operation has in common, in the form
// of an all_to_all (equal blocks or lists), and in where the buffers lie; and
// in the type of the elements, where a call gives one: a call by bytes fits
// every type. The lengths of single messages agree between two ranks
// (LengthsWith). Who deviates is what core/base/deviation.h says.

namespace sherd::internal {

// What a call is, as far as it can be compared. Numbers are those of
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

// What all ranks have in common in a call, as three words: what carries them
// need not know more. Words that came from elsewhere may hold anything.
struct CallSignature {
  // From the lowest bit: 8 bits operation, 8 bits 1 + type or 0, 8 bits
  // reduction, 8 bits form, 32 bits root. What an operation does not use is 0.
  uint64_t kind = 0;
  // The bytes that the operation has in common, or 0; of a list the sum.
  uint64_t bytes = 0;
  // A hash of the lengths in the list that the operation has in common, in
  // their order, if what carries the signature does not carry the list.
  uint64_t lengths = 0;

  static constexpr int kTypeShift = 8;
  static constexpr int kReductionShift = 16;
  static constexpr int kFormShift = 24;
  static constexpr int kRootShift = 32;
  static constexpr uint64_t kTypeMask = uint64_t{0xff} << kTypeShift;
  // Forms.
  static constexpr uint64_t kEqualBlocks = uint64_t{1} << kFormShift;
  static constexpr uint64_t kOnDevice = uint64_t{2} << kFormShift;
  // Of a record that holds no lists: of the one in common only `bytes` is
  // known, or nothing, and without kEqualBlocks no form of an all_to_all.
  static constexpr uint64_t kWithoutLists = uint64_t{4} << kFormShift;

  int32_t op() const { return static_cast<int32_t>(kind & 0xff); }
  // 1 + the number of the type, or 0: by bytes.
  uint64_t type() const { return (kind & kTypeMask) >> kTypeShift; }
  int32_t root() const { return static_cast<int32_t>(kind >> kRootShift); }

  // Null if there is no such operation.
  const OperationTraits* traits() const {
    return op() < kNumCollectiveOps ? &kOperationTraits[op()] : nullptr;
  }

  // All but the type.
  std::tuple<uint64_t, uint64_t, uint64_t> CommonPart() const {
    return {kind & ~kTypeMask, bytes, lengths};
  }

  // The list in common is part of the signature from now on.
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

// Of an operation that ComparesMessages, 0 of any other; `send_to(r)` and
// `receive_from(r)` are the lengths in the rank's lists, and are asked only
// where it has one.
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

// Takes the signatures of all ranks one by one, and tells whether they fit so
// far. Without memory of its own.
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
  // Who deviates. Unset: nobody more than others.
  std::optional<int> rank;
  // "the ranks made different calls: rank 1 called barrier; ranks 0, 2 …".
  std::string text;
};

inline constexpr char kDifferentCalls[] = "the ranks made different calls: ";

// Who deviates among the calls: calls[r] is that of rank r, unset if it is
// unknown. `lists[r]`: the lengths that the operation has in common as rank r
// gave them, where lists are carried; empty: their hash is, or nothing.
inline Deviation FindDeviatingCalls(
    const std::vector<std::optional<CallSignature>>& calls,
    const std::vector<std::optional<std::vector<uint64_t>>>& lists = {}) {
  // With the list in common, or none.
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

// How the calls contradict each other, if they do: calls[r] is that of rank r,
// unset if it is unknown. `list_of(r)`: the lengths that the operation has in
// common as rank r gave them, where lists are carried; null: their hash is.
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

// Two ranks that contradict each other about the length of a message: both are
// named and none is singled out.
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
