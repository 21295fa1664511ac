#include <memory>
#include <utility>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/tools/bench/peers/collective_work.h"

namespace sherd {
namespace {

class SherdCollective final : public CollectiveWork {
 public:
  SherdCollective(RankContext& context, const CollectiveShape& shape,
                  std::shared_ptr<ProcessGroup> group)
      : CollectiveWork(context, shape), group_(std::move(group)) {}

  absl::Status Run() override {
    switch (shape().kind) {
      case BenchCollective::kBarrier:
        return group_->Barrier();
      case BenchCollective::kBroadcast:
        return group_->Broadcast(recv(), 0);
      case BenchCollective::kAllReduce:
        return group_->AllReduce(send(), recv(), DType::kFloat32,
                                 ReduceOp::kSum);
      case BenchCollective::kAllGather:
        return group_->AllGather(send(), recv());
      case BenchCollective::kAllToAll:
        return group_->AllToAll(send(), recv());
    }
    return absl::InternalError("no such collective");
  }

 private:
  const std::shared_ptr<ProcessGroup> group_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankWork>> MakeSherdCollective(
    RankContext& context, const CollectiveShape& shape,
    const std::string& backend) {
  SHERD_ASSIGN_OR_RETURN(auto group, context.Group(backend));
  return std::make_unique<SherdCollective>(context, shape, std::move(group));
}

}  // namespace sherd
