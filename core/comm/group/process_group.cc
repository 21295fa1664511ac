#include "sherd/core/comm/process_group.h"

#include <utility>

#include "sherd/core/comm/collective/collective_call.h"
#include "sherd/core/comm/group/process_group_impl.h"

namespace sherd {

ProcessGroup::ProcessGroup(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}

// While impl_ is whole: what continues the last Works may use this group.
ProcessGroup::~ProcessGroup() { impl_->End(); }

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::Create(
    const Backend& backend, ProcessGroupOptions options) {
  internal::DeviceOrigin origin;
  return Impl::Create(backend, std::move(options), "init", origin);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::NewGroup(
    absl::Span<const int> ranks, const NewGroupOptions& options) {
  return impl_->NewGroup(ranks, options);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::Split(
    int color, int key, const NewGroupOptions& options) {
  return impl_->Split(color, key, options);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::Shrink(
    const NewGroupOptions& options) {
  return impl_->Shrink(options);
}

std::vector<int> ProcessGroup::FailedRanks() const {
  return impl_->peers().FailedRanks();
}

int ProcessGroup::size() const { return impl_->membership().size(); }
int ProcessGroup::rank() const { return impl_->membership().rank(); }

const std::string& ProcessGroup::name() const {
  return impl_->membership().name();
}

const BackendInfo& ProcessGroup::backend() const {
  return impl_->backend().info();
}

std::optional<Device> ProcessGroup::device() const { return impl_->device(); }

absl::Span<const Device> ProcessGroup::devices() const {
  return impl_->membership().devices();
}

const BackendInfo* ProcessGroup::device_backend() const {
  return impl_->device_backend();
}

absl::Duration ProcessGroup::timeout() const {
  return impl_->options().timeout;
}

absl::Span<const int> ProcessGroup::world_ranks() const {
  return impl_->membership().world_ranks();
}

bool ProcessGroup::one_host() const { return impl_->membership().one_host(); }

absl::Span<const int> ProcessGroup::host_of_rank() const {
  return impl_->membership().host_of_rank();
}

absl::Span<const std::string> ProcessGroup::processes() const {
  return impl_->membership().processes();
}

std::shared_ptr<PeerMemory> ProcessGroup::peer_memory() const {
  return impl_->peer_memory();
}

Allocator& ProcessGroup::shard_allocator() const {
  if (peer_memory() == nullptr) return HeapAllocator();
  Allocator* const allocator = impl_->backend().peer_memory_allocator();
  return allocator == nullptr ? HeapAllocator() : *allocator;
}

OperationPath ProcessGroup::PathOf(CollectiveOp op, DType dtype,
                                   ReduceOp reduction,
                                   DeviceType device) const {
  return impl_->PathOf(op, dtype, reduction, device);
}

absl::Status ProcessGroup::Synchronize() { return impl_->Synchronize(); }

absl::Status ProcessGroup::Batch(absl::FunctionRef<absl::Status()> calls) {
  return impl_->Batch(calls);
}

absl::StatusOr<Allocator*> ProcessGroup::DeviceAllocator() const {
  return impl_->DeviceAllocator();
}

absl::StatusOr<std::shared_ptr<const void>> ProcessGroup::Register(
    MutableBytes buffer) {
  return impl_->Register(buffer);
}

absl::Status ProcessGroup::Destroy() { return impl_->Destroy(); }

absl::Status ProcessGroup::OnDestroy(
    std::function<void(const absl::Status& health)> callback) {
  return impl_->OnDestroy(std::move(callback));
}

void ProcessGroup::Abort(absl::Status cause) { impl_->Abort(cause); }

absl::Status ProcessGroup::health() const { return impl_->peers().health(); }

bool ProcessGroup::IsDestroyed() const { return impl_->peers().has_left(); }

GroupCounters ProcessGroup::counters() const {
  return impl_->calls().counters();
}

Store& ProcessGroup::store() { return *impl_->options().store; }

absl::Status ProcessGroup::Barrier(const CollectiveOptions& options) {
  return impl_->Run(internal::BarrierCall(), options);
}

Work ProcessGroup::BarrierAsync(const CollectiveOptions& options) {
  return impl_->Start(internal::BarrierCall(), options);
}

absl::Status ProcessGroup::Broadcast(MutableBytes buffer, int root,
                                     const CollectiveOptions& options) {
  return impl_->Run(internal::BroadcastCall(impl_->place(), buffer, root),
                    options);
}

Work ProcessGroup::BroadcastAsync(MutableBytes buffer, int root,
                                  const CollectiveOptions& options) {
  return impl_->Start(internal::BroadcastCall(impl_->place(), buffer, root),
                      options);
}

absl::Status ProcessGroup::AllReduce(ConstBytes send, MutableBytes recv,
                                     DType dtype, ReduceOp op,
                                     const CollectiveOptions& options) {
  return impl_->Run(internal::AllReduceCall({dtype, op}, send, recv), options);
}

Work ProcessGroup::AllReduceAsync(ConstBytes send, MutableBytes recv,
                                  DType dtype, ReduceOp op,
                                  const CollectiveOptions& options) {
  return impl_->Start(internal::AllReduceCall({dtype, op}, send, recv),
                      options);
}

absl::Status ProcessGroup::Reduce(ConstBytes send, MutableBytes recv,
                                  DType dtype, ReduceOp op, int root,
                                  const CollectiveOptions& options) {
  return impl_->Run(
      internal::ReduceCall(impl_->place(), {dtype, op}, send, recv, root),
      options);
}

Work ProcessGroup::ReduceAsync(ConstBytes send, MutableBytes recv, DType dtype,
                               ReduceOp op, int root,
                               const CollectiveOptions& options) {
  return impl_->Start(
      internal::ReduceCall(impl_->place(), {dtype, op}, send, recv, root),
      options);
}

absl::Status ProcessGroup::ReduceScatter(ConstBytes send, MutableBytes recv,
                                         DType dtype, ReduceOp op,
                                         const CollectiveOptions& options) {
  return impl_->Run(
      internal::ReduceScatterCall(impl_->place(), {dtype, op}, send, recv),
      options);
}

Work ProcessGroup::ReduceScatterAsync(ConstBytes send, MutableBytes recv,
                                      DType dtype, ReduceOp op,
                                      const CollectiveOptions& options) {
  return impl_->Start(
      internal::ReduceScatterCall(impl_->place(), {dtype, op}, send, recv),
      options);
}

absl::Status ProcessGroup::ReduceScatterV(absl::Span<const ConstBytes> sends,
                                          MutableBytes recv, DType dtype,
                                          ReduceOp op,
                                          const CollectiveOptions& options) {
  return impl_->Run(
      internal::ReduceScatterVCall(impl_->place(), {dtype, op}, sends, recv),
      options);
}

Work ProcessGroup::ReduceScatterVAsync(absl::Span<const ConstBytes> sends,
                                       MutableBytes recv, DType dtype,
                                       ReduceOp op,
                                       const CollectiveOptions& options) {
  return impl_->Start(
      internal::ReduceScatterVCall(impl_->place(), {dtype, op}, sends, recv),
      options);
}

absl::Status ProcessGroup::AllGather(ConstBytes send, MutableBytes recv,
                                     const CollectiveOptions& options) {
  return impl_->Run(internal::AllGatherCall(impl_->place(), send, recv),
                    options);
}

Work ProcessGroup::AllGatherAsync(ConstBytes send, MutableBytes recv,
                                  const CollectiveOptions& options) {
  return impl_->Start(internal::AllGatherCall(impl_->place(), send, recv),
                      options);
}

absl::Status ProcessGroup::AllGatherV(ConstBytes send,
                                      absl::Span<const MutableBytes> recvs,
                                      const CollectiveOptions& options) {
  return impl_->Run(internal::AllGatherVCall(impl_->place(), send, recvs),
                    options);
}

Work ProcessGroup::AllGatherVAsync(ConstBytes send,
                                   absl::Span<const MutableBytes> recvs,
                                   const CollectiveOptions& options) {
  return impl_->Start(internal::AllGatherVCall(impl_->place(), send, recvs),
                      options);
}

absl::Status ProcessGroup::Gather(ConstBytes send, MutableBytes recv, int root,
                                  const CollectiveOptions& options) {
  return impl_->Run(internal::GatherCall(impl_->place(), send, recv, root),
                    options);
}

Work ProcessGroup::GatherAsync(ConstBytes send, MutableBytes recv, int root,
                               const CollectiveOptions& options) {
  return impl_->Start(internal::GatherCall(impl_->place(), send, recv, root),
                      options);
}

absl::Status ProcessGroup::GatherV(ConstBytes send,
                                   absl::Span<const MutableBytes> recvs,
                                   int root, const CollectiveOptions& options) {
  return impl_->Run(internal::GatherVCall(impl_->place(), send, recvs, root),
                    options);
}

Work ProcessGroup::GatherVAsync(ConstBytes send,
                                absl::Span<const MutableBytes> recvs, int root,
                                const CollectiveOptions& options) {
  return impl_->Start(internal::GatherVCall(impl_->place(), send, recvs, root),
                      options);
}

absl::Status ProcessGroup::Scatter(ConstBytes send, MutableBytes recv, int root,
                                   const CollectiveOptions& options) {
  return impl_->Run(internal::ScatterCall(impl_->place(), send, recv, root),
                    options);
}

Work ProcessGroup::ScatterAsync(ConstBytes send, MutableBytes recv, int root,
                                const CollectiveOptions& options) {
  return impl_->Start(internal::ScatterCall(impl_->place(), send, recv, root),
                      options);
}

absl::Status ProcessGroup::ScatterV(absl::Span<const ConstBytes> sends,
                                    MutableBytes recv, int root,
                                    const CollectiveOptions& options) {
  return impl_->Run(internal::ScatterVCall(impl_->place(), sends, recv, root),
                    options);
}

Work ProcessGroup::ScatterVAsync(absl::Span<const ConstBytes> sends,
                                 MutableBytes recv, int root,
                                 const CollectiveOptions& options) {
  return impl_->Start(internal::ScatterVCall(impl_->place(), sends, recv, root),
                      options);
}

absl::Status ProcessGroup::AllToAll(ConstBytes send, MutableBytes recv,
                                    const CollectiveOptions& options) {
  return impl_->Run(internal::AllToAllCall(impl_->place(), send, recv),
                    options);
}

Work ProcessGroup::AllToAllAsync(ConstBytes send, MutableBytes recv,
                                 const CollectiveOptions& options) {
  return impl_->Start(internal::AllToAllCall(impl_->place(), send, recv),
                      options);
}

absl::Status ProcessGroup::AllToAllV(absl::Span<const ConstBytes> sends,
                                     absl::Span<const MutableBytes> recvs,
                                     const CollectiveOptions& options) {
  return impl_->Run(internal::AllToAllVCall(impl_->place(), sends, recvs),
                    options);
}

Work ProcessGroup::AllToAllVAsync(absl::Span<const ConstBytes> sends,
                                  absl::Span<const MutableBytes> recvs,
                                  const CollectiveOptions& options) {
  return impl_->Start(internal::AllToAllVCall(impl_->place(), sends, recvs),
                      options);
}

absl::Status ProcessGroup::Send(ConstBytes send, int destination, int64_t tag,
                                const CollectiveOptions& options) {
  return impl_->Run(internal::SendCall(impl_->place(), send, destination, tag),
                    options);
}

Work ProcessGroup::SendAsync(ConstBytes send, int destination, int64_t tag,
                             const CollectiveOptions& options) {
  return impl_->Start(
      internal::SendCall(impl_->place(), send, destination, tag), options);
}

absl::Status ProcessGroup::Recv(MutableBytes recv, int source, int64_t tag,
                                const CollectiveOptions& options) {
  return impl_->Run(internal::RecvCall(impl_->place(), recv, source, tag),
                    options);
}

Work ProcessGroup::RecvAsync(MutableBytes recv, int source, int64_t tag,
                             const CollectiveOptions& options) {
  return impl_->Start(internal::RecvCall(impl_->place(), recv, source, tag),
                      options);
}

}  // namespace sherd
