#include <cstdint>
#include <memory>
#include <vector>

#include "sherd/core/base/checked_math.h"
#include "sherd/tools/bench/move.h"

namespace sherd {
namespace {

constexpr int64_t kPageBytes = 4096;

// Where each box of a layout begins, page by page from `offset` on, which
// becomes the end of the last one.
std::vector<int64_t> Offsets(const MatrixLayout& layout, int64_t& offset) {
  std::vector<int64_t> offsets;
  for (const MatrixBox& box : layout) {
    offsets.push_back(offset);
    offset += RoundUp(box.bytes(), kPageBytes);
  }
  return offsets;
}

class LimitMove final : public RankWork {
 public:
  LimitMove(RankContext& context, const Move& move, bool push)
      : move_(move), rank_(context.rank()), push_(push) {
    std::byte* const shared = context.shared().data();
    int64_t end = 0;
    for (const int64_t offset : Offsets(move.from, end)) {
      sources_.push_back(reinterpret_cast<uint32_t*>(shared + offset));
    }
    for (const int64_t offset : Offsets(move.to, end)) {
      destinations_.push_back(reinterpret_cast<uint32_t*>(shared + offset));
    }
    FillBox(move.matrix, move.from[rank_], sources_[rank_]);
  }

  absl::Status Prepare() override {
    SpoilBox(move_.matrix, move_.to[rank_], destinations_[rank_]);
    return absl::OkStatus();
  }

  absl::Status Run() override {
    const int ranks = static_cast<int>(move_.from.size());
    // Everybody begins with another one.
    for (int k = 0; k < ranks; ++k) {
      const int other = (rank_ + k) % ranks;
      push_ ? Copy(rank_, other) : Copy(other, rank_);
    }
    return absl::OkStatus();
  }

  absl::Status Check() override {
    return CheckBox(move_.matrix, move_.to[rank_], destinations_[rank_]);
  }

 private:
  void Copy(int from, int to) {
    CopyPiece(destinations_[to], move_.to[to], sources_[from], move_.from[from],
              Intersect(move_.from[from], move_.to[to]));
  }

  const Move move_;
  const int rank_;
  const bool push_;
  std::vector<uint32_t*> sources_;
  std::vector<uint32_t*> destinations_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankWork>> MakeLimitMove(RankContext& context,
                                                        const Move& move,
                                                        bool push) {
  return std::make_unique<LimitMove>(context, move, push);
}

int64_t LimitMoveBytes(const Move& move) {
  int64_t end = 0;
  Offsets(move.from, end);
  Offsets(move.to, end);
  return end;
}

}  // namespace sherd
