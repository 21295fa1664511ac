#include "sherd/core/comm/tensor_collectives.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"

namespace sherd {
namespace {

// The arguments of a method of ProcessGroup, and what they point to.
struct Buffers {
  ConstBytes send;
  MutableBytes recv;
  std::vector<ConstBytes> sends;
  std::vector<MutableBytes> recvs;
  DType dtype = kUInt8;
  // Of all tensors.
  Device device;
  absl::InlinedVector<std::shared_ptr<Storage>, 2> storages;
};

template <typename... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

// "the send tensor", "receive entry 3".
struct Label {
  absl::string_view list;
  int entry = -1;

  std::string ToString() const {
    return list.empty() ? "the tensor"
           : entry < 0  ? absl::StrCat("the ", list, " tensor")
                        : absl::StrCat(list, " entry ", entry);
  }
};
constexpr Label kSend = {"send"};
constexpr Label kRecv = {"receive"};

enum class Access { kRead, kWrite };

absl::Status CheckTensor(Label label, const Tensor& tensor, Access access,
                         const std::optional<Device>& device) {
  if (!tensor.defined()) {
    return Invalid(label.ToString(),
                   " is undefined; make it with Tensor::Empty or another "
                   "factory first");
  }
  if (!tensor.device().is_cpu() && tensor.device() != device) {
    return Invalid(label.ToString(), " is on device ",
                   tensor.device().ToString(), ", expected cpu",
                   device ? absl::StrCat(" or ", device->ToString(),
                                         ", this rank's device in the group")
                          : std::string(": pass a tensor in host memory, or "
                                        "Init with a backend for its device, "
                                        "such as \"cpu:auto,cuda:nccl\""));
  }
  if (!tensor.is_contiguous()) {
    return Invalid(
        label.ToString(), " has strides ", FormatDims(tensor.strides()),
        " for sizes ", FormatDims(tensor.sizes()),
        ", expected a contiguous one: pass Contiguous()",
        access == Access::kWrite ? " and copy the result back with CopyFrom"
                                 : "");
  }
  if (access == Access::kWrite && !tensor.writable() && tensor.numel() > 0) {
    return Invalid(label.ToString(),
                   " may not be written to; pass a tensor with memory of its "
                   "own, such as Clone()");
  }
  return absl::OkStatus();
}

ConstBytes ReadableBytes(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data()),
          static_cast<size_t>(tensor.nbytes())};
}

MutableBytes WritableBytes(Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data()),
          static_cast<size_t>(tensor.nbytes())};
}

// Collects the tensors of one call and remembers the first that breaks a rule.
// On a process that is not a member it checks nothing: the group returns the
// error.
class Preparation {
 public:
  Preparation(const ProcessGroup& group, CollectiveOp op)
      : group_(group), op_(op) {}

  bool ok() const { return status_.ok() && group_.is_member(); }

