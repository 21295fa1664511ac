#ifndef SHERD_CORE_COMM_PROCESS_GROUP_H_
#define SHERD_CORE_COMM_PROCESS_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/cxx_standard.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/channel/peer_memory.h"
#include "sherd/core/comm/collective/typed_collectives.h"
#include "sherd/core/comm/collective_options.h"
#include "sherd/core/comm/counters.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/comm/work.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/storage.h"

namespace sherd {

namespace internal {
class ProcessGroupAccess;
}  // namespace internal

struct ProcessGroupOptions {
  std::string name = "default";
  int rank = 0;
  int size = 1;
  // Shared by all ranks and used by this group only.
  std::shared_ptr<Store> store;
  // For joining, and for each collective unless the call specifies another one.
  absl::Duration timeout = absl::Minutes(5);
  // Called once, when this rank has left the group.
  std::function<void()> on_destroy;
  // Job rank of each rank, and the number of ranks of the job. Empty: the group
  // is the job.
  std::vector<int> world_ranks;
  int world_size = 0;
  // Numeric address on which to listen. Empty: the loopback, for ranks that
  // share one.
  std::string bind_address;
  // When the group must be established. Unset: after `timeout`.
  std::optional<Deadline> join_deadline;
  // The process of each rank, as recorded by a group that contains them all: a
  // process that has ended is not waited for. Empty: not known.
  std::vector<std::string> processes;
  // The backend for the memory of a device; outlives the group. Set on all
  // ranks or on none. Null: the group has no device part.
  const Backend* device_backend = nullptr;
  // This rank's device, of the type of device_backend; with an index.
  Device device;
};

struct NewGroupOptions {
  // Unset: the parent's.
  std::optional<absl::Duration> timeout;
  // Whether a group of a parent with a device part has one too, which takes
  // memory of the device. The same on all ranks of the new group.
  bool with_devices = true;
};

// An ordered set of ranks that call collectives together.
//
// Collective calls. Every rank of the group makes the same calls in the same
// order; Send and Recv are not part of that order. Lengths are bytes, even
// where elements are summed; P is size(), and ranks are those of this group.
//
// Comparison. All calls are compared between ranks before any data moves. A
// call of 0 bytes is compared like any other, and waits for the same ranks as a
// call with data. README.md has a table of the properties that are compared and
// of the handling of the others.
//
// Elements. group.Foo<float>(…) is Foo over spans of elements instead of bytes,
// whose lengths count elements: see typed_collectives.h.
//
// Twins. FooAsync does what Foo does and returns at once; asynchronous calls
// run in the order in which they were made, and a synchronous one waits for
// them. Buffers and lists are borrowed until the call returned or the Work
// ended; lists are read until then.
//
// Overlap. A receive buffer overlaps no other buffer of the call, except in the
// in-place forms that a call documents: otherwise the call returns
// kInvalidArgument. Send buffers may overlap each other. Buffers of different
// calls that are pending at the same time are not checked.
//
// Devices. A group may have a device part beside its host part. With
// CollectiveOptions::device all buffers of a call are in the memory of this
// rank's device(), and an operation is work on one of its streams:
//   Foo       queues it on the calling thread's CurrentStream of the device and
//             returns: OK means that it is queued. Work queued later on the
//             stream sees the result; the host waits with Synchronize().
//   FooAsync  queues it on a stream of the group, behind what the current
//             stream holds; Work::WaitOnStream() lets the current stream wait
//             for it, Work::Wait() the host.
// Operations of a group run in the order of the calls, on any streams. Send and
// Recv on a device are part of that order, too, and equal tags of two ranks
// match in it; two ranks that both send and receive do it in one Batch. Buffers
// stay valid until the operation has ended; lists may be destroyed when the
// call has returned. Every operation ends within its deadline, counted from the
// call. At the deadline, and when a rank fails or made another call, the group
// is poisoned and the streams continue with receive buffers unspecified;
// Synchronize(), Work and every later call return the cause. Operations on a
// stream that is captured into a graph are not watched and have no deadline;
// FooAsync joins the graph by WaitOnStream(). Destroy all graphs before calling
// Destroy(), even after a failure: it waits in vain for graphs that still
// exist. Do not launch a graph of a poisoned group again.
//
// Errors. No call throws. The ErrorInfo of an error carries group, operation,
// sequence number and, where known, the failed rank:
//   kInvalidArgument     Buffers, root, type or their number do not fit the
//                        rules of the call: nothing was sent, no buffer was
//                        written, the group stays usable; peers whose call was
//                        valid wait for this rank until their deadline. Or the
//                        call contradicts another rank's: nothing of a call
//                        that contradicts this one was written, and the group
//                        is poisoned. FailedRank() is the one whose call
//                        differs from the majority's; in a draw, as between two
//                        ranks, it is unset, and the message lists each rank's
//                        call. A rank that needs nothing from the deviating one
//                        may get the error only in its next call.
//   kUnimplemented       PathOf returns kUnsupported. The group stays usable.
//   kUnavailable         A rank died or exited. The group is poisoned.
//   kDeadlineExceeded    The call timed out; the message names the ranks that
//                        did not make it. The group is poisoned.
//   kFailedPrecondition  The group is poisoned or destroyed, or this process is
//                        not a member; the message holds the first cause, and
//                        its rank is the root cause.
// After an error that poisons, receive buffers are unspecified unless
// documented otherwise, every later call fails at once and only Destroy(),
// NewGroup() and Shrink() are useful. IsRankFailure(status) returns whether
// these help. Where the ranks of the group are not those of the job, messages
// give both.
//
// Threads. Calls may come from any thread, but calls that may overlap must be
// ordered by the caller, because ranks must agree on the order. Send and Recv
// may overlap with all calls. On devices, where a running operation occupies
// its resources until it ends, this holds across groups: ranks that share
// several groups on a device make the calls of these groups in one order.
//
// Last handle. Any function that runs outside of the group's calls may drop it,
// on any thread. Threads of the program, and the group's own, destroy the group
// in place; where another thread of the library drops it, and in a log sink,
// the group is destroyed afterwards on a thread of its own, for which exit()
// waits up to ten seconds.
class ProcessGroup : public internal::TypedCollectives<ProcessGroup> {
 public:
  // Connects this rank to the ranks that share `store`. Collective: returns
  // once all of them have called it, or at the deadline. Users call Init.
  // `backend` outlives the group.
  //   kDeadlineExceeded   Some ranks did not come; named.
  //   kInvalidArgument    Ranks pass different world sizes, or a rank is taken:
  //                       the store is left over from another run.
  //   kUnavailable        The process of rank 0 ended meanwhile, or one of
  //                       options.processes before its rank joined.
  static absl::StatusOr<std::shared_ptr<ProcessGroup>> Create(
      const Backend& backend, ProcessGroupOptions options);

