#include "sherd/core/sharding/plan/message_rounds.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sherd::internal {
namespace {

// The most that a rank sends in one round: packed, sent, received and unpacked
// while it is in the cache. Larger rounds go to memory and back once more on
// each side, smaller ones wait for each other more often.
constexpr int64_t kRoundBytes = int64_t{8} << 20;
// With many peers a round may be larger, rather than messages very small.
constexpr int64_t kMinMessageBytes = int64_t{256} << 10;
constexpr int64_t kStagingParts = 2 * kRoundsInFlight;

class Cutter {
 public:
  Cutter(size_t element_size, int64_t max_bytes)
      : element_size_(static_cast<int64_t>(element_size)),
        max_bytes_(max_bytes) {}

  void Add(const BoxCopy& copy) {
    BoxPiece piece = {copy, copy.src_shard, copy.dst_shard};
    Cut(piece, 0);
  }

  std::vector<MessageRound> Finish() { return std::move(rounds_); }

 private:
  // Adds `piece`, whose sizes before `dim` are 1, and leaves it as it was.
  void Cut(BoxPiece& piece, size_t dim) {
    while (dim < piece.sizes.size() && piece.sizes[dim] == 1) ++dim;
    int64_t row_bytes = element_size_;
    for (size_t d = dim + 1; d < piece.sizes.size(); ++d) {
      row_bytes *= piece.sizes[d];
    }
    const int64_t rows = dim < piece.sizes.size() ? piece.sizes[dim] : 1;
    const int64_t begin = dim < piece.sizes.size() ? piece.offsets[dim] : 0;
    for (int64_t done = 0; done < rows;) {
      int64_t count = 1;
      if (row_bytes <= max_bytes_) {
        if (Left() < row_bytes) rounds_.emplace_back();
        count = std::min(rows - done, Left() / row_bytes);
      }
      if (dim < piece.sizes.size()) {
        piece.offsets[dim] = begin + done;
        piece.sizes[dim] = count;
      }
      if (row_bytes <= max_bytes_) {
        Emit(piece, count * row_bytes);
      } else {
        Cut(piece, dim + 1);
      }
      done += count;
    }
    if (dim < piece.sizes.size()) {
      piece.offsets[dim] = begin;
      piece.sizes[dim] = rows;
    }
  }

  int64_t Left() const {
    return rounds_.empty() ? 0 : max_bytes_ - rounds_.back().bytes;
  }

  void Emit(const BoxPiece& piece, int64_t bytes) {
    MessageRound& round = rounds_.back();
    round.pieces.push_back(piece);
    round.pieces.back().bytes = bytes;
    round.bytes += bytes;
  }

  const int64_t element_size_;
  const int64_t max_bytes_;
  std::vector<MessageRound> rounds_;
};

// At most `wanted` bytes in each message.
absl::StatusOr<int64_t> WholeElements(int64_t wanted, int64_t max_staging_bytes,
                                      int64_t peers, size_t element_size) {
  const int64_t element = static_cast<int64_t>(element_size);
  const int64_t bytes =
      std::min(wanted, max_staging_bytes / (kStagingParts * peers)) / element *
      element;
  if (bytes >= element) return bytes;
  return absl::InvalidArgumentError(absl::StrCat(
      "max_staging_bytes is ", max_staging_bytes, ", expected ",
      kStagingParts * peers * element, " at least: ", kStagingParts,
      " elements of ", element, " bytes for each of ", peers, " peers"));
}

}  // namespace

absl::StatusOr<int64_t> MaxMessageBytes(int64_t max_staging_bytes,
                                        int max_peers, size_t element_size) {
  const int64_t peers = std::max(max_peers, 1);
  return WholeElements(std::max(kRoundBytes / peers, kMinMessageBytes),
                       max_staging_bytes, peers, element_size);
}

absl::StatusOr<int64_t> MaxDeviceMessageBytes(int64_t max_staging_bytes,
                                              int max_peers,
                                              size_t element_size) {
  return WholeElements(max_staging_bytes, max_staging_bytes,
                       std::max(max_peers, 1), element_size);
}

absl::StatusOr<int64_t> MaxReductionMessageBytes(int64_t max_staging_bytes,
                                                 int ranks,
                                                 size_t element_size) {
  const int64_t peers = int64_t{ranks} - 1;
  const int64_t slots = 2 * peers + 1;
  // As much as a move to the replicas of the result needs.
  const int64_t least = std::max(slots, kStagingParts * peers) *
                        static_cast<int64_t>(element_size);
  if (max_staging_bytes >= least) return max_staging_bytes / slots;
  return absl::InvalidArgumentError(
      absl::StrCat("max_staging_bytes is ", max_staging_bytes,
                   ", expected at least ", least, " for ", ranks, " ranks"));
}

std::vector<MessageRound> CutIntoRounds(absl::Span<const BoxCopy> copies,
                                        size_t element_size,
                                        int64_t max_bytes) {
  Cutter cutter(element_size, max_bytes);
  for (const BoxCopy& copy : copies) cutter.Add(copy);
  return cutter.Finish();
}

}  // namespace sherd::internal