  void Check(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  void AddSend(const Tensor& tensor) {
    if (Add(kSend, tensor, Access::kRead)) {
      buffers_.send = ReadableBytes(tensor);
    }
  }
  void AddRecv(Tensor& tensor) {
    if (Add(kRecv, tensor, Access::kWrite)) {
      buffers_.recv = WritableBytes(tensor);
    }
  }
  void AddInPlace(Tensor& tensor, Access access = Access::kWrite) {
    if (Add({""}, tensor, access)) {
      buffers_.send = ReadableBytes(tensor);
      buffers_.recv = WritableBytes(tensor);
    }
  }

  void AddSends(absl::Span<const Tensor> tensors) {
    CheckLength("send", tensors.size());
    for (int r = 0; ok() && r < group_.size(); ++r) {
      if (!Add({"send", r}, tensors[r], Access::kRead)) return;
      buffers_.sends.push_back(ReadableBytes(tensors[r]));
    }
  }
  void AddRecvs(absl::Span<Tensor> tensors) {
    CheckLength("receive", tensors.size());
    for (int r = 0; ok() && r < group_.size(); ++r) {
      if (!Add({"receive", r}, tensors[r], Access::kWrite)) return;
      buffers_.recvs.push_back(WritableBytes(tensors[r]));
    }
  }

  void ExpectNone(absl::string_view which, size_t length, int root) {
    if (!ok() || length == 0) return;
    Check(Invalid("only rank ", root, ", the root, passes a ", which,
                  " list, expected an empty one here, not one of ", length));
  }

  // This rank's own piece arrives as it was sent.
  void CheckOwn(Label sent_label, const Tensor& sent, Label received_label,
                const Tensor& received) {
    if (!ok() || sent.numel() == received.numel()) return;
    Check(Invalid(sent_label.ToString(), " has sizes ",
                  FormatDims(sent.sizes()), " and ", received_label.ToString(),
                  ", this rank's own, ", FormatDims(received.sizes()),
                  ", expected as many elements"));
  }

  // The first error with the information of every collective's errors.
  absl::StatusOr<Buffers> Finish() && {
    if (!group_.is_member()) return Buffers();
    if (status_.ok()) return std::move(buffers_);
    ErrorInfo info;
    info.group = group_.name();
    info.operation = std::string(Name(op_));
    return WithErrorInfo(
        Annotate(std::move(status_),
                 absl::StrCat("group \"", group_.name(), "\", rank ",
                              group_.rank(), ", ", info.operation)),
        info);
  }

 private:
  bool Add(Label label, const Tensor& tensor, Access access) {
    if (!ok()) return false;
    Check(CheckTensor(label, tensor, access, group_.device()));
    if (!ok()) return false;
    if (!first_) {
      first_ = label;
      buffers_.dtype = tensor.dtype();
      buffers_.device = tensor.device();
    } else if (tensor.device() != buffers_.device) {
      Check(Invalid("tensors on different devices: ", first_->ToString(),
                    " is on ", buffers_.device.ToString(), " and ",
                    label.ToString(), " on ", tensor.device().ToString(),
                    "; move one of them with To"));
      return false;
    } else if (tensor.dtype() != buffers_.dtype) {
      Check(Invalid("tensors with different dtypes: ", first_->ToString(),
                    " is ", Name(buffers_.dtype), " and ", label.ToString(),
                    " is ", Name(tensor.dtype()),
                    "; convert one of them with To"));
      return false;
    }
    buffers_.storages.push_back(tensor.storage());
    return true;
  }

  void CheckLength(absl::string_view which, size_t length) {
    if (!ok() || length == static_cast<size_t>(group_.size())) return;
    Check(Invalid("the ", which, " list has ", length, " tensors, expected ",
                  group_.size(), ", one per rank"));
  }

  const ProcessGroup& group_;
  const CollectiveOp op_;
  std::optional<Label> first_;
  absl::Status status_;
  Buffers buffers_;
};

// `whole` is `size` times `part`, along the first dimension or stacked.
absl::Status CheckJoined(int size, Label whole_label, const Tensor& whole,
                         Label part_label, const Tensor& part) {
  const absl::Span<const int64_t> sizes = part.sizes();
  Dims stacked(sizes.begin(), sizes.end());
  stacked.insert(stacked.begin(), size);
  if (whole.sizes() == absl::MakeConstSpan(stacked)) return absl::OkStatus();
  std::string expected = FormatDims(stacked);
  if (!sizes.empty()) {
    Dims joined(sizes.begin(), sizes.end());
    // No overflow if the product fits, and without it nothing is equal.
    joined[0] = CheckedMul(joined[0], int64_t{size}).value_or(-1);
    if (whole.sizes() == absl::MakeConstSpan(joined)) return absl::OkStatus();
    expected = absl::StrCat(FormatDims(joined), " or ", expected);
  }
  return Invalid(whole_label.ToString(), " has sizes ",
                 FormatDims(whole.sizes()), ", expected ", expected, ": ", size,
                 " ranks times the sizes ", FormatDims(sizes), " of ",
                 part_label.ToString());
}

absl::Status CheckSplits(int size, Label label, const Tensor& tensor,
                         absl::Span<const int64_t> splits) {
  if (tensor.dim() == 0) {
    return Invalid(label.ToString(),
                   " has no dimension, expected one along which it is split");
  }
  const int64_t length = tensor.sizes()[0];
  if (splits.empty()) {
    if (length % size == 0) return absl::OkStatus();
    return Invalid(label.ToString(), "'s dim 0 of ", length,
                   " does not divide equally across group size ", size,
                   "; pass splits");
  }
  if (splits.size() != static_cast<size_t>(size)) {
    return Invalid("there are ", splits.size(), " ", label.list,
                   " splits, expected ", size, ", one per rank");
  }
  int64_t sum = 0;
  for (const int64_t split : splits) {
    const std::optional<int64_t> next = CheckedAdd(sum, split);
    if (split < 0 || !next) {
      return Invalid("a ", label.list, " split is ", split,
                     ", expected 0 to the ", length, " of dim 0");
    }
    sum = *next;
  }
  if (sum == length) return absl::OkStatus();
  return Invalid("the ", label.list, " splits add up to ", sum,
                 ", expected the ", length, " of dim 0 of ", label.ToString());
}

absl::Status CheckSameSlices(const Tensor& send, const Tensor& recv) {
  if (send.sizes().subspan(1) == recv.sizes().subspan(1)) {
    return absl::OkStatus();
  }
  return Invalid("the send tensor has sizes ", FormatDims(send.sizes()),
                 " and the receive tensor ", FormatDims(recv.sizes()),
                 ", expected equal ones after dim 0");
}

// The parts of `bytes`, which are the tensor's, that belong to each rank.
template <typename Bytes>
std::vector<Bytes> SplitBytes(int size, const Tensor& tensor,
                              absl::Span<const int64_t> splits, Bytes bytes) {
  const int64_t length = tensor.sizes()[0];
  const size_t slice =
      length == 0 ? 0 : bytes.size() / static_cast<size_t>(length);
  std::vector<Bytes> parts;
  size_t offset = 0;
  for (int r = 0; r < size; ++r) {
    const int64_t slices = splits.empty() ? length / size : splits[r];
    const size_t nbytes = static_cast<size_t>(slices) * slice;
    parts.push_back(bytes.subspan(offset, nbytes));
    offset += nbytes;
  }
  return parts;
}

absl::StatusOr<Buffers> PrepareBroadcast(const ProcessGroup& group,
                                         Tensor& tensor, int root) {
  Preparation call(group, CollectiveOp::kBroadcast);
  call.AddInPlace(tensor,
                  group.rank() == root ? Access::kRead : Access::kWrite);
  return std::move(call).Finish();
}

absl::StatusOr<Buffers> PrepareAllReduce(const ProcessGroup& group,
                                         Tensor& tensor) {
  Preparation call(group, CollectiveOp::kAllReduce);
  call.AddInPlace(tensor);
  return std::move(call).Finish();
}

absl::StatusOr<Buffers> PrepareReduce(const ProcessGroup& group, Tensor& tensor,
                                      int root) {
  Preparation call(group, CollectiveOp::kReduce);
  if (group.rank() == root) {
    call.AddInPlace(tensor);
  } else {
    call.AddSend(tensor);
  }
  return std::move(call).Finish();
}

absl::StatusOr<Buffers> PrepareAllGather(const ProcessGroup& group,
                                         const Tensor& send,
                                         absl::Span<Tensor> recvs) {
  Preparation call(group, CollectiveOp::kAllGatherV);
  call.AddSend(send);
  call.AddRecvs(recvs);
  if (call.ok()) {
    call.CheckOwn(kSend, send, {"receive", group.rank()}, recvs[group.rank()]);
  }
  return std::move(call).Finish();
}

absl::StatusOr<Buffers> PrepareAllGatherIntoTensor(const ProcessGroup& group,
                                                   const Tensor& send,
                                                   Tensor& recv) {
  Preparation call(group, CollectiveOp::kAllGather);
  call.AddSend(send);
  call.AddRecv(recv);
  if (call.ok()) {
    call.Check(CheckJoined(group.size(), kRecv, recv, kSend, send));
  }
  return std::move(call).Finish();
}

absl::StatusOr<Buffers> PrepareGather(const ProcessGroup& group,
                                      const Tensor& send,
                                      absl::Span<Tensor> recvs, int root) {
  Preparation call(group, CollectiveOp::kGather);
  call.AddSend(send);
  if (group.rank() == root) {
    call.AddRecvs(recvs);
    if (call.ok()) call.CheckOwn(kSend, send, {"receive", root}, recvs[root]);
  } else {
    call.ExpectNone("receive", recvs.size(), root);
  }
  return std::move(call).Finish();
}

absl::StatusOr<Buffers> PrepareScatter(const ProcessGroup& group,
                                       absl::Span<const Tensor> sends,
                                       Tensor& recv, int root) {
  Preparation call(group, CollectiveOp::kScatter);
  call.AddRecv(recv);
  if (group.rank() == root) {
    call.AddSends(sends);
    if (call.ok()) call.CheckOwn({"send", root}, sends[root], kRecv, recv);
  } else {
    call.ExpectNone("send", sends.size(), root);
  }
  return std::move(call).Finish();
}

absl::StatusOr<Buffers> PrepareReduceScatter(const ProcessGroup& group,
                                             absl::Span<const Tensor> sends,
                                             Tensor& recv) {
  Preparation call(group, CollectiveOp::kReduceScatter);
  call.AddRecv(recv);
  call.AddSends(sends);
  if (call.ok()) {
    call.CheckOwn({"send", group.rank()}, sends[group.rank()], kRecv, recv);
  }
  return std::move(call).Finish();
}

absl::StatusOr<Buffers> PrepareReduceScatterTensor(const ProcessGroup& group,
                                                   const Tensor& send,
                                                   Tensor& recv) {
  Preparation call(group, CollectiveOp::kReduceScatter);
  call.AddSend(send);
  call.AddRecv(recv);
  if (call.ok()) {
    call.Check(CheckJoined(group.size(), kSend, send, kRecv, recv));
  }
  return std::move(call).Finish();
}

absl::StatusOr<Buffers> PrepareAllToAll(const ProcessGroup& group,
                                        absl::Span<const Tensor> sends,
                                        absl::Span<Tensor> recvs) {
  Preparation call(group, CollectiveOp::kAllToAllV);
  call.AddSends(sends);
  call.AddRecvs(recvs);
  if (call.ok()) {
    const int rank = group.rank();
    call.CheckOwn({"send", rank}, sends[rank], {"receive", rank}, recvs[rank]);
  }
  return std::move(call).Finish();
}

absl::StatusOr<Buffers> PrepareAllToAllSingle(const ProcessGroup& group,
                                              const Tensor& send, Tensor& recv,
                                              const Splits& splits) {
  Preparation call(group, CollectiveOp::kAllToAllV);
  call.AddSend(send);
  call.AddRecv(recv);
  const int size = group.size();
  if (call.ok()) call.Check(CheckSplits(size, kSend, send, splits.send));
  if (call.ok()) call.Check(CheckSplits(size, kRecv, recv, splits.recv));
  if (call.ok()) call.Check(CheckSameSlices(send, recv));
  const bool valid = call.ok();
  SHERD_ASSIGN_OR_RETURN(Buffers buffers, std::move(call).Finish());
  if (valid) {
    buffers.sends = SplitBytes(size, send, splits.send, buffers.send);
    buffers.recvs = SplitBytes(size, recv, splits.recv, buffers.recv);
  }
  return buffers;
}

absl::StatusOr<Buffers> PrepareSend(const ProcessGroup& group,
                                    const Tensor& tensor) {
  Preparation call(group, CollectiveOp::kSend);
  call.AddSend(tensor);
  return std::move(call).Finish();
}

absl::StatusOr<Buffers> PrepareRecv(const ProcessGroup& group, Tensor& tensor) {
  Preparation call(group, CollectiveOp::kRecv);
  call.AddRecv(tensor);
  return std::move(call).Finish();
}

// With the place and type of all tensors.
CollectiveOptions On(const Buffers& buffers, CollectiveOptions options) {
  options.device = buffers.device;
  options.dtype = buffers.dtype;
  return options;
}

// Makes a call whose buffers live until its operation ended: `call` gets them
// and the options.
template <typename Call>
absl::Status Run(const absl::StatusOr<Buffers>& buffers,
                 const CollectiveOptions& options, const Call& call) {
  SHERD_RETURN_IF_ERROR(buffers.status());
  const absl::Status status = call(*buffers, On(*buffers, options));
  if (buffers->device.is_cpu()) return status;
  // It is queued, and the tensors may go.
  const DeviceStream stream = CurrentStream(buffers->device);
  for (const std::shared_ptr<Storage>& storage : buffers->storages) {
    storage->UsedOn(stream);
  }
  return status;
}

template <typename Call>
Work Start(absl::StatusOr<Buffers> buffers, const CollectiveOptions& options,
           const Call& call) {
  if (!buffers.ok()) return Work(std::move(buffers).status());
  auto kept = std::make_shared<const Buffers>(*std::move(buffers));
  Work work = call(*kept, On(*kept, options));
  if (!kept->device.is_cpu()) {
    work.Keep(std::move(kept));
    return work;
  }
  return std::move(work).Then(
      [kept = std::move(kept)](absl::Status status) { return status; });
}

}  // namespace