  // A group of some ranks of this one.
  //
  // `ranks` are ranks of this group, ascending; rank ranks[i] is rank i of the
  // new group. Collective over `ranks` alone: others need not call it; if they
  // do, they get at once a handle of a non-member (is_member() is false, rank()
  // is -1) whose operations fail with kFailedPrecondition. Groups may be
  // created in any order; creating the same one again creates another.
  //
  // Works on a poisoned group too: this is how survivors of a failure continue.
  //   kInvalidArgument   A rank is out of range, named twice, or not in order.
  //   kDeadlineExceeded  Some ranks did not come; named.
  //   kUnavailable       A rank's process ended before it joined.
  absl::StatusOr<std::shared_ptr<ProcessGroup>> NewGroup(
      absl::Span<const int> ranks, const NewGroupOptions& options = {});

  // Splits this group into one group per `color`; in each, ranks are ordered by
  // `key`, then by their rank here. A negative color requests no group: the
  // handle is that of a non-member. Collective over this group, which must be
  // usable.
  absl::StatusOr<std::shared_ptr<ProcessGroup>> Split(
      int color, int key, const NewGroupOptions& options = {});

  // Creates a group of the surviving ranks, in their order here. All of them
  // get the same group, or an error.
  //
  // Excluded are ranks that died or exited, that did not call Shrink within
  // half of the timeout, and the one that most of the others' errors name as
  // failed, whether it calls or not. A rank that fails meanwhile is excluded,
  // too. A rank that was slow or stopped but is alive, and calls afterwards,
  // gets an error.
  //
  // Collective over the surviving ranks, which may call at different times and
  // know of different failures, or of none. If a rank was excluded, this group
  // is poisoned afterwards, even if it was not before; it can then only be
  // destroyed, or called again, by the same ranks, for another group. Where the
  // backend's launcher ends all ranks with the first
  // (BackendInfo::dies_together), no rank survives to call it.
  //
  // options.timeout bounds the call and is that of the new group.
  //   kFailedPrecondition  This rank was excluded; the message names the
  //                        survivors. Or it is not a member, or the group was
  //                        destroyed.
  //   kUnavailable         The store in which survivors agree is unreachable:
  //                        that of tcp:// and env:// ends with rank 0.
  //   kDeadlineExceeded    No group was established in time, or the store does
  //                        not answer.
  //   other                This rank could not create the group, though no
  //                        other rank failed.
  //
  // Cost. O(P) operations of the store per rank, and NewGroup.
  absl::StatusOr<std::shared_ptr<ProcessGroup>> Shrink(
      const NewGroupOptions& options = {});

