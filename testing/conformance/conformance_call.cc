#include "sherd/testing/conformance/conformance_call.h"

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/keep_forever.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/storage.h"

namespace sherd::testing::internal {
std::string Describe(const CallSpec& spec) {
  std::string text(Name(spec.op));
  if (spec.lists && spec.op != CollectiveOp::kAllToAllV &&
      spec.op != CollectiveOp::kAllGatherV) {
    absl::StrAppend(&text, "_v");
  }
  if (spec.op == CollectiveOp::kBarrier) return text;
  if (IsReduction(spec.op)) {
    absl::StrAppend(&text, " of ", spec.count, " ", Name(spec.dtype), " (",
                    Name(spec.reduction), ")");
  } else {
    absl::StrAppend(&text, " of ", spec.count, " bytes",
                    spec.uneven ? " and more" : "",
                    spec.type ? absl::StrCat(" as ", Name(*spec.type)) : "");
  }
  if (IsPointToPoint(spec.op)) {
    return absl::StrCat(text, ", peer ", spec.root, ", tag ", spec.tag);
  }
  return absl::StrCat(text, ", root ", spec.root,
                      spec.in_place ? ", in place" : "",
                      spec.asynchronous ? ", asynchronous" : "");
}

size_t MessageBytes(const CallSpec& spec, int from, int to) {
  if (!spec.uneven) return spec.count;
  const size_t pair = static_cast<size_t>(from) * 5 + to * 3;
  return (pair + spec.skew) % 3 == 1 ? 0 : spec.count + pair;
}

size_t BlockCount(const CallSpec& spec, int r) {
  if (!spec.uneven) return spec.count;
  const auto block = static_cast<size_t>(r);
  return (block + spec.skew) % 3 == 1 ? 0 : spec.count + block;
}

Call::Call(const CallSpec& spec, uint64_t number, int rank, int size)
    : spec_(spec), number_(number), rank_(rank), size_(size) {
  Build();
  for (Block& block : blocks_) {
    if (block.before) Fill(*block.before, block.bytes);
  }
}

Call::Content Call::Message(int from, int to) const {
  return {.kind = Content::Kind::kMessage, .from = from, .to = to};
}

Call::Content Call::Elements(int rank, size_t first) const {
  return {
      .kind = Content::Kind::kElements, .from = rank, .first_element = first};
}

Call::Content Call::Reduced(size_t first) const {
  return {.kind = Content::Kind::kReduced, .first_element = first};
}

size_t Call::ElementBytes() const { return spec_.count * SizeOf(spec_.dtype); }

Call::Block* Call::AddBlock(size_t size) {
  buffers_.emplace_back(size, IsReduction(spec_.op) ? 0 : spec_.shift);
  return &blocks_.emplace_back(Block{.bytes = buffers_.back().bytes()});
}

Call::Area Call::MakeArea(const std::vector<size_t>& sizes) {
  Area area;
  if (spec_.lists) {
    for (const size_t size : sizes) area.blocks.push_back(AddBlock(size));
    return area;
  }
  size_t total = 0;
  for (const size_t size : sizes) total += size;
  area.whole =
      buffers_.emplace_back(total, IsReduction(spec_.op) ? 0 : spec_.shift)
          .bytes();
  size_t begin = 0;
  for (const size_t size : sizes) {
    area.blocks.push_back(
        &blocks_.emplace_back(Block{.bytes = area.whole.subspan(begin, size)}));
    begin += size;
  }
  return area;
}

void Call::Build() {
  switch (spec_.op) {
    case CollectiveOp::kBarrier:
      return;
    case CollectiveOp::kBroadcast:
      return BuildBroadcast();
    case CollectiveOp::kAllGather:
    case CollectiveOp::kAllGatherV:
      return BuildGather(/*receives=*/true);
    case CollectiveOp::kGather:
      return BuildGather(rank_ == spec_.root);
    case CollectiveOp::kScatter:
      return BuildScatter();
    case CollectiveOp::kAllToAllV:
      return BuildAllToAll();
    case CollectiveOp::kSend:
    case CollectiveOp::kRecv:
      return BuildMessage();
    case CollectiveOp::kAllReduce:
      return BuildReduce(/*receives=*/true);
    case CollectiveOp::kReduce:
      return BuildReduce(rank_ == spec_.root);
    case CollectiveOp::kReduceScatter:
      return BuildReduceScatter();
  }
}

void Call::BuildBroadcast() {
  Block* const block = AddBlock(spec_.count);
  if (rank_ == spec_.root) {
    block->before = Message(rank_, 0);
  } else {
    block->after = Message(spec_.root, 0);
  }
  recv_ = block->bytes;
}

void Call::BuildGather(bool receives) {
  if (receives) {
    std::vector<size_t> sizes;
    for (int r = 0; r < size_; ++r) sizes.push_back(MessageBytes(spec_, r, 0));
    const Area area = MakeArea(sizes);
    recv_ = area.whole;
    for (int r = 0; r < size_; ++r) {
      area.blocks[r]->after = Message(r, 0);
      if (spec_.lists) recvs_.push_back(area.blocks[r]->bytes);
    }
    if (spec_.in_place) {
      area.blocks[rank_]->before = Message(rank_, 0);
      send_ = area.blocks[rank_]->bytes;
      return;
    }
  }
  Block* const own = AddBlock(MessageBytes(spec_, rank_, 0));
  own->before = Message(rank_, 0);
  send_ = own->bytes;
}

void Call::BuildScatter() {
  if (rank_ == spec_.root) {
    std::vector<size_t> sizes;
    for (int r = 0; r < size_; ++r)
      sizes.push_back(MessageBytes(spec_, rank_, r));
    const Area area = MakeArea(sizes);
    send_ = area.whole;
    for (int r = 0; r < size_; ++r) {
      area.blocks[r]->before = Message(rank_, r);
      if (spec_.lists) sends_.push_back(area.blocks[r]->bytes);
    }
    if (spec_.in_place) {
      recv_ = area.blocks[rank_]->bytes;
      return;
    }
  }
  Block* const own = AddBlock(MessageBytes(spec_, spec_.root, rank_));
  own->after = Message(spec_.root, rank_);
  recv_ = own->bytes;
}

void Call::BuildAllToAll() {
  std::vector<size_t> sent, received;
  for (int r = 0; r < size_; ++r) {
    sent.push_back(MessageBytes(spec_, rank_, r));
    received.push_back(MessageBytes(spec_, r, rank_));
  }
  const Area to = MakeArea(sent);
  const Area from = MakeArea(received);
  send_ = to.whole;
  recv_ = from.whole;
  for (int r = 0; r < size_; ++r) {
    to.blocks[r]->before = Message(rank_, r);
    from.blocks[r]->after = Message(r, rank_);
    sends_.push_back(to.blocks[r]->bytes);
    recvs_.push_back(from.blocks[r]->bytes);
  }
  if (spec_.in_place && spec_.lists) {
    recvs_[rank_] = to.blocks[rank_]->bytes;
    from.blocks[rank_]->after.reset();
  }
}

void Call::BuildMessage() {
  Block* const block = AddBlock(spec_.count);
  if (spec_.op == CollectiveOp::kSend) {
    block->before = Message(rank_, spec_.root);
    send_ = block->bytes;
  } else {
    block->after = Message(spec_.root, rank_);
    recv_ = block->bytes;
  }
}

void Call::BuildReduce(bool receives) {
  Block* const own = AddBlock(ElementBytes());
  own->before = Elements(rank_, 0);
  send_ = own->bytes;
  if (!receives) return;
  Block* const result = spec_.in_place ? own : AddBlock(ElementBytes());
  result->after = Reduced(0);
  recv_ = result->bytes;
}

void Call::BuildReduceScatter() {
  const size_t element = SizeOf(spec_.dtype);
  std::vector<size_t> sizes;
  for (int r = 0; r < size_; ++r)
    sizes.push_back(BlockCount(spec_, r) * element);
  const Area area = MakeArea(sizes);
  send_ = area.whole;
  size_t first = 0;
  size_t own_first = 0;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) own_first = first;
    area.blocks[r]->before = Elements(rank_, first);
    if (spec_.lists) sends_.push_back(area.blocks[r]->bytes);
    first += BlockCount(spec_, r);
  }
  Block* const result =
      spec_.in_place ? area.blocks[rank_] : AddBlock(sizes[rank_]);
  result->after = Reduced(own_first);
  recv_ = result->bytes;
}

