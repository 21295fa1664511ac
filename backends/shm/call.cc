#include "sherd/backends/shm/call.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "sherd/backends/call_fields.h"
#include "sherd/backends/plugin.h"
#include "sherd/core/comm/collective/call_signature.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

// The call that an arrival announces.
CallSignature SignatureOf(const ShmArrival& arrival) {
  CallSignature signature = {.kind = arrival.call};
  if ((arrival.call & CallSignature::kEqualBlocks) != 0) {
    signature.bytes = arrival.longest & kLengthMask;
  } else if (signature.traits() != nullptr &&
             signature.traits()->has_common_bytes) {
    signature.bytes = arrival.bytes;
  }
  return signature;
}

// The lengths of one collective, as every rank passed them.
class Lengths {
 public:
  Lengths(const ShmSegment& segment, uint64_t operation, const sherd_op_v0& op)
      : segment_(segment), operation_(operation), op_(op) {}

  // Between `rank` and `peer`, as `rank` has them.
  MessageLengths Between(int rank, int peer) const {
    const CallFields call = {.op = op_.op,
                             .root = op_.root,
                             .bytes = segment_.arrival(operation_, rank).bytes};
    return LengthsWith(
        peer, rank, call, [&](int to) { return Listed(rank, to); },
        [&](int from) { return Listed(rank, segment_.ranks() + from); });
  }

  // Entry i of the list that `rank` passed, in an operation in which all ranks
  // pass equal lists. Its own entry is left empty there.
  uint64_t Entry(int rank, int i) const {
    const ShmArrival& arrival = segment_.arrival(operation_, rank);
    if (i == rank) return arrival.bytes;
    // Its call may differ from this rank's.
    const bool receives = SignatureOf(arrival).op() == SHERD_ALL_GATHER_V;
    return Listed(rank, receives ? segment_.ranks() + i : i);
  }
  std::vector<uint64_t> ListOf(int rank) const {
    std::vector<uint64_t> list(segment_.ranks());
    for (int i = 0; i < segment_.ranks(); ++i) list[i] = Entry(rank, i);
    return list;
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

sherd_code Report(const CallDifference& difference, sherd_error_v0* error) {
  return Fail(error, SHERD_INVALID_ARGUMENT, difference.rank.value_or(-1),
              difference.text.c_str());
}

// Fails if the ranks' calls, or the lists that they have in common, differ.
sherd_code ReportDifference(const ShmSegment& segment, uint64_t operation,
                            const Lengths& lengths, sherd_error_v0* error) {
  std::vector<std::optional<CallSignature>> calls;
  for (int r = 0; r < segment.ranks(); ++r) {
    calls.emplace_back(SignatureOf(segment.arrival(operation, r)));
  }
  const std::optional<CallDifference> difference =
      FindDifference(calls, [&](int r) { return lengths.ListOf(r); });
  return difference ? Report(*difference, error) : SHERD_OK;
}

bool HaveOneList(const ShmSegment& segment, const Lengths& lengths) {
  for (int r = 1; r < segment.ranks(); ++r) {
    for (int i = 0; i < segment.ranks(); ++i) {
      if (lengths.Entry(r, i) != lengths.Entry(0, i)) return false;
    }
  }
  return true;
}

sherd_code CompareMessages(const ShmSegment& segment, const Lengths& lengths,
                           const sherd_op_v0& op, sherd_error_v0* error) {
  for (int from = 0; from < segment.ranks(); ++from) {
    for (int to = 0; to < segment.ranks(); ++to) {
      if (from == to) continue;
      const uint64_t sent = lengths.Between(from, to).sent;
      const uint64_t expected = lengths.Between(to, from).expected;
      if (sent == expected) continue;
      return Report(DifferenceOfLengths(op.op, from, sent, to, expected),
                    error);
    }
  }
  return SHERD_OK;
}

// Whether ranks pass lengths beside the operation's own.
bool HasLengths(int32_t op) {
  return kOperationTraits[op].lists != OperationLists::kNone;
}

}  // namespace

void WriteCall(const ShmSegment& segment, uint64_t operation, int rank,
               const sherd_op_v0& op) {
  ShmArrival& arrival = segment.arrival(operation, rank);
  arrival.call = SignatureOf(FieldsOf(op, rank)).kind;
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
    // A rank's own entry may be empty, since the host copies it.
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
  const Lengths lengths(segment, operation, op);
  const ShmArrival& own = segment.arrival(operation, rank);
  const uint64_t length = own.longest & ~kReadDirectly;
  bool all_equal = (length & kEvenEntries) != 0;
  CallAgreement agreement(SignatureOf(own));
  for (int r = 0; r < segment.ranks(); ++r) {
    const ShmArrival& other = segment.arrival(operation, r);
    if (!agreement.Fits(SignatureOf(other))) {
      return ReportDifference(segment, operation, lengths, error);
    }
    all_equal =
        all_equal && (other.longest & ~kReadDirectly) == length &&
        (op.op == SHERD_ALL_TO_ALL_V || other.bytes == (length & kLengthMask));
  }
  if (!HasLengths(op.op) || all_equal) return SHERD_OK;
  if (kOperationTraits[op.op].lists == OperationLists::kPairs) {
    return CompareMessages(segment, lengths, op, error);
  }
  return HaveOneList(segment, lengths)
             ? SHERD_OK
             : ReportDifference(segment, operation, lengths, error);
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
