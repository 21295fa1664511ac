#include "sherd/backends/nccl/nccl_operations.h"

#include <cstddef>
#include <cstdint>

#include "sherd/backends/nccl/nccl_types.h"

namespace sherd::internal {
namespace {

bool IsError(NcclResult result) {
  return result != kNcclSuccess && result != kNcclInProgress;
}

// Runs body(), a series of calls, as one operation: none waits for another.
template <typename Body>
NcclResult Grouped(const NcclApi& api, Body body) {
  NcclResult result = api.group_start();
  if (IsError(result)) return result;
  const NcclResult inner = body();
  // Called after an error too, since a group must end.
  result = api.group_end();
  return IsError(inner) ? inner : result;
}

// call(r) for each rank from `first` on, until one fails.
template <typename Call>
NcclResult ForEachRank(int first, int size, Call call) {
  for (int k = 0; k < size; ++k) {
    const NcclResult result = call((first + k) % size);
    if (IsError(result)) return result;
  }
  return kNcclSuccess;
}

bool IsEven(const sherd_op_v0& op) { return (op.flags & SHERD_OP_EVEN) != 0; }

// An empty entry of a list is not a message, but a SEND of 0 bytes is one.
NcclResult Send(const NcclPlace& p, const sherd_op_v0& op, const void* data,
                uint64_t bytes, int peer) {
  if (bytes == 0 && op.op != SHERD_SEND) return kNcclSuccess;
  return p.api.send(data, bytes, kNcclUint8, peer, p.comm, op.stream);
}

NcclResult Receive(const NcclPlace& p, const sherd_op_v0& op, void* data,
                   uint64_t bytes, int peer) {
  if (bytes == 0 && op.op != SHERD_RECV) return kNcclSuccess;
  return p.api.recv(data, bytes, kNcclUint8, peer, p.comm, op.stream);
}

NcclResult Broadcast(const NcclPlace& p, const sherd_op_v0& op, void* data,
                     uint64_t bytes, int root) {
  if (bytes == 0) return kNcclSuccess;
  return p.api.broadcast(data, data, bytes, kNcclUint8, root, p.comm,
                         op.stream);
}

// The host has written the rank's own block: NCCL works in place.
NcclResult AllGather(const NcclPlace& p, const sherd_op_v0& op, void* out,
                     uint64_t bytes) {
  const char* const own = static_cast<const char*>(out) + p.rank * bytes;
  return p.api.all_gather(own, out, bytes, kNcclUint8, p.comm, op.stream);
}

NcclResult AllGatherV(const NcclPlace& p, const sherd_op_v0& op) {
  if (IsEven(op)) {
    if (op.recvs[0].size == 0) return kNcclSuccess;
    return AllGather(p, op, op.recvs[0].data, op.recvs[0].size);
  }
  return Grouped(p.api, [&] {
    return ForEachRank(0, p.size, [&](int r) {
      return Broadcast(p, op, op.recvs[r].data, op.recvs[r].size, r);
    });
  });
}

// Every rank begins with its own neighbours, so that not all exchange with rank
// 0 first.
NcclResult AllToAllV(const NcclPlace& p, const sherd_op_v0& op) {
  return Grouped(p.api, [&] {
    return ForEachRank(p.rank, p.size, [&](int r) {
      if (r == p.rank) return kNcclSuccess;
      const NcclResult result =
          Send(p, op, op.sends[r].data, op.sends[r].size, r);
      if (IsError(result)) return result;
      return Receive(p, op, op.recvs[r].data, op.recvs[r].size, r);
    });
  });
}

NcclResult Gather(const NcclPlace& p, const sherd_op_v0& op) {
  if (p.rank != op.root) return Send(p, op, op.in, op.bytes, op.root);
  return Grouped(p.api, [&] {
    return ForEachRank(p.rank, p.size, [&](int r) {
      if (r == p.rank) return kNcclSuccess;
      return Receive(p, op, op.recvs[r].data, op.recvs[r].size, r);
    });
  });
}

NcclResult Scatter(const NcclPlace& p, const sherd_op_v0& op) {
  if (p.rank != op.root) return Receive(p, op, op.out, op.bytes, op.root);
  return Grouped(p.api, [&] {
    return ForEachRank(p.rank, p.size, [&](int r) {
      if (r == p.rank) return kNcclSuccess;
      return Send(p, op, op.sends[r].data, op.sends[r].size, r);
    });
  });
}

NcclResult ReduceScatter(const NcclPlace& p, const sherd_op_v0& op) {
  const NcclReduction how = NcclReductionOf(op.dtype, op.reduction);
  if (IsEven(op)) {
    const uint64_t count = op.sends[0].size / how.element_size;
    if (count == 0) return kNcclSuccess;
    return p.api.reduce_scatter(op.sends[0].data, op.out, count, how.type,
                                how.op, p.comm, op.stream);
  }
  return Grouped(p.api, [&] {
    return ForEachRank(0, p.size, [&](int r) {
      const uint64_t count = op.sends[r].size / how.element_size;
      if (count == 0) return kNcclSuccess;
      return p.api.reduce(op.sends[r].data, r == p.rank ? op.out : nullptr,
                          count, how.type, how.op, r, p.comm, op.stream);
    });
  });
}

bool IsReduction(const sherd_op_v0& op) {
  return op.op == SHERD_ALL_REDUCE || op.op == SHERD_REDUCE ||
         op.op == SHERD_REDUCE_SCATTER;
}

}  // namespace

bool IsNcclOperation(const sherd_op_v0& op) {
  if (op.op < 0 || op.op >= SHERD_NUM_OPERATIONS) return false;
  return !IsReduction(op) || NcclReductionOf(op.dtype, op.reduction).native;
}

NcclResult QueueOperation(const NcclPlace& p, const sherd_op_v0& op) {
  const NcclReduction how = IsReduction(op)
                                ? NcclReductionOf(op.dtype, op.reduction)
                                : NcclReduction{};
  const uint64_t count = op.bytes / how.element_size;
  switch (op.op) {
    case SHERD_BARRIER:
      return p.api.all_reduce(op.out, op.out, 1, kNcclInt32, kNcclMax, p.comm,
                              op.stream);
    case SHERD_BROADCAST:
      return Broadcast(p, op, op.out, op.bytes, op.root);
    case SHERD_ALL_GATHER:
      return AllGather(p, op, op.out, op.bytes);
    case SHERD_ALL_TO_ALL_V:
      return AllToAllV(p, op);
    case SHERD_ALL_REDUCE:
      return p.api.all_reduce(op.in, op.out, count, how.type, how.op, p.comm,
                              op.stream);
    case SHERD_REDUCE:
      return p.api.reduce(op.in, op.out, count, how.type, how.op, op.root,
                          p.comm, op.stream);
    case SHERD_REDUCE_SCATTER:
      return ReduceScatter(p, op);
    case SHERD_ALL_GATHER_V:
      return AllGatherV(p, op);
    case SHERD_GATHER:
      return Gather(p, op);
    case SHERD_SCATTER:
      return Scatter(p, op);
    case SHERD_SEND:
      return Send(p, op, op.in, op.bytes, op.root);
    case SHERD_RECV:
      return Receive(p, op, op.out, op.bytes, op.root);
    default:
      return kNcclInvalidUsage;
  }
}

const char* NcclFunctionOf(const sherd_op_v0& op) {
  switch (op.op) {
    case SHERD_BARRIER:
    case SHERD_ALL_REDUCE:
      return "ncclAllReduce";
    case SHERD_BROADCAST:
      return "ncclBroadcast";
    case SHERD_ALL_GATHER:
      return "ncclAllGather";
    case SHERD_ALL_GATHER_V:
      return IsEven(op) ? "ncclAllGather" : "a group of ncclBroadcast";
    case SHERD_REDUCE:
      return "ncclReduce";
    case SHERD_REDUCE_SCATTER:
      return IsEven(op) ? "ncclReduceScatter" : "a group of ncclReduce";
    case SHERD_SEND:
      return "ncclSend";
    case SHERD_RECV:
      return "ncclRecv";
    default:
      return "a group of ncclSend and ncclRecv";
  }
}

}  // namespace sherd::internal