Work Call::Start(ProcessGroup& group) {
  return StartWith(group, {.timeout = spec_.timeout, .dtype = spec_.type});
}

Work Call::StartWith(ProcessGroup& group, const CollectiveOptions& options) {
  switch (spec_.op) {
    case CollectiveOp::kBarrier:
      return group.BarrierAsync(options);
    case CollectiveOp::kBroadcast:
      return group.BroadcastAsync(recv_, spec_.root, options);
    case CollectiveOp::kAllGather:
      return group.AllGatherAsync(send_, recv_, options);
    case CollectiveOp::kAllGatherV:
      return group.AllGatherVAsync(send_, recvs_, options);
    case CollectiveOp::kGather:
      return spec_.lists
                 ? group.GatherVAsync(send_, recvs_, spec_.root, options)
                 : group.GatherAsync(send_, recv_, spec_.root, options);
    case CollectiveOp::kScatter:
      return spec_.lists
                 ? group.ScatterVAsync(sends_, recv_, spec_.root, options)
                 : group.ScatterAsync(send_, recv_, spec_.root, options);
    case CollectiveOp::kAllToAllV:
      return spec_.lists ? group.AllToAllVAsync(sends_, recvs_, options)
                         : group.AllToAllAsync(send_, recv_, options);
    case CollectiveOp::kSend:
      return group.SendAsync(send_, spec_.root, spec_.tag, options);
    case CollectiveOp::kRecv:
      return group.RecvAsync(recv_, spec_.root, spec_.tag, options);
    default:
      return StartReduction(group, options);
  }
}

