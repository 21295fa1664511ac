#include "sherd/serialization/checkpoint/load/load_exchange.h"

#include <algorithm>

#include "absl/types/span.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

// Parts begin at multiples of this, and are at most so long, so that positions
// fit in an int.
constexpr int64_t kPartGranularity = 4096;
constexpr int64_t kMaxPart = int64_t{1} << 30;
// Shorter pieces are not worth their descriptions.
constexpr int64_t kMinPiece = int64_t{64} << 10;

int64_t RoundUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

// The dimensions before `dim` are cut into single indices, `dim` into `rows`,
// and those after it not at all.
struct ExchangeStream::Cut {
  size_t dim = 0;
  int64_t rows = 1;
  // Bytes of a row, and of all rows of one index of the dimensions before.
  int64_t row_bytes = 0;
  int64_t outer_bytes = 0;
  int64_t pieces_per_outer = 1;

  // The first piece that does not begin before byte `at` of the shard.
  int64_t FirstFrom(int64_t at) const {
    if (at <= 0) return 0;
    return at / outer_bytes * pieces_per_outer +
           RoundUp(at % outer_bytes, rows * row_bytes);
  }
};

ExchangeStream::ExchangeStream(size_t element_size, int world_size,
                               int64_t max_part_bytes)
    : element_size_(static_cast<int64_t>(element_size)),
      world_size_(world_size),
      max_part_(std::clamp(max_part_bytes / kPartGranularity * kPartGranularity,
                           kPartGranularity, kMaxPart)) {}

void ExchangeStream::Add(const SavedLayout& layout) {
  Entry entry{&layout, total_, 0, {}};
  if (!layout.is_grid()) {
    int64_t before = 0;
    entry.before.reserve(static_cast<size_t>(layout.size()));
    for (int64_t i = 0; i < layout.size(); ++i) {
      entry.before.push_back(before);
      before += layout.VolumeAt(i) * element_size_;
    }
  }
  total_ += Volume(layout.sizes()) * element_size_;
  entry.end = total_;
  entries_.push_back(std::move(entry));
}

void ExchangeStream::Finish() {
  rounds_ = RoundUp(RoundUp(total_, world_size_), max_part_);
  if (rounds_ == 0) return;
  part_ = RoundUp(RoundUp(total_, world_size_ * rounds_), kPartGranularity) *
          kPartGranularity;
  piece_ =
      std::max({part_ / 8, std::min(kMinPiece, max_part_ / 8), element_size_});
}

std::pair<size_t, size_t> ExchangeStream::TensorsIn(int64_t round) const {
  const int64_t begin = round * world_size_ * part_;
  const int64_t end = begin + world_size_ * part_;
  const auto first = std::partition_point(
      entries_.begin(), entries_.end(),
      [&](const Entry& entry) { return entry.end <= begin; });
  const auto last = std::partition_point(
      first, entries_.end(),
      [&](const Entry& entry) { return entry.begin < end; });
  return {static_cast<size_t>(first - entries_.begin()),
          static_cast<size_t>(last - entries_.begin())};
}

ExchangeStream::Cut ExchangeStream::CutOf(const Dims& sizes) const {
  Cut cut;
  cut.row_bytes = Volume(sizes) * element_size_;
  if (sizes.empty()) {
    cut.outer_bytes = cut.row_bytes;
    return cut;
  }
  for (cut.dim = 0;; ++cut.dim) {
    cut.outer_bytes = cut.row_bytes;
    cut.row_bytes /= sizes[cut.dim];
    if (cut.row_bytes <= piece_ || cut.dim + 1 == sizes.size()) break;
  }
  cut.rows = std::clamp<int64_t>(piece_ / cut.row_bytes, 1, sizes[cut.dim]);
  cut.pieces_per_outer = RoundUp(sizes[cut.dim], cut.rows);
  return cut;
}

int64_t ExchangeStream::BytesBefore(const Entry& entry, int64_t shard,
                                    const Box& box) const {
  if (!entry.layout->is_grid()) {
    return entry.before[static_cast<size_t>(shard)];
  }
  // In each dimension the cells before this one, with the same cells in the
  // dimensions before and all of those after.
  const Dims& sizes = entry.layout->sizes();
  int64_t before = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    before = before * sizes[d];
    int64_t cells = std::min(box.offsets[d], sizes[d]);
    for (size_t e = 0; e < d; ++e) cells *= box.sizes[e];
    before += cells;
  }
  return before * element_size_;
}