absl::Status Broadcast(ProcessGroup& group, Tensor& tensor, int root,
                       const CollectiveOptions& options) {
  return Run(PrepareBroadcast(group, tensor, root), options,
             [&](const Buffers& b, const CollectiveOptions& on) {
               return group.Broadcast(b.recv, root, on);
             });
}

Work BroadcastAsync(ProcessGroup& group, Tensor& tensor, int root,
                    const CollectiveOptions& options) {
  return Start(PrepareBroadcast(group, tensor, root), options,
               [&](const Buffers& b, const CollectiveOptions& on) {
                 return group.BroadcastAsync(b.recv, root, on);
               });
}

absl::Status AllReduce(ProcessGroup& group, Tensor& tensor, ReduceOp op,
                       const CollectiveOptions& options) {
  return Run(PrepareAllReduce(group, tensor), options,
             [&](const Buffers& b, const CollectiveOptions& on) {
               return group.AllReduce(b.send, b.recv, b.dtype, op, on);
             });
}

Work AllReduceAsync(ProcessGroup& group, Tensor& tensor, ReduceOp op,
                    const CollectiveOptions& options) {
  return Start(PrepareAllReduce(group, tensor), options,
               [&](const Buffers& b, const CollectiveOptions& on) {
                 return group.AllReduceAsync(b.send, b.recv, b.dtype, op, on);
               });
}