Work Call::StartReduction(ProcessGroup& group,
                          const CollectiveOptions& options) {
  if (spec_.op == CollectiveOp::kAllReduce) {
    return group.AllReduceAsync(send_, recv_, spec_.dtype, spec_.reduction,
                                options);
  }
  if (spec_.op == CollectiveOp::kReduce) {
    return group.ReduceAsync(send_, recv_, spec_.dtype, spec_.reduction,
                             spec_.root, options);
  }
  return spec_.lists ? group.ReduceScatterVAsync(sends_, recv_, spec_.dtype,
                                                 spec_.reduction, options)
                     : group.ReduceScatterAsync(send_, recv_, spec_.dtype,
                                                spec_.reduction, options);
}

absl::Status Call::Run(ProcessGroup& group) {
  if (const std::optional<Device> device = group.device()) {
    return RunOnDevice(group, *device);
  }
  return RunWith(group, {.timeout = spec_.timeout, .dtype = spec_.type});
}

void Call::Move(const std::vector<std::byte*>& copies, bool back) {
  const auto move = [&](auto& bytes) {
    using Bytes = std::decay_t<decltype(bytes)>;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const MutableBytes whole = buffers_[i].whole();
      std::byte* const from = back ? copies[i] : whole.data();
      std::byte* const to = back ? whole.data() : copies[i];
      const auto offset = reinterpret_cast<uintptr_t>(bytes.data()) -
                          reinterpret_cast<uintptr_t>(from);
      if (bytes.data() == nullptr || offset > whole.size()) continue;
      bytes = Bytes(to + offset, bytes.size());
      return;
    }
  };
  move(send_);
  move(recv_);
  for (ConstBytes& bytes : sends_) move(bytes);
  for (MutableBytes& bytes : recvs_) move(bytes);
}

absl::Status Call::RunOnDevice(ProcessGroup& group, const Device& device) {
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(device.type));
  SHERD_ASSIGN_OR_RETURN(Allocator* const memory,
                         runtime->MemoryOf(device.index));
  const DeviceStream stream = CurrentStream(device);
  std::vector<std::shared_ptr<Storage>> storages;
  std::vector<std::byte*> copies;
  for (GuardedBuffer& buffer : buffers_) {
    const MutableBytes whole = buffer.whole();
    SHERD_ASSIGN_OR_RETURN(storages.emplace_back(),
                           Storage::Allocate(whole.size(), *memory));
    copies.push_back(static_cast<std::byte*>(storages.back()->data()));
    SHERD_RETURN_IF_ERROR(
        runtime->CopyBytes(stream, copies.back(), whole.data(), whole.size()));
  }
  Move(copies, /*back=*/false);
  absl::Status status = RunWith(
      group, {.timeout = spec_.timeout, .device = device, .dtype = spec_.type});
  // Only if the call succeeded: otherwise its own error is the cause.
  if (status.ok()) status = group.Synchronize();
  Move(copies, /*back=*/true);
  if (!group.health().ok()) {
    // Its streams continue, and it is unknown when they no longer use a buffer.
    for (std::shared_ptr<Storage>& storage : storages) {
      ::sherd::internal::KeepForever(std::move(storage));
    }
    return status;
  }
  for (size_t i = 0; i < copies.size(); ++i) {
    const MutableBytes whole = buffers_[i].whole();
    SHERD_RETURN_IF_ERROR(
        runtime->CopyBytes(stream, whole.data(), copies[i], whole.size()));
  }
  return status;
}

