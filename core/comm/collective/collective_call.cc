#include "sherd/core/comm/collective/collective_call.h"

#include <limits>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/types/memory_overlap.h"

namespace sherd::internal {
namespace {

template <typename... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

bool Overlap(ConstBytes a, ConstBytes b) {
  return MayShareMemory(AccessToBytes(a.data(), a.size(), Access::kRead),
                        AccessToBytes(b.data(), b.size(), Access::kWrite));
}

bool Same(ConstBytes a, ConstBytes b) {
  return a.data() == b.data() && a.size() == b.size();
}

absl::Status CheckBuffer(absl::string_view which, ConstBytes buffer) {
  if (buffer.data() == nullptr && !buffer.empty()) {
    return Invalid("the ", which, " buffer has ", buffer.size(),
                   " bytes at a null pointer");
  }
  return absl::OkStatus();
}

absl::Status CheckRoot(Place place, int root) {
  if (root < 0 || root >= place.size) {
    return Invalid("root is ", root, ", expected 0 to ", place.size - 1);
  }
  return absl::OkStatus();
}

absl::Status CheckElements(Elements elements, absl::string_view which,
                           ConstBytes buffer) {
  SHERD_RETURN_IF_ERROR(CheckReduction(elements.reduction, elements.dtype));
  const size_t size = SizeOf(elements.dtype);
  if (buffer.size() % size != 0) {
    return Invalid("the ", which, " buffer has ", buffer.size(),
                   " bytes, expected a multiple of the ", size, " of one ",
                   Name(elements.dtype));
  }
  return absl::OkStatus();
}

// `whole` is one block per rank, `block` one of them.
absl::Status CheckBlocks(Place place, absl::string_view whole_name,
                         ConstBytes whole, absl::string_view block_name,
                         ConstBytes block) {
  const std::optional<size_t> expected =
      CheckedMul(block.size(), static_cast<size_t>(place.size));
  if (!expected || whole.size() != *expected) {
    return Invalid("the ", whole_name, " buffer has ", whole.size(),
                   " bytes, expected ", place.size, " ranks times the ",
                   block.size(), " bytes of the ", block_name, " buffer");
  }
  const ConstBytes own = whole.subspan(place.rank * block.size(), block.size());
  if (!Same(own, block) && Overlap(whole, block)) {
    return Invalid("the send buffer overlaps the receive buffer, and the ",
                   block_name, " buffer is not this rank's block of the ",
                   whole_name, " buffer");
  }
  return absl::OkStatus();
}

template <typename Bytes>
absl::Status CheckList(Place place, absl::string_view which,
                       absl::Span<const Bytes> list) {
  if (list.size() != static_cast<size_t>(place.size)) {
    return Invalid("there are ", list.size(), " ", which, " entries, expected ",
                   place.size, ", one per rank");
  }
  for (const Bytes& entry : list) {
    SHERD_RETURN_IF_ERROR(CheckBuffer(which, entry));
  }
  return absl::OkStatus();
}

// That the call writes nothing twice and nothing that it reads, but that this
// rank's own entry may be the same in both lists. A buffer that is not in a
// list is the only entry of one.
template <typename Send, typename Recv>
absl::Status CheckApart(Place place, absl::Span<const Send> sends,
                        absl::Span<const Recv> recvs) {
  absl::InlinedVector<MemoryAccess, 16> accesses;
  for (const Recv& recv : recvs) {
    accesses.push_back(AccessToBytes(recv.data(), recv.size(), Access::kWrite));
  }
  for (const Send& send : sends) {
    accesses.push_back(AccessToBytes(send.data(), send.size(), Access::kRead));
  }
  const size_t own_send = sends.size() == 1 ? 0 : place.rank;
  const size_t own_recv = recvs.size() == 1 ? 0 : place.rank;
  if (Same(sends[own_send], recvs[own_recv])) {
    accesses[recvs.size() + own_send] = {};
  }
  const auto conflict = FindConflict(accesses);
  if (!conflict) return absl::OkStatus();
  const auto name = [&](size_t i) {
    const bool receives = i < recvs.size();
    const size_t entries = receives ? recvs.size() : sends.size();
    const absl::string_view list = receives ? "receive" : "send";
    return entries == 1
               ? absl::StrCat("the ", list, " buffer")
               : absl::StrCat(list, " entry ", receives ? i : i - recvs.size());
  };
  return Invalid(name(conflict->second), " overlaps ", name(conflict->first),
                 ", expected memory of its own for all that is received (but "
                 "that this rank's own entry may be received where it is)");
}

// `own` is the buffer of this rank, `entry` its one in the list of all.
absl::Status CheckOwnLength(absl::string_view list_name, ConstBytes entry,
                            absl::string_view own_name, ConstBytes own) {
  if (entry.size() == own.size()) return absl::OkStatus();
  return Invalid("this rank's own ", list_name, " entry has ", entry.size(),
                 " bytes and its ", own_name, " buffer ", own.size(),
                 ", expected equal lengths");
}

absl::Status CheckOwnEntry(Place place, absl::Span<const ConstBytes> sends,
                           MutableBytes recv) {
  SHERD_RETURN_IF_ERROR(
      CheckOwnLength("send", sends[place.rank], "receive", recv));
  return CheckApart<ConstBytes, MutableBytes>(place, sends, {&recv, 1});
}

absl::Status CheckOwnEntry(Place place, ConstBytes send,
                           absl::Span<const MutableBytes> recvs) {
  SHERD_RETURN_IF_ERROR(
      CheckOwnLength("receive", recvs[place.rank], "send", send));
  return CheckApart<ConstBytes, MutableBytes>(place, {&send, 1}, recvs);
}

absl::Status ExpectNone(absl::string_view which, size_t found, int root) {
  if (found == 0) return absl::OkStatus();
  return Invalid("only rank ", root, ", the root, passes a ", which,
                 ", expected an empty one here, not one of ", found);
}

absl::Status CheckBroadcast(Place place, MutableBytes buffer, int root) {
  SHERD_RETURN_IF_ERROR(CheckRoot(place, root));
  return CheckBuffer("broadcast", buffer);
}

absl::Status CheckAllReduce(Elements elements, ConstBytes send,
                            MutableBytes recv) {
  SHERD_RETURN_IF_ERROR(CheckElements(elements, "send", send));
  SHERD_RETURN_IF_ERROR(CheckBuffer("send", send));
  SHERD_RETURN_IF_ERROR(CheckBuffer("receive", recv));
  if (send.size() != recv.size()) {
    return Invalid("the send buffer has ", send.size(),
                   " bytes and the receive buffer ", recv.size(),
                   ", expected equal lengths");
  }
  if (!Same(send, recv) && Overlap(send, recv)) {
    return Invalid(
        "the send buffer overlaps the receive buffer without being the same");
  }
  return absl::OkStatus();
}

absl::Status CheckReduce(Place place, Elements elements, ConstBytes send,
                         MutableBytes recv, int root) {
  SHERD_RETURN_IF_ERROR(CheckRoot(place, root));
  if (place.rank == root) return CheckAllReduce(elements, send, recv);
  SHERD_RETURN_IF_ERROR(CheckElements(elements, "send", send));
  SHERD_RETURN_IF_ERROR(CheckBuffer("send", send));
  return ExpectNone("receive buffer", recv.size(), root);
}

absl::Status CheckReduceScatter(Place place, Elements elements, ConstBytes send,
                                MutableBytes recv) {
  SHERD_RETURN_IF_ERROR(CheckElements(elements, "receive", recv));
  SHERD_RETURN_IF_ERROR(CheckBuffer("send", send));
  SHERD_RETURN_IF_ERROR(CheckBuffer("receive", recv));
  return CheckBlocks(place, "send", send, "receive", recv);
}

absl::Status CheckReduceScatterV(Place place, Elements elements,
                                 absl::Span<const ConstBytes> sends,
                                 MutableBytes recv) {
  SHERD_RETURN_IF_ERROR(CheckList(place, "send", sends));
  for (const ConstBytes& entry : sends) {
    SHERD_RETURN_IF_ERROR(CheckElements(elements, "send", entry));
  }
  SHERD_RETURN_IF_ERROR(CheckBuffer("receive", recv));
  return CheckOwnEntry(place, sends, recv);
}

absl::Status CheckAllGather(Place place, ConstBytes send, MutableBytes recv) {
  SHERD_RETURN_IF_ERROR(CheckBuffer("send", send));
  SHERD_RETURN_IF_ERROR(CheckBuffer("receive", recv));
  return CheckBlocks(place, "receive", recv, "send", send);
}

absl::Status CheckAllGatherV(Place place, ConstBytes send,
                             absl::Span<const MutableBytes> recvs) {
  SHERD_RETURN_IF_ERROR(CheckList(place, "receive", recvs));
  SHERD_RETURN_IF_ERROR(CheckBuffer("send", send));
  return CheckOwnEntry(place, send, recvs);
}

absl::Status CheckGather(Place place, ConstBytes send, MutableBytes recv,
                         int root) {
  SHERD_RETURN_IF_ERROR(CheckRoot(place, root));
  SHERD_RETURN_IF_ERROR(CheckBuffer("send", send));
  if (place.rank != root) {
    return ExpectNone("receive buffer", recv.size(), root);
  }
  return CheckAllGather(place, send, recv);
}

absl::Status CheckGatherV(Place place, ConstBytes send,
                          absl::Span<const MutableBytes> recvs, int root) {
  SHERD_RETURN_IF_ERROR(CheckRoot(place, root));
  SHERD_RETURN_IF_ERROR(CheckBuffer("send", send));
  if (place.rank != root) {
    return ExpectNone("receive list", recvs.size(), root);
  }
  return CheckAllGatherV(place, send, recvs);
}

absl::Status CheckScatter(Place place, ConstBytes send, MutableBytes recv,
                          int root) {
  SHERD_RETURN_IF_ERROR(CheckRoot(place, root));
  SHERD_RETURN_IF_ERROR(CheckBuffer("receive", recv));
  if (place.rank != root) return ExpectNone("send buffer", send.size(), root);
  SHERD_RETURN_IF_ERROR(CheckBuffer("send", send));
  return CheckBlocks(place, "send", send, "receive", recv);
}

absl::Status CheckScatterV(Place place, absl::Span<const ConstBytes> sends,
                           MutableBytes recv, int root) {
  SHERD_RETURN_IF_ERROR(CheckRoot(place, root));
  SHERD_RETURN_IF_ERROR(CheckBuffer("receive", recv));
  if (place.rank != root) return ExpectNone("send list", sends.size(), root);
  SHERD_RETURN_IF_ERROR(CheckList(place, "send", sends));
  return CheckOwnEntry(place, sends, recv);
}

absl::Status CheckAllToAll(Place place, ConstBytes send, MutableBytes recv) {
  SHERD_RETURN_IF_ERROR(CheckBuffer("send", send));
  SHERD_RETURN_IF_ERROR(CheckBuffer("receive", recv));
  if (send.size() != recv.size()) {
    return Invalid("the send buffer has ", send.size(),
                   " bytes and the receive buffer ", recv.size(),
                   ", expected equal lengths");
  }
  if (send.size() % place.size != 0) {
    return Invalid("the ", send.size(),
                   " bytes of the send buffer do not divide equally across ",
                   "group size ", place.size);
  }
  if (Overlap(send, recv)) {
    return Invalid("the send buffer overlaps the receive buffer");
  }
  return absl::OkStatus();
}

absl::Status CheckAllToAllV(Place place, absl::Span<const ConstBytes> sends,
                            absl::Span<const MutableBytes> recvs) {
  const size_t expected = static_cast<size_t>(place.size);
  if (sends.size() != expected || recvs.size() != expected) {
    return Invalid("there are ", sends.size(), " send and ", recvs.size(),
                   " receive entries, expected ", place.size,
                   " of each, one per rank");
  }
  SHERD_RETURN_IF_ERROR(CheckList(place, "send", sends));
  SHERD_RETURN_IF_ERROR(CheckList(place, "receive", recvs));
  const ConstBytes own_send = sends[place.rank];
  const ConstBytes own_recv = recvs[place.rank];
  if (own_send.size() != own_recv.size()) {
    return Invalid("this rank's own send entry has ", own_send.size(),
                   " bytes and its receive entry ", own_recv.size(),
                   ", expected equal lengths");
  }
  return CheckApart(place, sends, recvs);
}

absl::Status CheckMessage(Place place, ConstBytes buffer, int peer,
                          int64_t tag) {
  if (peer < 0 || peer >= place.size) {
    return Invalid("the peer is ", peer, ", expected 0 to ", place.size - 1);
  }
  if (peer == place.rank) {
    return Invalid("the peer is rank ", peer,
                   ", which is this rank: a rank cannot send to itself");
  }
  if (tag < 0 || tag > std::numeric_limits<int32_t>::max()) {
    return Invalid("the tag is ", tag, ", expected 0 to ",
                   std::numeric_limits<int32_t>::max());
  }
  return CheckBuffer("message", buffer);
}

Collective ReductionDesc(CollectiveOp op, Elements elements, ConstBytes send,
                         MutableBytes recv) {
  return {.op = op,
          .in = send.data(),
          .out = recv.data(),
          .bytes = send.size(),
          .dtype = elements.dtype,
          .reduction = elements.reduction};
}

// `bytes` is the length of one rank's block.
Collective EvenDesc(CollectiveOp op, ConstBytes send, MutableBytes recv,
                    uint64_t bytes, int root) {
  return {.op = op,
          .root = root,
          .in = send.data(),
          .out = recv.data(),
          .bytes = bytes,
          .even = true};
}

}  // namespace

CollectiveCall BarrierCall() { return {{.op = CollectiveOp::kBarrier}, {}}; }

CollectiveCall BroadcastCall(Place place, MutableBytes buffer, int root) {
  return {{.op = CollectiveOp::kBroadcast,
           .root = root,
           .out = buffer.data(),
           .bytes = buffer.size()},
          CheckBroadcast(place, buffer, root)};
}

CollectiveCall AllReduceCall(Elements elements, ConstBytes send,
                             MutableBytes recv) {
  return {ReductionDesc(CollectiveOp::kAllReduce, elements, send, recv),
          CheckAllReduce(elements, send, recv)};
}

CollectiveCall ReduceCall(Place place, Elements elements, ConstBytes send,
                          MutableBytes recv, int root) {
  CollectiveCall call = {
      ReductionDesc(CollectiveOp::kReduce, elements, send, recv),
      CheckReduce(place, elements, send, recv, root)};
  call.desc.root = root;
  return call;
}

CollectiveCall ReduceScatterCall(Place place, Elements elements,
                                 ConstBytes send, MutableBytes recv) {
  CollectiveCall call = {
      ReductionDesc(CollectiveOp::kReduceScatter, elements, send, recv),
      CheckReduceScatter(place, elements, send, recv)};
  call.desc.bytes = recv.size();
  call.desc.even = true;
  return call;
}

CollectiveCall ReduceScatterVCall(Place place, Elements elements,
                                  absl::Span<const ConstBytes> sends,
                                  MutableBytes recv) {
  CollectiveCall call = {
      ReductionDesc(CollectiveOp::kReduceScatter, elements, {}, recv),
      CheckReduceScatterV(place, elements, sends, recv)};
  call.desc.bytes = recv.size();
  call.desc.sends = sends;
  return call;
}

CollectiveCall AllGatherCall(Place place, ConstBytes send, MutableBytes recv) {
  return {{.op = CollectiveOp::kAllGather,
           .in = send.data(),
           .out = recv.data(),
           .bytes = send.size()},
          CheckAllGather(place, send, recv)};
}

CollectiveCall AllGatherVCall(Place place, ConstBytes send,
                              absl::Span<const MutableBytes> recvs) {
  return {{.op = CollectiveOp::kAllGatherV,
           .in = send.data(),
           .bytes = send.size(),
           .recvs = recvs},
          CheckAllGatherV(place, send, recvs)};
}

CollectiveCall GatherCall(Place place, ConstBytes send, MutableBytes recv,
                          int root) {
  return {EvenDesc(CollectiveOp::kGather, send, recv, send.size(), root),
          CheckGather(place, send, recv, root)};
}

CollectiveCall GatherVCall(Place place, ConstBytes send,
                           absl::Span<const MutableBytes> recvs, int root) {
  return {{.op = CollectiveOp::kGather,
           .root = root,
           .in = send.data(),
           .bytes = send.size(),
           .recvs = recvs},
          CheckGatherV(place, send, recvs, root)};
}

CollectiveCall ScatterCall(Place place, ConstBytes send, MutableBytes recv,
                           int root) {
  return {EvenDesc(CollectiveOp::kScatter, send, recv, recv.size(), root),
          CheckScatter(place, send, recv, root)};
}

CollectiveCall ScatterVCall(Place place, absl::Span<const ConstBytes> sends,
                            MutableBytes recv, int root) {
  return {{.op = CollectiveOp::kScatter,
           .root = root,
           .out = recv.data(),
           .bytes = recv.size(),
           .sends = sends},
          CheckScatterV(place, sends, recv, root)};
}

CollectiveCall AllToAllCall(Place place, ConstBytes send, MutableBytes recv) {
  return {EvenDesc(CollectiveOp::kAllToAllV, send, recv,
                   send.size() / static_cast<size_t>(place.size), 0),
          CheckAllToAll(place, send, recv)};
}

CollectiveCall AllToAllVCall(Place place, absl::Span<const ConstBytes> sends,
                             absl::Span<const MutableBytes> recvs) {
  return {{.op = CollectiveOp::kAllToAllV, .sends = sends, .recvs = recvs},
          CheckAllToAllV(place, sends, recvs)};
}

CollectiveCall SendCall(Place place, ConstBytes send, int destination,
                        int64_t tag) {
  return {{.op = CollectiveOp::kSend,
           .root = destination,
           .in = send.data(),
           .bytes = send.size(),
           .tag = tag},
          CheckMessage(place, send, destination, tag)};
}

CollectiveCall RecvCall(Place place, MutableBytes recv, int source,
                        int64_t tag) {
  return {{.op = CollectiveOp::kRecv,
           .root = source,
           .out = recv.data(),
           .bytes = recv.size(),
           .tag = tag},
          CheckMessage(place, recv, source, tag)};
}

}  // namespace sherd::internal
