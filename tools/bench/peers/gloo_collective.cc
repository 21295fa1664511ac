#include <memory>
#include <utility>

#include "gloo/allgather.h"
#include "gloo/allreduce.h"
#include "gloo/alltoall.h"
#include "gloo/barrier.h"
#include "gloo/broadcast.h"
#include "gloo/math.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/tools/bench/peers/bare_gloo.h"
#include "sherd/tools/bench/peers/collective_work.h"

namespace sherd {
namespace {

class GlooCollective final : public CollectiveWork {
 public:
  GlooCollective(RankContext& context, const CollectiveShape& shape,
                 std::shared_ptr<gloo::Context> mesh)
      : CollectiveWork(context, shape), mesh_(std::move(mesh)) {}

  absl::Status Run() override {
    return CallGloo([this] { Move(); });
  }

 private:
  static char* Chars(absl::Span<std::byte> bytes) {
    return reinterpret_cast<char*>(bytes.data());
  }
  static float* Floats(absl::Span<std::byte> bytes) {
    return reinterpret_cast<float*>(bytes.data());
  }

  void Move() {
    switch (shape().kind) {
      case BenchCollective::kBarrier: {
        gloo::BarrierOptions options(mesh_);
        return gloo::barrier(options);
      }
      case BenchCollective::kBroadcast: {
        gloo::BroadcastOptions options(mesh_);
        options.setOutput(Chars(recv()), recv().size());
        options.setRoot(0);
        return gloo::broadcast(options);
      }
      case BenchCollective::kAllReduce: {
        gloo::AllreduceOptions options(mesh_);
        const size_t count = send().size() / sizeof(float);
        options.setInput(Floats(send()), count);
        options.setOutput(Floats(recv()), count);
        options.setReduceFunction(
            static_cast<void (*)(void*, const void*, const void*, size_t)>(
                &gloo::sum<float>));
        return gloo::allreduce(options);
      }
      case BenchCollective::kAllGather: {
        gloo::AllgatherOptions options(mesh_);
        options.setInput(Chars(send()), send().size());
        options.setOutput(Chars(recv()), recv().size());
        return gloo::allgather(options);
      }
      case BenchCollective::kAllToAll: {
        gloo::AlltoallOptions options(mesh_);
        options.setInput(Chars(send()), send().size());
        options.setOutput(Chars(recv()), recv().size());
        return gloo::alltoall(options);
      }
    }
  }

  const std::shared_ptr<gloo::Context> mesh_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankWork>> MakeGlooCollective(
    RankContext& context, const CollectiveShape& shape) {
  SHERD_ASSIGN_OR_RETURN(auto mesh, context.GlooMesh());
  return std::make_unique<GlooCollective>(context, shape, std::move(mesh));
}

}  // namespace sherd