  // Ranks of this group that failed, as far as this rank knows, ascending: the
  // rank named by the error that poisoned the group, ranks of this host whose
  // process ended before it left the group, and ranks that Shrink() excluded.
  // Not collective: only after Shrink() do the survivors know the same ranks.
  std::vector<int> FailedRanks() const;

  // Destroys the group if that has not been done, without waiting for others.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // Number of ranks, at least 1, and this process's rank, in [0, size()), or -1
  // if it is not a member.
  int size() const;
  int rank() const;
  bool is_member() const { return rank() >= 0; }
  const std::string& name() const;
  const BackendInfo& backend() const;

  // The device, with its index, on whose memory this rank's device part works;
  // unset if the group has none or this process is not a member. Ranks may have
  // devices of different numbers.
  std::optional<Device> device() const;
  // Entry r is device() of rank r; empty where device() is unset.
  absl::Span<const Device> devices() const;
  // The backend of operations on device(); null without a device part.
  const BackendInfo* device_backend() const;
  absl::Duration timeout() const;

  // Entry r is the job rank of rank r.
  absl::Span<const int> world_ranks() const;

  // True if all ranks run on this host and see each other's processes.
  bool one_host() const;

  // Entry r is the number of the host of rank r, the same on all ranks: 0 for
  // that of rank 0, and so on in the order of the ranks. Empty for a process
  // that is not a member.
  absl::Span<const int> host_of_rank() const;

  // Entry r describes the process of rank r, as ProcessDescription of
  // core/process/process_identity.h parses it. Empty texts for a process that
  // is not a member.
  absl::Span<const std::string> processes() const;

  // The memory of this rank's peers that it can access: null if the backend
  // does not offer it, the group has one rank, or this process is not a member
  // or has left. Ranks of one group may get different answers, where a system
  // lets one process access another's memory but not the reverse.
  //
  // Lifetime. May outlive the group, and keeps what was imported mapped.
  std::shared_ptr<PeerMemory> peer_memory() const;

  // Allocates memory that peers can reach: memory that peer_memory()->Export()
  // accepts if there is a peer_memory(), otherwise that of HeapAllocator(). The
  // allocator and its memory live forever and may be used in any group.
  Allocator& shard_allocator() const;

  // How `op` is carried out, and for reductions, with these types; on the
  // host's memory or, if `device` is of the type of device(), on that.
  OperationPath PathOf(CollectiveOp op, DType dtype = DType::kFloat32,
                       ReduceOp reduction = ReduceOp::kSum,
                       DeviceType device = DeviceType::kCpu) const;

  // Waits until the host may read the results of this rank's operations on
  // device() that were called so far, and returns the first error of the group.
  // Bounded by their deadlines. Not collective. OK if there is nothing to wait
  // for; not while one of the streams is captured.
  absl::Status Synchronize();

