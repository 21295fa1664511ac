#include "sherd/core/comm/channel/channel.h"

namespace sherd::internal {

void EvenBlocks::List(const Membership& membership, Collective& call) {
  if (!call.even) return;
  const int size = membership.size();
  const bool is_root = call.root == membership.rank();
  const size_t n = call.bytes;
  const bool sends = call.op == CollectiveOp::kAllToAllV ||
                     call.op == CollectiveOp::kReduceScatter ||
                     (call.op == CollectiveOp::kScatter && is_root);
  const bool recvs = call.op == CollectiveOp::kAllToAllV ||
                     (call.op == CollectiveOp::kGather && is_root);
  if (sends) {
    const auto* const from = static_cast<const std::byte*>(call.in);
    sends_.resize(size);
    for (int r = 0; r < size; ++r) sends_[r] = {from + r * n, n};
    call.sends = sends_;
  }
  if (recvs) {
    auto* const to = static_cast<std::byte*>(call.out);
    recvs_.resize(size);
    for (int r = 0; r < size; ++r) recvs_[r] = {to + r * n, n};
    call.recvs = recvs_;
  }
}

}  // namespace sherd::internal
