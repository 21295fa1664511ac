#include "sherd/backends/shm/call.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sherd/backends/plugin_error.h"
#include "sherd/core/base/deviation.h"

namespace sherd::internal {
namespace {

bool IsReduction(int32_t op) {
  return op == SHERD_ALL_REDUCE || op == SHERD_REDUCE ||
         op == SHERD_REDUCE_SCATTER;
}

bool IsRooted(int32_t op) {
  return op == SHERD_BROADCAST || op == SHERD_REDUCE || op == SHERD_GATHER ||
         op == SHERD_SCATTER;
}

// Whether all ranks give the same `bytes`.
bool HasCommonSize(int32_t op) {
  return op == SHERD_BROADCAST || op == SHERD_ALL_GATHER ||
         op == SHERD_ALL_REDUCE || op == SHERD_REDUCE;
}

const char* NameOf(int32_t op) {
  static const char* const kNames[] = {
      "barrier",    "broadcast", "all_gather",     "all_to_all_v",
      "all_reduce", "reduce",    "reduce_scatter", "all_gather_v",
      "gather",     "scatter",   "send",           "recv"};
  return op >= 0 && op < SHERD_NUM_OPERATIONS ? kNames[op] : "?";
}

const char* DtypeName(int32_t dtype) {
  static const char* const kNames[] = {
      "bool",     "uint8",   "int8",    "uint16",      "int16",       "uint32",
      "int32",    "uint64",  "int64",   "float8_e4m3", "float8_e5m2", "float16",
      "bfloat16", "float32", "float64", "complex64",   "complex128"};
  return dtype >= 0 && dtype < SHERD_NUM_DTYPES ? kNames[dtype] : "?";
}

const char* ReductionName(int32_t reduction) {
  static const char* const kNames[] = {"sum", "avg",  "product", "min",
                                       "max", "band", "bor",     "bxor"};
  return reduction >= 0 && reduction < SHERD_NUM_REDUCTIONS ? kNames[reduction]
                                                            : "?";
}

// In the word of a call: 1 + the number of the type, 0 for none.
constexpr int kTypeShift = 8;
constexpr uint64_t kTypeMask = uint64_t{0xff} << kTypeShift;

int32_t OperationOf(const ShmArrival& arrival) {
  return static_cast<int32_t>(arrival.call & 0xff);
}

uint64_t TypeOf(const ShmArrival& arrival) {
  return (arrival.call & kTypeMask) >> kTypeShift;
}

// What `bytes` is where all ranks give the same, else 0. Of an all_to_all
// without lists, a block; one with lists is another call.
uint64_t CommonSize(const ShmArrival& arrival) {
  const int32_t op = OperationOf(arrival);
  if (HasCommonSize(op)) return arrival.bytes;
  return op == SHERD_ALL_TO_ALL_V && (arrival.longest & kEvenEntries) != 0
             ? arrival.longest & ~kReadDirectly
             : 0;
}

// "all_reduce of 8 bytes, float32, sum".
std::string Describe(const ShmArrival& arrival) {
  const int32_t op = OperationOf(arrival);
  std::string text = NameOf(op);
  if (HasCommonSize(op)) {
    text += " of " + std::to_string(arrival.bytes) + " bytes";
  } else if (op == SHERD_ALL_TO_ALL_V) {
    const uint64_t block = CommonSize(arrival);
    text += block == 0 ? " with lists"
                       : " of " + std::to_string(block & kLengthMask) +
                             " bytes to each rank";
  }
  if (TypeOf(arrival) != 0) {
    text += std::string(", ") +
            DtypeName(static_cast<int32_t>(TypeOf(arrival)) - 1);
  }
  if (IsReduction(op)) {
    text += std::string(", ") + ReductionName(arrival.call >> 16 & 0xff);
  }
  if (IsRooted(op)) {
    text += ", root " + std::to_string(static_cast<int>(arrival.call >> 32));
  }
  return text;
}

// The lengths of one collective, by every rank's account.
class Lengths {
 public:
  Lengths(const ShmSegment& segment, uint64_t operation, const sherd_op_v0& op)
      : segment_(segment), operation_(operation), op_(op) {}

