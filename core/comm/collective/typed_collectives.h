#ifndef SHERD_CORE_COMM_COLLECTIVE_TYPED_COLLECTIVES_H_
#define SHERD_CORE_COMM_COLLECTIVE_TYPED_COLLECTIVES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/collective_options.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/comm/work.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd::internal {

// The methods of ProcessGroup (`Group`, which derives from this) over arrays of
// elements: group.AllGather<float>(mine, absl::MakeSpan(all)).
//
// Each method is specified by the comment of the method over bytes, except that
// lengths count elements, lists are of spans, and the type is compared with
// that of the other ranks. T has a DType; name T where it cannot be deduced, so
// that vectors can be passed.
//
// Cost. That of the method over bytes; forms with lists also an allocation.
template <typename Group>
class TypedCollectives {
 public:
  template <typename T>
  absl::Status Broadcast(absl::Span<T> buffer, int root,
                         const CollectiveOptions& options = {}) {
    return group().Broadcast(ToBytes(buffer), root, Typed<T>(options));
  }
  template <typename T>
  Work BroadcastAsync(absl::Span<T> buffer, int root,
                      const CollectiveOptions& options = {}) {
    return group().BroadcastAsync(ToBytes(buffer), root, Typed<T>(options));
  }

  // In place.
  template <typename T>
  absl::Status AllReduce(absl::Span<T> values, ReduceOp op,
                         const CollectiveOptions& options = {}) {
    return AllReduce<T>(values, values, op, options);
  }
  template <typename T>
  Work AllReduceAsync(absl::Span<T> values, ReduceOp op,
                      const CollectiveOptions& options = {}) {
    return AllReduceAsync<T>(values, values, op, options);
  }

  template <typename T>
  absl::Status AllReduce(absl::Span<const T> send, absl::Span<T> recv,
                         ReduceOp op, const CollectiveOptions& options = {}) {
    return group().AllReduce(ToBytes(send), ToBytes(recv), DTypeOf<T>(), op,
                             options);
  }
  template <typename T>
  Work AllReduceAsync(absl::Span<const T> send, absl::Span<T> recv, ReduceOp op,
                      const CollectiveOptions& options = {}) {
    return group().AllReduceAsync(ToBytes(send), ToBytes(recv), DTypeOf<T>(),
                                  op, options);
  }

  template <typename T>
  absl::Status Reduce(absl::Span<const T> send, absl::Span<T> recv, ReduceOp op,
                      int root, const CollectiveOptions& options = {}) {
    return group().Reduce(ToBytes(send), ToBytes(recv), DTypeOf<T>(), op, root,
                          options);
  }
  template <typename T>
  Work ReduceAsync(absl::Span<const T> send, absl::Span<T> recv, ReduceOp op,
                   int root, const CollectiveOptions& options = {}) {
    return group().ReduceAsync(ToBytes(send), ToBytes(recv), DTypeOf<T>(), op,
                               root, options);
  }

  template <typename T>
  absl::Status ReduceScatter(absl::Span<const T> send, absl::Span<T> recv,
                             ReduceOp op,
                             const CollectiveOptions& options = {}) {
    return group().ReduceScatter(ToBytes(send), ToBytes(recv), DTypeOf<T>(), op,
                                 options);
  }
  template <typename T>
  Work ReduceScatterAsync(absl::Span<const T> send, absl::Span<T> recv,
                          ReduceOp op, const CollectiveOptions& options = {}) {
    return group().ReduceScatterAsync(ToBytes(send), ToBytes(recv),
                                      DTypeOf<T>(), op, options);
  }
  template <typename T>
  absl::Status ReduceScatterV(absl::Span<const absl::Span<const T>> sends,
                              absl::Span<T> recv, ReduceOp op,
                              const CollectiveOptions& options = {}) {
    return group().ReduceScatterV(*ListBytes(sends), ToBytes(recv),
                                  DTypeOf<T>(), op, options);
  }
  template <typename T>
  Work ReduceScatterVAsync(absl::Span<const absl::Span<const T>> sends,
                           absl::Span<T> recv, ReduceOp op,
                           const CollectiveOptions& options = {}) {
    auto list = ListBytes(sends);
    return Keeping(list, group().ReduceScatterVAsync(
                             *list, ToBytes(recv), DTypeOf<T>(), op, options));
  }

  template <typename T>
  absl::Status AllGather(absl::Span<const T> send, absl::Span<T> recv,
                         const CollectiveOptions& options = {}) {
    return group().AllGather(ToBytes(send), ToBytes(recv), Typed<T>(options));
  }
  template <typename T>
  Work AllGatherAsync(absl::Span<const T> send, absl::Span<T> recv,
                      const CollectiveOptions& options = {}) {
    return group().AllGatherAsync(ToBytes(send), ToBytes(recv),
                                  Typed<T>(options));
  }
  template <typename T>
  absl::Status AllGatherV(absl::Span<const T> send,
                          absl::Span<const absl::Span<T>> recvs,
                          const CollectiveOptions& options = {}) {
    return group().AllGatherV(ToBytes(send), *ListBytes(recvs),
                              Typed<T>(options));
  }
  template <typename T>
  Work AllGatherVAsync(absl::Span<const T> send,
                       absl::Span<const absl::Span<T>> recvs,
                       const CollectiveOptions& options = {}) {
    auto list = ListBytes(recvs);
    return Keeping(
        list, group().AllGatherVAsync(ToBytes(send), *list, Typed<T>(options)));
  }

