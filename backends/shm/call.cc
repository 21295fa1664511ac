#include "sherd/backends/shm/call.h"

#include <algorithm>
#include <cstdio>

#include "sherd/backends/plugin_error.h"

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

// "all_reduce of 8 bytes, float32, sum".
void Describe(const ShmArrival& arrival, char* text, size_t size) {
  const auto op = static_cast<int32_t>(arrival.call & 0xff);
  int length = std::snprintf(text, size, "%s", NameOf(op));
  const auto append = [&](const char* format, auto... values) {
    if (length < 0 || static_cast<size_t>(length) >= size) return;
    length += std::snprintf(text + length, size - length, format, values...);
  };
  if (HasCommonSize(op)) {
    append(" of %llu bytes", static_cast<unsigned long long>(arrival.bytes));
  }
  if (IsReduction(op)) {
    append(", %s, %s", DtypeName(arrival.call >> 8 & 0xff),
           ReductionName(arrival.call >> 16 & 0xff));
  }
  if (IsRooted(op)) append(", root %d", static_cast<int>(arrival.call >> 32));
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

bool SameCall(const ShmArrival& a, const ShmArrival& b) {
  return a.call == b.call &&
         (!HasCommonSize(static_cast<int32_t>(a.call & 0xff)) ||
          a.bytes == b.bytes);
}

// The rank whose call most ranks share; of several the lowest.
int FindMajority(const ShmSegment& segment, uint64_t operation) {
  int best = 0;
  int best_count = 0;
  for (int r = 0; r < segment.ranks(); ++r) {
    int count = 0;
    for (int k = 0; k < segment.ranks(); ++k) {
      count += SameCall(segment.arrival(operation, r),
                        segment.arrival(operation, k));
    }
    if (count > best_count) {
      best = r;
      best_count = count;
    }
  }
  return best;
}

sherd_code ReportDifference(const ShmSegment& segment, uint64_t operation,
                            sherd_error_v0* error) {
  const int majority = FindMajority(segment, operation);
  const ShmArrival& usual = segment.arrival(operation, majority);
  int culprit = 0;
  while (SameCall(usual, segment.arrival(operation, culprit))) ++culprit;
  char theirs[96], others[96], text[240];
  Describe(segment.arrival(operation, culprit), theirs, sizeof(theirs));
  Describe(usual, others, sizeof(others));
  std::snprintf(text, sizeof(text), "called %s; rank %d called %s", theirs,
                majority, others);
  return Fail(error, SHERD_INVALID_ARGUMENT, culprit, text);
}

sherd_code CompareLengths(const Lengths& lengths, int ranks,
                          sherd_error_v0* error) {
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) {
      if (!lengths.Has(from, to)) continue;
      const auto sent = static_cast<unsigned long long>(lengths.Sent(from, to));
      const auto expected =
          static_cast<unsigned long long>(lengths.Expected(from, to));
      if (sent == expected) continue;
      char text[160];
      std::snprintf(text, sizeof(text),
                    "sends %llu bytes to rank %d, which expects %llu", sent, to,
                    expected);
      return Fail(error, SHERD_INVALID_ARGUMENT, from, text);
    }
  }
  return SHERD_OK;
}

}  // namespace

uint64_t PackCall(const sherd_op_v0& op) {
  uint64_t call = static_cast<uint64_t>(op.op);
  if (IsReduction(op.op)) {
    call |= static_cast<uint64_t>(op.dtype) << 8 |
            static_cast<uint64_t>(op.reduction) << 16;
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
  for (int r = 0; r < segment.ranks(); ++r) {
    const ShmArrival& other = segment.arrival(operation, r);
    if (!SameCall(own, other)) {
      return ReportDifference(segment, operation, error);
    }
    all_equal =
        all_equal && (other.longest & ~kReadDirectly) == length &&
        (op.op == SHERD_ALL_TO_ALL_V || other.bytes == (length & kLengthMask));
  }
  if (!HasLengths(op.op) || all_equal) return SHERD_OK;
  return CompareLengths(Lengths(segment, operation, op), segment.ranks(),
                        error);
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