int64_t ExchangeStream::ShardAt(const Entry& entry, int64_t at) const {
  int64_t low = 0;
  int64_t high = entry.layout->size() - 1;
  Box box;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    entry.layout->BoxAt(middle, box);
    const int64_t end =
        BytesBefore(entry, middle, box) + Volume(box.sizes) * element_size_;
    if (end > at) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

absl::Status ExchangeStream::VisitShard(
    const Entry& entry, int64_t shard, int64_t begin, int64_t end,
    absl::FunctionRef<absl::Status(const Piece&)> visit) const {
  Piece piece;
  piece.tensor = static_cast<size_t>(&entry - entries_.data());
  piece.shard = shard;
  Box box;
  entry.layout->BoxAt(shard, box);
  if (IsEmpty(box)) return absl::OkStatus();
  const int64_t start = entry.begin + BytesBefore(entry, shard, box);
  const Cut cut = CutOf(box.sizes);
  int64_t outer = 1;
  for (size_t d = 0; d < cut.dim; ++d) outer *= box.sizes[d];
  const int64_t last =
      std::min(cut.FirstFrom(end - start), outer * cut.pieces_per_outer);
  for (int64_t q = cut.FirstFrom(begin - start); q < last; ++q) {
    piece.box = box;
    const int64_t row = q % cut.pieces_per_outer * cut.rows;
    int64_t index = q / cut.pieces_per_outer;
    piece.offset = index * cut.outer_bytes + row * cut.row_bytes;
    piece.bytes = cut.row_bytes;
    if (!box.sizes.empty()) {
      piece.box.offsets[cut.dim] += row;
      piece.box.sizes[cut.dim] = std::min(cut.rows, box.sizes[cut.dim] - row);
      piece.bytes *= piece.box.sizes[cut.dim];
    }
    for (size_t d = cut.dim; d > 0; --d) {
      piece.box.offsets[d - 1] += index % box.sizes[d - 1];
      piece.box.sizes[d - 1] = 1;
      index /= box.sizes[d - 1];
    }
    const int64_t at = start + piece.offset;
    piece.rank = static_cast<int>(at / part_ % world_size_);
    piece.position = at % part_;
    SHERD_RETURN_IF_ERROR(visit(piece));
  }
  return absl::OkStatus();
}

absl::Status ExchangeStream::ForEachOf(
    int64_t round, int rank,
    absl::FunctionRef<absl::Status(const Piece&)> visit) const {
  const int64_t begin = (round * world_size_ + rank) * part_;
  const int64_t end = begin + part_;
  const auto [first, last] = TensorsIn(round);
  for (size_t t = first; t < last; ++t) {
    const Entry& entry = entries_[t];
    if (entry.end <= begin || entry.begin >= end) continue;
    Box box;
    for (int64_t shard =
             ShardAt(entry, std::max<int64_t>(begin - entry.begin, 0));
         shard < entry.layout->size(); ++shard) {
      entry.layout->BoxAt(shard, box);
      if (entry.begin + BytesBefore(entry, shard, box) >= end) break;
      SHERD_RETURN_IF_ERROR(VisitShard(entry, shard, begin, end, visit));
    }
  }
  return absl::OkStatus();
}

void ExchangeStream::ForEachIn(
    int64_t round, size_t tensor, const BoxView& box,
    absl::FunctionRef<void(const Piece&)> visit) const {
  const int64_t begin = round * world_size_ * part_;
  const int64_t end = begin + world_size_ * part_;
  const Entry& entry = entries_[tensor];
  entry.layout->ForEachIn(box, [&](int64_t shard) {
    // The visitor has no errors.
    VisitShard(entry, shard, begin, end, [&](const Piece& piece) {
      if (CommonVolume(piece.box, box) > 0) visit(piece);
      return absl::OkStatus();
    }).IgnoreError();
    return true;
  });
}

}  // namespace sherd
