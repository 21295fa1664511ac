#include "sherd/core/comm/collective/collective.h"

#include <algorithm>

namespace sherd {

absl::string_view Name(CollectiveOp op) {
  const auto number = static_cast<uint32_t>(op);
  return number < kNumCollectiveOps ? internal::kOperationTraits[number].name
                                    : "unknown";
}

bool MovesNothing(const Collective& desc) {
  const internal::OperationTraits& traits = internal::TraitsOf(desc.op);
  if (traits.has_common_bytes) return desc.bytes == 0;
  const auto all_empty = [&desc](const auto& list) {
    return desc.even ? desc.bytes == 0
                     : std::all_of(list.begin(), list.end(),
                                   [](auto block) { return block.empty(); });
  };
  switch (traits.lists) {
    case internal::OperationLists::kSameSends:
      return all_empty(desc.sends);
    case internal::OperationLists::kSameRecvs:
      return all_empty(desc.recvs);
    default:
      return false;
  }
}

Collective InPlaceOfNothing(const Collective& desc) {
  return {.op = CollectiveOp::kBarrier,
          .sequence = desc.sequence,
          .deadline = desc.deadline,
          .on_device = desc.on_device,
          .stream = desc.stream};
}

}  // namespace sherd
