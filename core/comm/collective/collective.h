#ifndef SHERD_CORE_COMM_COLLECTIVE_COLLECTIVE_H_
#define SHERD_CORE_COMM_COLLECTIVE_COLLECTIVE_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/collective/operations.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd {

// "barrier", "broadcast", "all_gather", "all_to_all_v", …, as in the public
// interface.
absl::string_view Name(CollectiveOp op);

// Bytes to send or a place to receive them.
using ConstBytes = absl::Span<const std::byte>;
using MutableBytes = absl::Span<std::byte>;

// A call of a group: a valid collective, or a message to one rank. The methods
// of ProcessGroup create it and check every field; the code that compares,
// records, emulates, queues and carries out calls reads it.
//
// Which fields an operation uses (P = group size); backends/backend_abi.h
// describes each in detail:
//   barrier         none
//   broadcast       buffer = out[0, bytes), root
//   all_gather      in[0, bytes), out[0, P * bytes)
//   all_to_all_v    sends[P], recvs[P]; entry r goes to, or comes from, rank r;
//                   an empty entry is not a message; entry `rank` has been
//                   copied by the host and is empty
//   all_reduce      in[0, bytes), out[0, bytes), dtype, reduction
//   reduce          the same, root; only root has out
//   reduce_scatter  sends[P], out[0, bytes), dtype, reduction
//   all_gather_v    in[0, bytes), recvs[P]
//   gather          in[0, bytes), root; recvs[P] on root, empty elsewhere
//   scatter         out[0, bytes), root; sends[P] on root, empty elsewhere
//   send            in[0, bytes), root = destination, tag
//   recv            out[0, bytes), root = source, tag
struct Collective {
  CollectiveOp op = CollectiveOp::kBarrier;
  int root = 0;
  const void* in = nullptr;
  void* out = nullptr;
  uint64_t bytes = 0;
  absl::Span<const ConstBytes> sends = {};
  absl::Span<const MutableBytes> recvs = {};
  DType dtype = DType::kUInt8;
  // dtype is the type of the elements, even of an operation that only moves
  // them. Always true for a reduction.
  bool typed = false;
  ReduceOp reduction = ReduceOp::kSum;
  int64_t tag = 0;
  // Entries have one length and are contiguous in memory.
  bool even = false;
  // Counts the calls of the group, the same on all ranks; for send and recv
  // this rank's own count of them.
  uint64_t sequence = 0;
  Deadline deadline = Deadline::Infinite();
  // Memory is that of a device, and the operation is to be queued on `stream`,
  // the vendor's handle.
  bool on_device = false;
  void* stream = nullptr;
};

// Whether a collective moves nothing on any rank: a length that is the same on
// all of them is 0.
bool MovesNothing(const Collective& desc);

// The substitute for a collective that moves nothing, where the backend must
// not be given one: a barrier.
Collective InPlaceOfNothing(const Collective& desc);

}  // namespace sherd

#endif  // SHERD_CORE_COMM_COLLECTIVE_COLLECTIVE_H_