  // Makes the calls on device() that `calls` makes on this group, in their
  // synchronous forms on this thread, one operation: they run together, in any
  // order, and none before `calls` returned; a receive buffer of one of them
  // overlaps no buffer of another. An error of `calls` is returned, and the
  // group is poisoned if calls were made before. Not nested.
  //   kFailedPrecondition  The group has no device part.
  //   kUnimplemented       A call in it is not kNative.
  absl::Status Batch(absl::FunctionRef<absl::Status()> calls);

  // Memory of device() of the kind that operations move fastest once it is
  // registered. Lives forever.
  //   kFailedPrecondition  The group has no device part.
  absl::StatusOr<Allocator*> DeviceAllocator() const;

  // Registers `buffer`, memory of device(), with the backend for frequent use
  // until the result and its copies are destroyed or the group is destroyed;
  // free the memory only after that. Registering the same buffer again shares
  // the registration. Collective if the backend requires it: all ranks call it
  // in the same order, outside of graphs. OK without effect if the backend
  // gains nothing from it.
  absl::StatusOr<std::shared_ptr<const void>> Register(MutableBytes buffer);

  // The forms over elements.
  using TypedCollectives::AllGather;
  using TypedCollectives::AllGatherAsync;
  using TypedCollectives::AllGatherV;
  using TypedCollectives::AllGatherVAsync;
  using TypedCollectives::AllReduce;
  using TypedCollectives::AllReduceAsync;
  using TypedCollectives::AllToAll;
  using TypedCollectives::AllToAllAsync;
  using TypedCollectives::AllToAllV;
  using TypedCollectives::AllToAllVAsync;
  using TypedCollectives::Broadcast;
  using TypedCollectives::BroadcastAsync;
  using TypedCollectives::Gather;
  using TypedCollectives::GatherAsync;
  using TypedCollectives::GatherV;
  using TypedCollectives::GatherVAsync;
  using TypedCollectives::Recv;
  using TypedCollectives::RecvAsync;
  using TypedCollectives::Reduce;
  using TypedCollectives::ReduceAsync;
  using TypedCollectives::ReduceScatter;
  using TypedCollectives::ReduceScatterAsync;
  using TypedCollectives::ReduceScatterV;
  using TypedCollectives::ReduceScatterVAsync;
  using TypedCollectives::Scatter;
  using TypedCollectives::ScatterAsync;
  using TypedCollectives::ScatterV;
  using TypedCollectives::ScatterVAsync;
  using TypedCollectives::Send;
  using TypedCollectives::SendAsync;

  // Returns once every rank has called it.
  absl::Status Barrier(const CollectiveOptions& options = {});
  Work BarrierAsync(const CollectiveOptions& options = {});

  // Copies root's buffer into every rank's.
  //
  // Layout. buffer[i] == (buffer of rank root)[i] on every rank, for
  // 0 <= i < n; n is the same everywhere.
  //
  // Cost. Each rank but root receives n bytes.
  absl::Status Broadcast(MutableBytes buffer, int root,
                         const CollectiveOptions& options = {});
  Work BroadcastAsync(MutableBytes buffer, int root,
                      const CollectiveOptions& options = {});

  // Leaves on every rank the reduction of all ranks' elements.
  //
  // Layout. recv[i] == op over r of (send of rank r)[i], element by element of
  // `dtype`; n = send.size() == recv.size() is the same everywhere. In place if
  // send is recv.
  //
  // Result. The same bits on every rank. Integers wrap; floats of 16 bits and
  // less are summed in 32 and rounded once where the host, shm or local sums
  // (see PathOf and reduction.h).
  //
  // Cost. Each rank receives about 2 n bytes.
  //
  //   kInvalidArgument  dtype has no such reduction.
  //   kUnimplemented    dtype is carried.
  absl::Status AllReduce(ConstBytes send, MutableBytes recv, DType dtype,
                         ReduceOp op, const CollectiveOptions& options = {});
  Work AllReduceAsync(ConstBytes send, MutableBytes recv, DType dtype,
                      ReduceOp op, const CollectiveOptions& options = {});

