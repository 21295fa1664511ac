#include "sherd/core/comm/channel/own_block.h"

namespace sherd::internal {
namespace {

ConstBytes In(const Collective& call) {
  return {static_cast<const std::byte*>(call.in), call.bytes};
}

MutableBytes Out(const Collective& call) {
  return {static_cast<std::byte*>(call.out), call.bytes};
}

}  // namespace

BlockCopy OwnBlock(const Collective& call, int rank) {
  if (!HasOwnBlock(call.op)) return {};
  switch (call.op) {
    case CollectiveOp::kAllGather:
      return {
          In(call),
          {static_cast<std::byte*>(call.out) + rank * call.bytes, call.bytes}};
    case CollectiveOp::kAllToAllV:
      return {call.sends[rank], call.recvs[rank]};
    case CollectiveOp::kAllGatherV:
      return {In(call), call.recvs[rank]};
    case CollectiveOp::kGather:
      if (call.root != rank) return {};
      return {In(call), call.recvs[rank]};
    case CollectiveOp::kScatter:
      if (call.root != rank) return {};
      return {call.sends[rank], Out(call)};
    default:
      return {};
  }
}

BlockCopy LoneReduction(const Collective& call) {
  if (!IsReduction(call.op)) return {};
  return {call.op == CollectiveOp::kReduceScatter ? call.sends[0] : In(call),
          Out(call)};
}

}  // namespace sherd::internal