  // Whether a message from `from` to `to` is part of the operation.
  bool Has(int from, int to) const {
    if (from == to) return false;
    if (op_.op == SHERD_GATHER) return to == op_.root;
    if (op_.op == SHERD_SCATTER) return from == op_.root;
    return true;
  }
  uint64_t Sent(int from, int to) const {
    return op_.op == SHERD_ALL_GATHER_V || op_.op == SHERD_GATHER
               ? segment_.arrival(operation_, from).bytes
               : Listed(from, to);
  }
  // Of the operations in which every rank brings the same list: one entry per
  // rank.
  std::vector<uint64_t> ListOf(int rank) const {
    std::vector<uint64_t> list(segment_.ranks());
    for (int r = 0; r < segment_.ranks(); ++r) {
      list[r] = r == rank ? segment_.arrival(operation_, rank).bytes
                : op_.op == SHERD_ALL_GATHER_V ? Expected(r, rank)
                                               : Sent(rank, r);
    }
    return list;
  }
  uint64_t Expected(int from, int to) const {
    return op_.op == SHERD_REDUCE_SCATTER || op_.op == SHERD_SCATTER
               ? segment_.arrival(operation_, to).bytes
               : Listed(to, segment_.ranks() + from);
  }

 private:
  uint64_t Listed(int rank, int index) const {
    const uint64_t longest = segment_.arrival(operation_, rank).longest;
    return (longest & kEvenEntries) != 0
               ? longest & kLengthMask
               : segment_.lengths(operation_, rank)[index];
  }