  // As AllReduce, but only root gets the result. Others pass an empty recv, and
  // their send is unchanged. In place on root if send is recv.
  absl::Status Reduce(ConstBytes send, MutableBytes recv, DType dtype,
                      ReduceOp op, int root,
                      const CollectiveOptions& options = {});
  Work ReduceAsync(ConstBytes send, MutableBytes recv, DType dtype, ReduceOp op,
                   int root, const CollectiveOptions& options = {});

  // Leaves on rank r the reduction of all ranks' block r.
  //
  // Layout. With n = recv.size(), send.size() == P * n: (recv of rank k)[i] ==
  // op over r of (send of rank r)[k * n + i]. In place if recv is this rank's
  // block of send.
  absl::Status ReduceScatter(ConstBytes send, MutableBytes recv, DType dtype,
                             ReduceOp op,
                             const CollectiveOptions& options = {});
  Work ReduceScatterAsync(ConstBytes send, MutableBytes recv, DType dtype,
                          ReduceOp op, const CollectiveOptions& options = {});

  // As ReduceScatter with blocks at any address: rank k gets the reduction of
  // all ranks' sends[k], whose size is the same on all ranks. In place if recv
  // is sends[rank()].
  absl::Status ReduceScatterV(absl::Span<const ConstBytes> sends,
                              MutableBytes recv, DType dtype, ReduceOp op,
                              const CollectiveOptions& options = {});
  Work ReduceScatterVAsync(absl::Span<const ConstBytes> sends,
                           MutableBytes recv, DType dtype, ReduceOp op,
                           const CollectiveOptions& options = {});

  // Leaves every rank's block on every rank, in rank order.
  //
  // Layout. With n = send.size(), the same on every rank, and recv.size() ==
  // P * n:  recv[r * n + i] == (send of rank r)[i], 0 <= r < P, 0 <= i < n.
  // In place if send is this rank's block of recv.
  //
  // Cost. Each rank receives (P - 1) * n bytes.
  absl::Status AllGather(ConstBytes send, MutableBytes recv,
                         const CollectiveOptions& options = {});
  Work AllGatherAsync(ConstBytes send, MutableBytes recv,
                      const CollectiveOptions& options = {});

  // As AllGather with a length per rank: recvs[r] on every rank has the length
  // of rank r's send. In place if send is recvs[rank()].
  absl::Status AllGatherV(ConstBytes send, absl::Span<const MutableBytes> recvs,
                          const CollectiveOptions& options = {});
  Work AllGatherVAsync(ConstBytes send, absl::Span<const MutableBytes> recvs,
                       const CollectiveOptions& options = {});

  // As AllGather, but only root gets the result; others pass an empty recv.
  absl::Status Gather(ConstBytes send, MutableBytes recv, int root,
                      const CollectiveOptions& options = {});
  Work GatherAsync(ConstBytes send, MutableBytes recv, int root,
                   const CollectiveOptions& options = {});

  // As Gather with a length per rank: root's recvs[r] has the length of rank
  // r's send, others pass an empty list.
  absl::Status GatherV(ConstBytes send, absl::Span<const MutableBytes> recvs,
                       int root, const CollectiveOptions& options = {});
  Work GatherVAsync(ConstBytes send, absl::Span<const MutableBytes> recvs,
                    int root, const CollectiveOptions& options = {});

  // Gives rank r block r of root's buffer.
  //
  // Layout. With n = recv.size(), root's send.size() == P * n and others' is
  // empty: (recv of rank r)[i] == (send of root)[r * n + i]. In place on root
  // if recv is its own block of send.
  absl::Status Scatter(ConstBytes send, MutableBytes recv, int root,
                       const CollectiveOptions& options = {});
  Work ScatterAsync(ConstBytes send, MutableBytes recv, int root,
                    const CollectiveOptions& options = {});

  // As Scatter with a length per rank: root's sends[r] has the length of rank
  // r's recv, others pass an empty list.
  absl::Status ScatterV(absl::Span<const ConstBytes> sends, MutableBytes recv,
                        int root, const CollectiveOptions& options = {});
  Work ScatterVAsync(absl::Span<const ConstBytes> sends, MutableBytes recv,
                     int root, const CollectiveOptions& options = {});

