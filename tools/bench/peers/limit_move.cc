#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sherd/core/base/checked_math.h"
#include "sherd/tools/bench/peers/move.h"

namespace sherd {
namespace {

constexpr int64_t kPageBytes = 4096;

// Where what each rank has begins, page by page from `offset` on, which becomes
// the end of the last one.
std::vector<int64_t> Offsets(const BoxLayout& layout, int64_t& offset) {
  std::vector<int64_t> offsets;
  for (const RankBoxes& boxes : layout) {
    offsets.push_back(offset);
    offset += RoundUp(WordsOf(boxes) * int64_t{sizeof(uint32_t)}, kPageBytes);
  }
  return offsets;
}

class LimitMove final : public RankWork {
 public:
  LimitMove(RankContext& context, const Move& move)
      : tensor_(move.tensor), pushes_(move.verb == MoveVerb::kGather) {
    std::byte* const shared = context.shared().data();
    const int own = context.rank();
    const int ranks = context.world();
    int64_t end = 0;
    const std::vector<int64_t> from = Offsets(move.from, end);
    const std::vector<int64_t> to = Offsets(move.to, end);
    const auto stored = [shared](const RankBoxes& boxes, int64_t offset) {
      return StoreInTurn(boxes, reinterpret_cast<uint32_t*>(shared + offset));
    };
    destinations_ = stored(move.to[own], to[own]);
    Fill(tensor_, stored(move.from[own], from[own]));
    // Each rank begins with a different one.
    for (int k = 0; k < ranks; ++k) {
      const int other = (own + k) % ranks;
      const int source = pushes_ ? own : other;
      const int destination = pushes_ ? other : own;
      const auto sources = stored(move.from[source], from[source]);
      const auto targets = stored(move.to[destination], to[destination]);
      for (const Piece& piece :
           PiecesBetween(move.from[source], move.to[destination])) {
        copies_.push_back({targets[piece.to], sources[piece.from], piece.box});
        if (other != own) bytes_between_ranks_ += piece.box.bytes();
      }
    }
  }

  absl::Status Prepare() override {
    // At first they are untouched pages.
    if (!first_) Spoil(tensor_, destinations_);
    first_ = false;
    return absl::OkStatus();
  }

  absl::Status Run() override {
    for (const Copy& copy : copies_) CopyPiece(copy.to, copy.from, copy.piece);
    return absl::OkStatus();
  }

  absl::Status Check() override { return sherd::Check(tensor_, destinations_); }

  std::optional<WorkFigures> Figures() const override {
    return WorkFigures{.bytes_sent = pushes_ ? bytes_between_ranks_ : 0,
                       .bytes_received = pushes_ ? 0 : bytes_between_ranks_};
  }

 private:
  struct Copy {
    StoredBox to;
    StoredBox from;
    WordBox piece;
  };

  const WordTensor tensor_;
  const bool pushes_;
  std::vector<StoredBox> destinations_;
  std::vector<Copy> copies_;
  int64_t bytes_between_ranks_ = 0;
  bool first_ = true;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankWork>> MakeLimitMove(RankContext& context,
                                                        const Move& move) {
  return std::make_unique<LimitMove>(context, move);
}

int64_t LimitMoveBytes(const Move& move) {
  int64_t end = 0;
  Offsets(move.from, end);
  Offsets(move.to, end);
  return end;
}

}  // namespace sherd
