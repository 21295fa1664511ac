#include <cstdint>
#include <memory>
#include <utility>

#include "gloo/alltoallv.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/tools/bench/peers/bare_gloo.h"
#include "sherd/tools/bench/peers/bare_move.h"
#include "sherd/tools/bench/peers/move.h"

namespace sherd {
namespace {

class GlooMove final : public PackedMove {
 public:
  static absl::StatusOr<std::unique_ptr<RankWork>> Make(RankContext& context,
                                                        const Move& move) {
    SHERD_ASSIGN_OR_RETURN(auto mesh, context.GlooMesh());
    std::unique_ptr<GlooMove> made(
        new GlooMove(std::move(mesh), context, move));
    SHERD_RETURN_IF_ERROR(made->Init());
    return made;
  }

 private:
  GlooMove(std::shared_ptr<gloo::Context> mesh, RankContext& context,
           const Move& move)
      : PackedMove(context, move), mesh_(std::move(mesh)) {}

  absl::Status Send(const uint32_t* send, uint32_t* receive) override {
    return CallGloo([&] {
      gloo::AlltoallvOptions options(mesh_);
      // Gloo only reads it.
      options.setInput(const_cast<uint32_t*>(send), send_counts());
      options.setOutput(receive, receive_counts());
      gloo::alltoallv(options);
    });
  }

  const std::shared_ptr<gloo::Context> mesh_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankWork>> MakeGlooMove(RankContext& context,
                                                       const Move& move) {
  return GlooMove::Make(context, move);
}

}  // namespace sherd