absl::Status Call::RunWith(ProcessGroup& group,
                           const CollectiveOptions& options) {
  if (spec_.asynchronous) return StartWith(group, options).Wait();
  switch (spec_.op) {
    case CollectiveOp::kBarrier:
      return group.Barrier(options);
    case CollectiveOp::kBroadcast:
      return group.Broadcast(recv_, spec_.root, options);
    case CollectiveOp::kAllGather:
      return group.AllGather(send_, recv_, options);
    case CollectiveOp::kAllGatherV:
      return group.AllGatherV(send_, recvs_, options);
    case CollectiveOp::kGather:
      return spec_.lists ? group.GatherV(send_, recvs_, spec_.root, options)
                         : group.Gather(send_, recv_, spec_.root, options);
    case CollectiveOp::kScatter:
      return spec_.lists ? group.ScatterV(sends_, recv_, spec_.root, options)
                         : group.Scatter(send_, recv_, spec_.root, options);
    case CollectiveOp::kAllToAllV:
      return spec_.lists ? group.AllToAllV(sends_, recvs_, options)
                         : group.AllToAll(send_, recv_, options);
    case CollectiveOp::kAllReduce:
      return group.AllReduce(send_, recv_, spec_.dtype, spec_.reduction,
                             options);
    case CollectiveOp::kReduce:
      return group.Reduce(send_, recv_, spec_.dtype, spec_.reduction,
                          spec_.root, options);
    case CollectiveOp::kReduceScatter:
      return spec_.lists ? group.ReduceScatterV(sends_, recv_, spec_.dtype,
                                                spec_.reduction, options)
                         : group.ReduceScatter(send_, recv_, spec_.dtype,
                                               spec_.reduction, options);
    case CollectiveOp::kSend:
      return group.Send(send_, spec_.root, spec_.tag, options);
    case CollectiveOp::kRecv:
      return group.Recv(recv_, spec_.root, spec_.tag, options);
  }
  return absl::InternalError("an operation without a number");
}

void Call::Fill(const Content& content, MutableBytes bytes) const {
  if (content.kind == Content::Kind::kMessage) {
    FillMessage(MessageKey(number_, content.from, content.to), bytes);
  } else {
    FillElements(spec_.dtype, spec_.reduction, number_, content.from,
                 content.first_element, bytes);
  }
}

absl::Status Call::CheckContent(const std::optional<Content>& content,
                                Rounding rounding, ConstBytes bytes) const {
  if (!content) return CheckUntouched(bytes);
  switch (content->kind) {
    case Content::Kind::kMessage:
      return CheckMessage(MessageKey(number_, content->from, content->to),
                          bytes);
    case Content::Kind::kReduced:
      return CheckReduced(spec_.dtype, spec_.reduction, number_, size_,
                          content->first_element, rounding, bytes);
    case Content::Kind::kElements:
      break;
  }
  std::vector<std::byte> elements(bytes.size());
  Fill(*content, absl::MakeSpan(elements));
  if (ConstBytes(elements) == bytes) return absl::OkStatus();
  return absl::InternalError("a write to a buffer that is only to be read");
}

absl::Status Call::Check(Rounding rounding) const {
  for (const GuardedBuffer& buffer : buffers_) {
    SHERD_RETURN_IF_ERROR(Annotate(buffer.CheckCanaries(), Describe(spec_)));
  }
  for (const Block& block : blocks_) {
    SHERD_RETURN_IF_ERROR(
        Annotate(CheckContent(block.after ? block.after : block.before,
                              rounding, block.bytes),
                 Describe(spec_)));
  }
  return absl::OkStatus();
}

absl::Status Call::CheckNothingHappened() const {
  SHERD_RETURN_IF_ERROR(CheckSurroundings());
  for (const Block& block : blocks_) {
    SHERD_RETURN_IF_ERROR(
        Annotate(CheckContent(block.before, Rounding::kOnce, block.bytes),
                 Describe(spec_)));
  }
  return absl::OkStatus();
}

absl::Status Call::CheckSurroundings() const {
  for (const GuardedBuffer& buffer : buffers_) {
    SHERD_RETURN_IF_ERROR(Annotate(buffer.CheckCanaries(), Describe(spec_)));
  }
  for (const Block& block : blocks_) {
    if (block.after) continue;
    SHERD_RETURN_IF_ERROR(
        Annotate(CheckContent(block.before, Rounding::kOnce, block.bytes),
                 Describe(spec_)));
  }
  return absl::OkStatus();
}

}  // namespace sherd::testing::internal