absl::Status Reduce(ProcessGroup& group, Tensor& tensor, ReduceOp op, int root,
                    const CollectiveOptions& options) {
  return Run(PrepareReduce(group, tensor, root), options,
             [&](const Buffers& b, const CollectiveOptions& on) {
               return group.Reduce(b.send, b.recv, b.dtype, op, root, on);
             });
}

Work ReduceAsync(ProcessGroup& group, Tensor& tensor, ReduceOp op, int root,
                 const CollectiveOptions& options) {
  return Start(PrepareReduce(group, tensor, root), options,
               [&](const Buffers& b, const CollectiveOptions& on) {
                 return group.ReduceAsync(b.send, b.recv, b.dtype, op, root,
                                          on);
               });
}

absl::Status AllGather(ProcessGroup& group, const Tensor& send,
                       absl::Span<Tensor> recvs,
                       const CollectiveOptions& options) {
  return Run(PrepareAllGather(group, send, recvs), options,
             [&](const Buffers& b, const CollectiveOptions& on) {
               return group.AllGatherV(b.send, b.recvs, on);
             });
}

Work AllGatherAsync(ProcessGroup& group, const Tensor& send,
                    absl::Span<Tensor> recvs,
                    const CollectiveOptions& options) {
  return Start(PrepareAllGather(group, send, recvs), options,
               [&](const Buffers& b, const CollectiveOptions& on) {
                 return group.AllGatherVAsync(b.send, b.recvs, on);
               });
}

