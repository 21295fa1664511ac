#ifndef SHERD_CORE_COMM_COLLECTIVE_COLLECTIVE_CALL_H_
#define SHERD_CORE_COMM_COLLECTIVE_COLLECTIVE_CALL_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd::internal {

// A call of a ProcessGroup's method as an operation, and whether it obeys the
// rules that can be checked without another rank: the same rules, and the same
// messages, for all backends. The comments of ProcessGroup state them.
struct CollectiveCall {
  Collective desc;
  // OK, or kInvalidArgument with the expectation that was violated; or the
  // error of CheckReduction.
  absl::Status valid;
};

// The caller's.
struct Place {
  int rank;
  int size;
};

// How a reduction treats the elements.
struct Elements {
  DType dtype;
  ReduceOp reduction;
};

// For a call that only moves elements: records that they are of `dtype`, if
// set.
inline void SetType(std::optional<DType> dtype, CollectiveCall& call) {
  if (!dtype || IsReduction(call.desc.op)) return;
  call.desc.dtype = *dtype;
  call.desc.typed = true;
}

// No buffer is accessed, and only pointers are kept. Forms with one contiguous
// buffer of equal blocks leave the lists empty and set `even`.
CollectiveCall BarrierCall();
CollectiveCall BroadcastCall(Place place, MutableBytes buffer, int root);
CollectiveCall AllReduceCall(Elements elements, ConstBytes send,
                             MutableBytes recv);
CollectiveCall ReduceCall(Place place, Elements elements, ConstBytes send,
                          MutableBytes recv, int root);
CollectiveCall ReduceScatterCall(Place place, Elements elements,
                                 ConstBytes send, MutableBytes recv);
CollectiveCall ReduceScatterVCall(Place place, Elements elements,
                                  absl::Span<const ConstBytes> sends,
                                  MutableBytes recv);
CollectiveCall AllGatherCall(Place place, ConstBytes send, MutableBytes recv);
CollectiveCall AllGatherVCall(Place place, ConstBytes send,
                              absl::Span<const MutableBytes> recvs);
CollectiveCall GatherCall(Place place, ConstBytes send, MutableBytes recv,
                          int root);
CollectiveCall GatherVCall(Place place, ConstBytes send,
                           absl::Span<const MutableBytes> recvs, int root);
CollectiveCall ScatterCall(Place place, ConstBytes send, MutableBytes recv,
                           int root);
CollectiveCall ScatterVCall(Place place, absl::Span<const ConstBytes> sends,
                            MutableBytes recv, int root);
CollectiveCall AllToAllCall(Place place, ConstBytes send, MutableBytes recv);
CollectiveCall AllToAllVCall(Place place, absl::Span<const ConstBytes> sends,
                             absl::Span<const MutableBytes> recvs);
CollectiveCall SendCall(Place place, ConstBytes send, int destination,
                        int64_t tag);
CollectiveCall RecvCall(Place place, MutableBytes recv, int source,
                        int64_t tag);

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_COLLECTIVE_COLLECTIVE_CALL_H_
