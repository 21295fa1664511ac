#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gloo/alltoallv.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/tools/bench/bare_gloo.h"
#include "sherd/tools/bench/move.h"

namespace sherd {
namespace {

// A shard, the pieces of it that go to, or come from, each rank, and the buffer
// in which these stand one after another.
struct Side {
  MatrixBox box;
  std::vector<MatrixBox> pieces;
  std::vector<int64_t> counts;
  std::shared_ptr<Storage> shard;
  // The shard itself if the pieces stand there so already.
  std::shared_ptr<Storage> buffer;

  bool staged() const { return buffer != shard; }
  uint32_t* words() const { return static_cast<uint32_t*>(shard->data()); }
  uint32_t* buffer_words() const {
    return static_cast<uint32_t*>(buffer->data());
  }
};

absl::StatusOr<Side> MakeSide(const MatrixBox& box,
                              const MatrixLayout& others) {
  Side side{.box = box};
  int64_t offset = 0;
  bool in_place = true;
  for (const MatrixBox& other : others) {
    const MatrixBox piece = Intersect(box, other);
    side.pieces.push_back(piece);
    side.counts.push_back(piece.words());
    if (piece.words() > 0) {
      in_place &= IsRun(piece, box) && OffsetIn(piece, box) == offset;
    }
    offset += piece.words();
  }
  SHERD_ASSIGN_OR_RETURN(side.shard, Storage::Allocate(box.bytes()));
  side.buffer = side.shard;
  if (!in_place) {
    SHERD_ASSIGN_OR_RETURN(side.buffer, Storage::Allocate(box.bytes()));
  }
  return side;
}

class GlooMove final : public RankWork {
 public:
  GlooMove(std::shared_ptr<gloo::Context> mesh, const Matrix& matrix,
           Side source, Side destination)
      : mesh_(std::move(mesh)),
        matrix_(matrix),
        source_(std::move(source)),
        destination_(std::move(destination)) {
    FillBox(matrix_, source_.box, source_.words());
  }

  absl::Status Prepare() override {
    SpoilBox(matrix_, destination_.box, destination_.words());
    return absl::OkStatus();
  }

  absl::Status Run() override {
    if (source_.staged()) Pack();
    SHERD_RETURN_IF_ERROR(CallGloo([this] {
      gloo::AlltoallvOptions options(mesh_);
      options.setInput(source_.buffer_words(), source_.counts);
      options.setOutput(destination_.buffer_words(), destination_.counts);
      gloo::alltoallv(options);
    }));
    if (destination_.staged()) Unpack();
    return absl::OkStatus();
  }

  absl::Status Check() override {
    return CheckBox(matrix_, destination_.box, destination_.words());
  }

 private:
  void Pack() {
    uint32_t* to = source_.buffer_words();
    for (const MatrixBox& piece : source_.pieces) {
      CopyPiece(to, piece, source_.words(), source_.box, piece);
      to += piece.words();
    }
  }

  void Unpack() {
    const uint32_t* from = destination_.buffer_words();
    for (const MatrixBox& piece : destination_.pieces) {
      CopyPiece(destination_.words(), destination_.box, from, piece, piece);
      from += piece.words();
    }
  }

  const std::shared_ptr<gloo::Context> mesh_;
  const Matrix matrix_;
  const Side source_;
  const Side destination_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankWork>> MakeGlooMove(RankContext& context,
                                                       const Move& move) {
  SHERD_ASSIGN_OR_RETURN(auto mesh, context.GlooMesh());
  SHERD_ASSIGN_OR_RETURN(Side source,
                         MakeSide(move.from[context.rank()], move.to));
  SHERD_ASSIGN_OR_RETURN(Side destination,
                         MakeSide(move.to[context.rank()], move.from));
  return std::make_unique<GlooMove>(std::move(mesh), move.matrix,
                                    std::move(source), std::move(destination));
}

}  // namespace sherd