  const ShmSegment& segment_;
  const uint64_t operation_;
  const sherd_op_v0& op_;
};

// But for the type.
bool SameCall(const ShmArrival& a, const ShmArrival& b) {
  return ((a.call ^ b.call) & ~kTypeMask) == 0 &&
         CommonSize(a) == CommonSize(b);
}

// Fails with a difference in what rank r called: values[r], described by
// describe(r).
template <typename Value>
sherd_code ReportDeviation(const std::vector<std::optional<Value>>& values,
                           const std::function<std::string(int)>& describe,
                           sherd_error_v0* error) {
  const Deviation deviation = FindDeviation(values);
  return Fail(error, SHERD_INVALID_ARGUMENT, deviation.Rank().value_or(-1),
              ("the ranks made different calls: " +
               deviation.ToText("called", describe))
                  .c_str());
}

sherd_code ReportDifference(const ShmSegment& segment, uint64_t operation,
                            sherd_error_v0* error) {
  using Value = std::pair<uint64_t, uint64_t>;
  std::vector<std::optional<Value>> values(segment.ranks());
  std::vector<std::optional<uint64_t>> types(segment.ranks());
  for (int r = 0; r < segment.ranks(); ++r) {
    const ShmArrival& arrival = segment.arrival(operation, r);
    values[r] = {arrival.call & ~kTypeMask, CommonSize(arrival)};
    if (TypeOf(arrival) != 0) types[r] = TypeOf(arrival);
  }
  const auto describe = [&](int r) {
    return Describe(segment.arrival(operation, r));
  };
  return FindDeviation(values).Exists()
             ? ReportDeviation(values, describe, error)
             : ReportDeviation(types, describe, error);
}

// "all_gather_v of 8, 0, 8 bytes".
sherd_code ReportLists(const ShmSegment& segment, const Lengths& lengths,
                       const sherd_op_v0& op, sherd_error_v0* error) {
  std::vector<std::optional<std::vector<uint64_t>>> lists(segment.ranks());
  for (int r = 0; r < segment.ranks(); ++r) lists[r] = lengths.ListOf(r);
  return ReportDeviation(
      lists,
      [&](int r) {
        constexpr size_t kMost = 8;
        const std::vector<uint64_t>& list = *lists[r];
        std::string text = NameOf(op.op);
        for (size_t i = 0; i < std::min(list.size(), kMost); ++i) {
          text += (i == 0 ? " of " : ", ") + std::to_string(list[i]);
        }
        return text + (list.size() > kMost ? ", … bytes" : " bytes");
      },
      error);
}

sherd_code CompareLengths(const ShmSegment& segment, const Lengths& lengths,
                          const sherd_op_v0& op, sherd_error_v0* error) {
  for (int from = 0; from < segment.ranks(); ++from) {
    for (int to = 0; to < segment.ranks(); ++to) {
      if (!lengths.Has(from, to)) continue;
      const uint64_t sent = lengths.Sent(from, to);
      const uint64_t expected = lengths.Expected(from, to);
      if (sent == expected) continue;
      if (op.op == SHERD_ALL_GATHER_V || op.op == SHERD_REDUCE_SCATTER) {
        return ReportLists(segment, lengths, op, error);
      }
      return Fail(
          error, SHERD_INVALID_ARGUMENT, -1,
          ("the ranks made different calls: rank " + std::to_string(from) +
           " sends " + std::to_string(sent) + " bytes to rank " +
           std::to_string(to) + " in " + NameOf(op.op) + ", which expects " +
           std::to_string(expected))
              .c_str());
    }
  }
  return SHERD_OK;
}

}  // namespace

uint64_t PackCall(const sherd_op_v0& op) {
  uint64_t call = static_cast<uint64_t>(op.op);
  const bool reduces = IsReduction(op.op);
  if (reduces) call |= static_cast<uint64_t>(op.reduction) << 16;
  if (reduces || (op.flags & SHERD_OP_TYPED) != 0) {
    call |= (1 + static_cast<uint64_t>(op.dtype)) << kTypeShift;
  }
  if (IsRooted(op.op)) call |= static_cast<uint64_t>(op.root) << 32;
  return call;
}

bool HasLengths(int32_t op) {
  return op == SHERD_ALL_TO_ALL_V || op == SHERD_REDUCE_SCATTER ||
         op == SHERD_ALL_GATHER_V || op == SHERD_GATHER || op == SHERD_SCATTER;
}

void WriteCall(const ShmSegment& segment, uint64_t operation, int rank,
               const sherd_op_v0& op) {
  ShmArrival& arrival = segment.arrival(operation, rank);
  arrival.call = PackCall(op);
  arrival.bytes = op.bytes;
  arrival.longest = op.bytes;
  if (!HasLengths(op.op)) return;

  const int ranks = segment.ranks();
  const bool root = rank == op.root;
  const bool sends_listed = op.op == SHERD_ALL_TO_ALL_V ||
                            op.op == SHERD_REDUCE_SCATTER ||
                            (op.op == SHERD_SCATTER && root);
  const bool recvs_listed = op.op == SHERD_ALL_TO_ALL_V ||
                            op.op == SHERD_ALL_GATHER_V ||
                            (op.op == SHERD_GATHER && root);
  if (!sends_listed && !recvs_listed) return;
  if ((op.flags & SHERD_OP_EVEN) != 0) {
    // A rank's own entry may be empty, since it is none of the plugin's.
    const int other = rank == 0 ? 1 : 0;
    arrival.longest =
        kEvenEntries | (sends_listed ? op.sends[other] : op.recvs[other]).size;
    return;
  }
  uint64_t longest = 0;
  uint64_t* const lengths = segment.lengths(operation, rank);
  for (int r = 0; r < ranks; ++r) {
    lengths[r] = sends_listed ? op.sends[r].size : 0;
    lengths[ranks + r] = recvs_listed ? op.recvs[r].size : 0;
    if (r == rank) continue;
    longest = std::max({longest, lengths[r], lengths[ranks + r]});
  }
  if (op.op == SHERD_ALL_GATHER_V || op.op == SHERD_REDUCE_SCATTER) {
    longest = std::max(longest, op.bytes);
  }
  arrival.longest = longest;
}

sherd_code CompareCalls(const ShmSegment& segment, uint64_t operation, int rank,
                        const sherd_op_v0& op, sherd_error_v0* error) {
  const ShmArrival& own = segment.arrival(operation, rank);
  const uint64_t length = own.longest & ~kReadDirectly;
  bool all_equal = (length & kEvenEntries) != 0;
  uint64_t type = TypeOf(own);
  for (int r = 0; r < segment.ranks(); ++r) {
    const ShmArrival& other = segment.arrival(operation, r);
    const uint64_t its_type = TypeOf(other);
    if (type == 0) type = its_type;
    if (!SameCall(own, other) || (its_type != 0 && its_type != type)) {
      return ReportDifference(segment, operation, error);
    }
    all_equal =
        all_equal && (other.longest & ~kReadDirectly) == length &&
        (op.op == SHERD_ALL_TO_ALL_V || other.bytes == (length & kLengthMask));
  }
  if (!HasLengths(op.op) || all_equal) return SHERD_OK;
  return CompareLengths(segment, Lengths(segment, operation, op), op, error);
}

uint64_t LongestInBoxes(const ShmSegment& segment, uint64_t operation) {
  uint64_t longest = 0;
  for (int r = 0; r < segment.ranks(); ++r) {
    const uint64_t word = segment.arrival(operation, r).longest;
    if ((word & kReadDirectly) != 0) continue;
    longest = std::max(longest, word & kLengthMask);
  }
  return longest;
}

}  // namespace sherd::internal