absl::Status AllGatherIntoTensor(ProcessGroup& group, const Tensor& send,
                                 Tensor& recv,
                                 const CollectiveOptions& options) {
  return Run(PrepareAllGatherIntoTensor(group, send, recv), options,
             [&](const Buffers& b, const CollectiveOptions& on) {
               return group.AllGather(b.send, b.recv, on);
             });
}

Work AllGatherIntoTensorAsync(ProcessGroup& group, const Tensor& send,
                              Tensor& recv, const CollectiveOptions& options) {
  return Start(PrepareAllGatherIntoTensor(group, send, recv), options,
               [&](const Buffers& b, const CollectiveOptions& on) {
                 return group.AllGatherAsync(b.send, b.recv, on);
               });
}

absl::Status Gather(ProcessGroup& group, const Tensor& send,
                    absl::Span<Tensor> recvs, int root,
                    const CollectiveOptions& options) {
  return Run(PrepareGather(group, send, recvs, root), options,
             [&](const Buffers& b, const CollectiveOptions& on) {
               return group.GatherV(b.send, b.recvs, root, on);
             });
}

Work GatherAsync(ProcessGroup& group, const Tensor& send,
                 absl::Span<Tensor> recvs, int root,
                 const CollectiveOptions& options) {
  return Start(PrepareGather(group, send, recvs, root), options,
               [&](const Buffers& b, const CollectiveOptions& on) {
                 return group.GatherVAsync(b.send, b.recvs, root, on);
               });
}