  // Gives block r of send to rank r.
  //
  // Layout. With n = send.size() / P == recv.size() / P, the same on every
  // rank: (recv of rank k)[r * n + i] == (send of rank r)[k * n + i]. All ranks
  // call this form, or all call AllToAllV.
  absl::Status AllToAll(ConstBytes send, MutableBytes recv,
                        const CollectiveOptions& options = {});
  Work AllToAllAsync(ConstBytes send, MutableBytes recv,
                     const CollectiveOptions& options = {});

  // Sends sends[r] to rank r and fills recvs[r] from rank r.
  //
  // Layout. Both lists have P entries. recvs[r] on rank k has the length of
  // sends[k] on rank r. An empty entry is not a message. Entries may have any
  // address, so a contiguous piece of a larger array needs no copy. Only the
  // own entry may be in place: sends[rank()] may be recvs[rank()].
  //
  // Cost. Each rank receives the sum of its recvs; its own entry is one
  // memcpy.
  absl::Status AllToAllV(absl::Span<const ConstBytes> sends,
                         absl::Span<const MutableBytes> recvs,
                         const CollectiveOptions& options = {});
  Work AllToAllVAsync(absl::Span<const ConstBytes> sends,
                      absl::Span<const MutableBytes> recvs,
                      const CollectiveOptions& options = {});

  // Sends `send` to rank `destination`, which receives it with Recv and the
  // same tag.
  //
  // Matching. By pair of ranks and tag, in order among equal tags; both ends
  // have the same length, which may be 0. A call may wait for its counterpart,
  // and asynchronous calls to one peer in one direction run one after another:
  // its counterparts are called in the same order. Not a collective: other
  // ranks have no part in it.
  //   kInvalidArgument  The peer is this rank, or the tag is negative or above
  //                     2^31 - 1; or the lengths differ, which poisons.
  absl::Status Send(ConstBytes send, int destination, int64_t tag = 0,
                    const CollectiveOptions& options = {});
  Work SendAsync(ConstBytes send, int destination, int64_t tag = 0,
                 const CollectiveOptions& options = {});
  absl::Status Recv(MutableBytes recv, int source, int64_t tag = 0,
                    const CollectiveOptions& options = {});
  Work RecvAsync(MutableBytes recv, int source, int64_t tag = 0,
                 const CollectiveOptions& options = {});

  // Leaves the group: waits for this rank's own pending operations, closes its
  // connections and forgets the default group if it is this one. Later calls
  // return kFailedPrecondition. Not collective: call Barrier() first unless it
  // is known that no rank still needs this one. Called again: OK. A device
  // part waits a second for the other ranks to leave as well. Without Destroy
  // the resources of the device part leak when the group is destroyed: a
  // destructor makes no call to a vendor's library.
  absl::Status Destroy();

  // Calls `callback` once, with health(), when this rank leaves the group:
  // first thing in Destroy() or in the destructor, on the thread of either. For
  // parts of the library that use the group, or one made of it, on threads of
  // their own. It may wait for them, within their deadlines, but not for
  // another thread's Destroy(). Several are called in the order in which they
  // were added; what they refer to is released with the group.
  //   kFailedPrecondition  The group was destroyed: it is not called.
  absl::Status OnDestroy(
      std::function<void(const absl::Status& health)> callback);

  // Ends the group from any thread: running and later calls fail with `cause`.
  void Abort(absl::Status cause);

  // OK while the group is usable, otherwise what poisoned it.
  absl::Status health() const;

  bool IsDestroyed() const;

  // How many calls of each operation have ended so far, and with what outcome.
  GroupCounters counters() const;

  // A store for this group's own small data, separate from other groups'.
  Store& store();

 private:
  friend class internal::ProcessGroupAccess;

  class Impl;
  explicit ProcessGroup(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace sherd

#endif  // SHERD_CORE_COMM_PROCESS_GROUP_H_