  template <typename T>
  absl::Status Gather(absl::Span<const T> send, absl::Span<T> recv, int root,
                      const CollectiveOptions& options = {}) {
    return group().Gather(ToBytes(send), ToBytes(recv), root,
                          Typed<T>(options));
  }
  template <typename T>
  Work GatherAsync(absl::Span<const T> send, absl::Span<T> recv, int root,
                   const CollectiveOptions& options = {}) {
    return group().GatherAsync(ToBytes(send), ToBytes(recv), root,
                               Typed<T>(options));
  }
  template <typename T>
  absl::Status GatherV(absl::Span<const T> send,
                       absl::Span<const absl::Span<T>> recvs, int root,
                       const CollectiveOptions& options = {}) {
    return group().GatherV(ToBytes(send), *ListBytes(recvs), root,
                           Typed<T>(options));
  }
  template <typename T>
  Work GatherVAsync(absl::Span<const T> send,
                    absl::Span<const absl::Span<T>> recvs, int root,
                    const CollectiveOptions& options = {}) {
    auto list = ListBytes(recvs);
    return Keeping(list, group().GatherVAsync(ToBytes(send), *list, root,
                                              Typed<T>(options)));
  }

  template <typename T>
  absl::Status Scatter(absl::Span<const T> send, absl::Span<T> recv, int root,
                       const CollectiveOptions& options = {}) {
    return group().Scatter(ToBytes(send), ToBytes(recv), root,
                           Typed<T>(options));
  }
  template <typename T>
  Work ScatterAsync(absl::Span<const T> send, absl::Span<T> recv, int root,
                    const CollectiveOptions& options = {}) {
    return group().ScatterAsync(ToBytes(send), ToBytes(recv), root,
                                Typed<T>(options));
  }
  template <typename T>
  absl::Status ScatterV(absl::Span<const absl::Span<const T>> sends,
                        absl::Span<T> recv, int root,
                        const CollectiveOptions& options = {}) {
    return group().ScatterV(*ListBytes(sends), ToBytes(recv), root,
                            Typed<T>(options));
  }
  template <typename T>
  Work ScatterVAsync(absl::Span<const absl::Span<const T>> sends,
                     absl::Span<T> recv, int root,
                     const CollectiveOptions& options = {}) {
    auto list = ListBytes(sends);
    return Keeping(list, group().ScatterVAsync(*list, ToBytes(recv), root,
                                               Typed<T>(options)));
  }

  template <typename T>
  absl::Status AllToAll(absl::Span<const T> send, absl::Span<T> recv,
                        const CollectiveOptions& options = {}) {
    return group().AllToAll(ToBytes(send), ToBytes(recv), Typed<T>(options));
  }
  template <typename T>
  Work AllToAllAsync(absl::Span<const T> send, absl::Span<T> recv,
                     const CollectiveOptions& options = {}) {
    return group().AllToAllAsync(ToBytes(send), ToBytes(recv),
                                 Typed<T>(options));
  }
  template <typename T>
  absl::Status AllToAllV(absl::Span<const absl::Span<const T>> sends,
                         absl::Span<const absl::Span<T>> recvs,
                         const CollectiveOptions& options = {}) {
    return group().AllToAllV(*ListBytes(sends), *ListBytes(recvs),
                             Typed<T>(options));
  }
  template <typename T>
  Work AllToAllVAsync(absl::Span<const absl::Span<const T>> sends,
                      absl::Span<const absl::Span<T>> recvs,
                      const CollectiveOptions& options = {}) {
    auto from = ListBytes(sends);
    auto to = ListBytes(recvs);
    return Keeping(to, Keeping(from, group().AllToAllVAsync(
                                         *from, *to, Typed<T>(options))));
  }

  template <typename T>
  absl::Status Send(absl::Span<const T> send, int destination, int64_t tag = 0,
                    const CollectiveOptions& options = {}) {
    return group().Send(ToBytes(send), destination, tag, Typed<T>(options));
  }
  template <typename T>
  Work SendAsync(absl::Span<const T> send, int destination, int64_t tag = 0,
                 const CollectiveOptions& options = {}) {
    return group().SendAsync(ToBytes(send), destination, tag,
                             Typed<T>(options));
  }
  template <typename T>
  absl::Status Recv(absl::Span<T> recv, int source, int64_t tag = 0,
                    const CollectiveOptions& options = {}) {
    return group().Recv(ToBytes(recv), source, tag, Typed<T>(options));
  }
  template <typename T>
  Work RecvAsync(absl::Span<T> recv, int source, int64_t tag = 0,
                 const CollectiveOptions& options = {}) {
    return group().RecvAsync(ToBytes(recv), source, tag, Typed<T>(options));
  }

 private:
  Group& group() { return static_cast<Group&>(*this); }

  template <typename T>
  static CollectiveOptions Typed(CollectiveOptions options) {
    options.dtype = DTypeOf<T>();
    return options;
  }

  template <typename T>
  static ConstBytes ToBytes(absl::Span<const T> elements) {
    return {reinterpret_cast<const std::byte*>(elements.data()),
            elements.size() * sizeof(T)};
  }
  template <typename T>
  static MutableBytes ToBytes(absl::Span<T> elements) {
    return {reinterpret_cast<std::byte*>(elements.data()),
            elements.size() * sizeof(T)};
  }
  template <typename T>
  static auto ListBytes(absl::Span<const absl::Span<T>> spans) {
    auto list = std::make_shared<std::vector<decltype(ToBytes(spans[0]))>>();
    list->reserve(spans.size());
    for (const absl::Span<T> span : spans) list->push_back(ToBytes(span));
    return list;
  }

  static Work Keeping(std::shared_ptr<const void> list, Work work) {
    work.Keep(std::move(list));
    return work;
  }
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_COLLECTIVE_TYPED_COLLECTIVES_H_