absl::Status Scatter(ProcessGroup& group, absl::Span<const Tensor> sends,
                     Tensor& recv, int root, const CollectiveOptions& options) {
  return Run(PrepareScatter(group, sends, recv, root), options,
             [&](const Buffers& b, const CollectiveOptions& on) {
               return group.ScatterV(b.sends, b.recv, root, on);
             });
}

Work ScatterAsync(ProcessGroup& group, absl::Span<const Tensor> sends,
                  Tensor& recv, int root, const CollectiveOptions& options) {
  return Start(PrepareScatter(group, sends, recv, root), options,
               [&](const Buffers& b, const CollectiveOptions& on) {
                 return group.ScatterVAsync(b.sends, b.recv, root, on);
               });
}

absl::Status ReduceScatter(ProcessGroup& group, absl::Span<const Tensor> sends,
                           Tensor& recv, ReduceOp op,
                           const CollectiveOptions& options) {
  return Run(PrepareReduceScatter(group, sends, recv), options,
             [&](const Buffers& b, const CollectiveOptions& on) {
               return group.ReduceScatterV(b.sends, b.recv, b.dtype, op, on);
             });
}

Work ReduceScatterAsync(ProcessGroup& group, absl::Span<const Tensor> sends,
                        Tensor& recv, ReduceOp op,
                        const CollectiveOptions& options) {
  return Start(PrepareReduceScatter(group, sends, recv), options,
               [&](const Buffers& b, const CollectiveOptions& on) {
                 return group.ReduceScatterVAsync(b.sends, b.recv, b.dtype, op,
                                                  on);
               });
}

