#ifndef SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_FUNCTIONS_H_
#define SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_FUNCTIONS_H_

#include <cstddef>

#include "sherd/backends/nccl/nccl_api.h"

// The emulated NCCL: functions of nccl.h with its meaning, over emulated GPUs
// and shared memory, for the ranks of one host and PID namespace.
//
// As in NCCL. Operations run later, on streams, one after another for each
// communicator; a group runs at its end; a first collective waits on the host
// until all peers have called theirs; non-blocking communicators return
// kNcclInProgress at least once, and queue an operation only after the caller
// has polled; a rank that dies or aborts leaves its peers waiting until they
// abort too; arguments are checked where NCCL checks them, with its error
// texts.
//
// A child of a non-blocking communicator is stored where the call specified by
// the first ncclCommGetAsyncError of the parent that reports another state than
// kNcclInProgress, or by its ncclCommAbort; not before, even if `state=` keeps
// the parent in progress forever.
//
// ncclCommAbort waits for work that another call has left to a thread: the
// creation of a child, which it ends, and the rest of a revoke, which lasts
// until no operation is in flight.
//
// Stricter than NCCL. A send ends only when it was received. Calls that
// contradict one another, communicators that are used after their end (or after
// an ncclCommAbort or ncclCommDestroy that a fault made fail), and buffers that
// overlap and are not in place, are findings (control.h).
//
// Faults (faults.h), beside those of every function:
//   ncclCommInitRankConfig:*:remote+mismatch+eager+alone
//                                                    see NcclSettings
//   ncclGetVersion:*:version=21805                   pretends this version
//   ncclAllReduce:2:die_running                      the process is killed in
//                                                    the middle (every
//                                                    operation knows this)
//   ncclCommGetAsyncError:5:async=6                  the communicator fails
//                                                    from then on
//   ncclCommGetAsyncError(work 1):*:state=7          it reports 7, whatever
//                                                    the communicator's state
//   ncclGetLastError:*:any text                      the text that it returns
//   ncclCommInitRankConfig:1:hang                    never ready; ends by abort
//
// In the text of a call a communicator is called after how it was made, and the
// rank that the first one of its family tree had: "base 1" by an init, "work 1"
// by a split if it blocks, else "split 1"; "shrunk 1".
//
// libsherd_emulated_old_nccl.so, in place of libsherd_emulated_gpu.so, has the
// functions of NCCL 2.18 only.
namespace sherd::testing {

// The functions of SHERD_NCCL_FUNCTIONS.
::sherd::internal::NcclApi EmulatedNccl();

}  // namespace sherd::testing

extern "C" {

// Further functions of nccl.h, beside SHERD_NCCL_FUNCTIONS.
sherd::internal::NcclResult ncclCommInitRank(sherd::internal::NcclComm* comm,
                                             int num_ranks,
                                             sherd::internal::NcclUniqueId id,
                                             int rank);
sherd::internal::NcclResult ncclCommCount(sherd::internal::NcclComm comm,
                                          int* count);
sherd::internal::NcclResult ncclCommUserRank(sherd::internal::NcclComm comm,
                                             int* rank);
sherd::internal::NcclResult ncclCommCuDevice(sherd::internal::NcclComm comm,
                                             int* device);
sherd::internal::NcclResult ncclBcast(void* buffer, size_t count,
                                      sherd::internal::NcclDataType type,
                                      int root, sherd::internal::NcclComm comm,
                                      sherd::internal::NcclStream stream);
sherd::internal::NcclResult ncclAlltoAll(const void* in, void* out,
                                         size_t count,
                                         sherd::internal::NcclDataType type,
                                         sherd::internal::NcclComm comm,
                                         sherd::internal::NcclStream stream);
sherd::internal::NcclResult ncclGather(const void* in, void* out, size_t count,
                                       sherd::internal::NcclDataType type,
                                       int root, sherd::internal::NcclComm comm,
                                       sherd::internal::NcclStream stream);
sherd::internal::NcclResult ncclScatter(const void* in, void* out, size_t count,
                                        sherd::internal::NcclDataType type,
                                        int root,
                                        sherd::internal::NcclComm comm,
                                        sherd::internal::NcclStream stream);
sherd::internal::NcclResult ncclRedOpCreatePreMulSum(
    sherd::internal::NcclRedOp* op, void* scalar,
    sherd::internal::NcclDataType type, int residence,
    sherd::internal::NcclComm comm);
sherd::internal::NcclResult ncclRedOpDestroy(sherd::internal::NcclRedOp op,
                                             sherd::internal::NcclComm comm);

}  // extern "C"

#endif  // SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_FUNCTIONS_H_
