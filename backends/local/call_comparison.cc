#include "sherd/backends/local/call_comparison.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "sherd/backends/call_fields.h"

namespace sherd::internal {
namespace {

using Calls = std::vector<const sherd_op_v0*>;

// The list of an operation in which all ranks have equal lists, or null.
const sherd_bytes_v0* CommonList(const sherd_op_v0& op) {
  switch (kOperationTraits[op.op].lists) {
    case OperationLists::kSameSends:
      return op.sends;
    case OperationLists::kSameRecvs:
      return op.recvs;
    default:
      return nullptr;
  }
}

CallSignature SignatureOf(const Calls& calls, size_t rank) {
  return internal::SignatureOf(FieldsOf(*calls[rank], static_cast<int>(rank)));
}

// Whether there is no difference but perhaps in the lengths of messages,
// without memory of its own.
bool Fit(const Calls& calls) {
  CallAgreement agreement(SignatureOf(calls, 0));
  for (size_t r = 1; r < calls.size(); ++r) {
    if (!agreement.Fits(SignatureOf(calls, r))) return false;
    const sherd_bytes_v0* const list = CommonList(*calls[0]);
    if (list != nullptr &&
        !std::equal(
            list, list + calls.size(), CommonList(*calls[r]),
            [](const auto& a, const auto& b) { return a.size == b.size; })) {
      return false;
    }
  }
  return true;
}

// Between `rank` and `peer`, as `rank` has them.
MessageLengths LengthsBetween(const Calls& calls, int rank, int peer) {
  const sherd_op_v0& op = *calls[rank];
  return LengthsWith(
      peer, rank, FieldsOf(op, rank), [&](int to) { return op.sends[to].size; },
      [&](int from) { return op.recvs[from].size; });
}

}  // namespace

std::optional<CallDifference> FindDifference(const Calls& calls) {
  if (!Fit(calls)) {
    std::vector<std::optional<CallSignature>> signatures;
    for (size_t r = 0; r < calls.size(); ++r) {
      signatures.emplace_back(SignatureOf(calls, r));
    }
    return FindDifference(signatures, [&](int r) {
      std::vector<uint64_t> list;
      for (size_t i = 0; i < calls.size(); ++i) {
        list.push_back(CommonList(*calls[r])[i].size);
      }
      return list;
    });
  }
  if (!ComparesMessages(FieldsOf(*calls[0], 0))) return std::nullopt;
  const int ranks = static_cast<int>(calls.size());
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) {
      if (from == to) continue;  // The host has copied it.
      const uint64_t sent = LengthsBetween(calls, from, to).sent;
      const uint64_t expected = LengthsBetween(calls, to, from).expected;
      if (sent == expected) continue;
      return DifferenceOfLengths(calls[0]->op, from, sent, to, expected);
    }
  }
  return std::nullopt;
}

}  // namespace sherd::internal