absl::Status ReduceScatterTensor(ProcessGroup& group, const Tensor& send,
                                 Tensor& recv, ReduceOp op,
                                 const CollectiveOptions& options) {
  return Run(PrepareReduceScatterTensor(group, send, recv), options,
             [&](const Buffers& b, const CollectiveOptions& on) {
               return group.ReduceScatter(b.send, b.recv, b.dtype, op, on);
             });
}

Work ReduceScatterTensorAsync(ProcessGroup& group, const Tensor& send,
                              Tensor& recv, ReduceOp op,
                              const CollectiveOptions& options) {
  return Start(PrepareReduceScatterTensor(group, send, recv), options,
               [&](const Buffers& b, const CollectiveOptions& on) {
                 return group.ReduceScatterAsync(b.send, b.recv, b.dtype, op,
                                                 on);
               });
}

absl::Status AllToAll(ProcessGroup& group, absl::Span<const Tensor> sends,
                      absl::Span<Tensor> recvs,
                      const CollectiveOptions& options) {
  return Run(PrepareAllToAll(group, sends, recvs), options,
             [&](const Buffers& b, const CollectiveOptions& on) {
               return group.AllToAllV(b.sends, b.recvs, on);
             });
}

Work AllToAllAsync(ProcessGroup& group, absl::Span<const Tensor> sends,
                   absl::Span<Tensor> recvs, const CollectiveOptions& options) {
  return Start(PrepareAllToAll(group, sends, recvs), options,
               [&](const Buffers& b, const CollectiveOptions& on) {
                 return group.AllToAllVAsync(b.sends, b.recvs, on);
               });
}

absl::Status AllToAllSingle(ProcessGroup& group, const Tensor& send,
                            Tensor& recv, const Splits& splits,
                            const CollectiveOptions& options) {
  return Run(PrepareAllToAllSingle(group, send, recv, splits), options,
             [&](const Buffers& b, const CollectiveOptions& on) {
               return group.AllToAllV(b.sends, b.recvs, on);
             });
}

Work AllToAllSingleAsync(ProcessGroup& group, const Tensor& send, Tensor& recv,
                         const Splits& splits,
                         const CollectiveOptions& options) {
  return Start(PrepareAllToAllSingle(group, send, recv, splits), options,
               [&](const Buffers& b, const CollectiveOptions& on) {
                 return group.AllToAllVAsync(b.sends, b.recvs, on);
               });
}

absl::Status Send(ProcessGroup& group, const Tensor& tensor, int destination,
                  int64_t tag, const CollectiveOptions& options) {
  return Run(PrepareSend(group, tensor), options,
             [&](const Buffers& b, const CollectiveOptions& on) {
               return group.Send(b.send, destination, tag, on);
             });
}

Work SendAsync(ProcessGroup& group, const Tensor& tensor, int destination,
               int64_t tag, const CollectiveOptions& options) {
  return Start(PrepareSend(group, tensor), options,
               [&](const Buffers& b, const CollectiveOptions& on) {
                 return group.SendAsync(b.send, destination, tag, on);
               });
}

absl::Status Recv(ProcessGroup& group, Tensor& tensor, int source, int64_t tag,
                  const CollectiveOptions& options) {
  return Run(PrepareRecv(group, tensor), options,
             [&](const Buffers& b, const CollectiveOptions& on) {
               return group.Recv(b.recv, source, tag, on);
             });
}

Work RecvAsync(ProcessGroup& group, Tensor& tensor, int source, int64_t tag,
               const CollectiveOptions& options) {
  return Start(PrepareRecv(group, tensor), options,
               [&](const Buffers& b, const CollectiveOptions& on) {
                 return group.RecvAsync(b.recv, source, tag, on);
               });
}

}  // namespace sherd
