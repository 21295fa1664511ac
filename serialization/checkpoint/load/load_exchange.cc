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
// Shorter units are not worth their descriptions.
constexpr int64_t kMinUnit = int64_t{64} << 10;

int64_t RoundUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The dimension in which the shards follow one another, if together they are
// the row-major array of the tensor: it alone is cut, and none before it has
// several indices.
std::optional<size_t> StackedDim(const SavedLayout& layout) {
  if (!layout.is_grid() || layout.size() == 1) return std::nullopt;
  std::optional<size_t> dim;
  for (size_t d = 0; d < layout.sizes().size(); ++d) {
    if (layout.axes()[d].cells > 1) {
      if (dim.has_value()) return std::nullopt;
      dim = d;
    } else if (!dim.has_value() && layout.sizes()[d] != 1) {
      return std::nullopt;
    }
  }
  return dim;
}

}  // namespace

// The dimensions before `dim` are cut into single indices, `dim` into `rows`,
// and those after it not at all.
struct ExchangeStream::Cut {
  size_t dim = 0;
  int64_t rows = 1;
  // Bytes of a row, and of all rows of one index of the dimensions before.
  int64_t row_bytes = 0;
  int64_t outer_bytes = 0;
  int64_t units_per_outer = 1;

  // Where a unit begins in the array.
  int64_t BeginOf(int64_t unit) const {
    return unit / units_per_outer * outer_bytes +
           unit % units_per_outer * rows * row_bytes;
  }
  // The unit that has byte `at`.
  int64_t UnitAt(int64_t at) const {
    return at / outer_bytes * units_per_outer +
           at % outer_bytes / (rows * row_bytes);
  }
  // The first unit that does not begin before byte `at`.
  int64_t FirstFrom(int64_t at) const {
    if (at <= 0) return 0;
    return at / outer_bytes * units_per_outer +
           RoundUp(at % outer_bytes, rows * row_bytes);
  }
};

struct ExchangeStream::Block {
  size_t tensor = 0;
  // In the tensor.
  int64_t number = 0;
  Box box;
  // Where it begins in the stream.
  int64_t begin = 0;
  Cut cut;
  // None if the box is empty.
  int64_t units = 0;
};

ExchangeStream::ExchangeStream(size_t element_size, int world_size,
                               int64_t max_part_bytes)
    : element_size_(static_cast<int64_t>(element_size)),
      world_size_(world_size),
      max_part_(std::clamp(max_part_bytes / kPartGranularity * kPartGranularity,
                           kPartGranularity, kMaxPart)) {}

void ExchangeStream::Add(const SavedLayout& layout) {
  Entry entry{&layout, total_, 0, {}, StackedDim(layout)};
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
  unit_ =
      std::max({part_ / 8, std::min(kMinUnit, max_part_ / 8), element_size_});
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
    if (cut.row_bytes <= unit_ || cut.dim + 1 == sizes.size()) break;
  }
  cut.rows = std::clamp<int64_t>(unit_ / cut.row_bytes, 1, sizes[cut.dim]);
  cut.units_per_outer = RoundUp(sizes[cut.dim], cut.rows);
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

void ExchangeStream::BlockAt(const Entry& entry, int64_t number,
                             Block& block) const {
  block.tensor = static_cast<size_t>(&entry - entries_.data());
  block.number = number;
  block.begin = entry.begin;
  if (entry.stacked.has_value()) {
    block.box.offsets.assign(entry.layout->sizes().size(), 0);
    block.box.sizes = entry.layout->sizes();
  } else {
    entry.layout->BoxAt(number, block.box);
    block.begin += BytesBefore(entry, number, block.box);
  }
  block.units = 0;
  if (IsEmpty(block.box)) return;
  block.cut = CutOf(block.box.sizes);
  block.units = block.cut.units_per_outer;
  for (size_t d = 0; d < block.cut.dim; ++d) block.units *= block.box.sizes[d];
}

absl::Status ExchangeStream::VisitPart(
    const Block& block, int64_t part,
    absl::FunctionRef<absl::Status(const Piece&)> visit) const {
  const Cut& cut = block.cut;
  const int64_t begin = part * part_ - block.begin;
  int64_t unit = block.units == 0 ? 0 : cut.FirstFrom(begin);
  const int64_t last =
      block.units == 0 ? 0
                       : std::min(cut.FirstFrom(begin + part_), block.units);
  Piece piece;
  piece.tensor = block.tensor;
  piece.block = block.number;
  piece.rank = static_cast<int>(part % world_size_);
  while (unit < last) {
    int64_t outer = unit / cut.units_per_outer;
    const int64_t next = std::min(last, (outer + 1) * cut.units_per_outer);
    const int64_t row = unit % cut.units_per_outer * cut.rows;
    piece.offset = cut.BeginOf(unit);
    piece.position = piece.offset - begin;
    piece.bytes = cut.row_bytes;
    piece.box = block.box;
    if (!block.box.sizes.empty()) {
      const int64_t rows =
          std::min((next - unit) * cut.rows, block.box.sizes[cut.dim] - row);
      piece.box.offsets[cut.dim] += row;
      piece.box.sizes[cut.dim] = rows;
      piece.bytes *= rows;
    }
    for (size_t d = cut.dim; d > 0; --d) {
      piece.box.offsets[d - 1] += outer % block.box.sizes[d - 1];
      piece.box.sizes[d - 1] = 1;
      outer /= block.box.sizes[d - 1];
    }
    SHERD_RETURN_IF_ERROR(visit(piece));
    unit = next;
  }
  return absl::OkStatus();
}

absl::Status ExchangeStream::ForEachOf(
    int64_t round, int rank,
    absl::FunctionRef<absl::Status(const Piece&)> visit) const {
  const int64_t part = round * world_size_ + rank;
  const int64_t begin = part * part_;
  const int64_t end = begin + part_;
  auto entry = std::partition_point(
      entries_.begin(), entries_.end(),
      [&](const Entry& entry) { return entry.end <= begin; });
  Block block;
  for (; entry != entries_.end() && entry->begin < end; ++entry) {
    if (entry->begin == entry->end) continue;
    const bool stacked = entry->stacked.has_value();
    const int64_t blocks = stacked ? 1 : entry->layout->size();
    int64_t number =
        stacked ? 0
                : ShardAt(*entry, std::max<int64_t>(begin - entry->begin, 0));
    for (; number < blocks; ++number) {
      BlockAt(*entry, number, block);
      if (block.begin >= end) break;
      SHERD_RETURN_IF_ERROR(VisitPart(block, part, visit));
    }
  }
  return absl::OkStatus();
}

absl::Status ExchangeStream::ForEachShardIn(
    const Piece& piece,
    absl::FunctionRef<absl::Status(const ShardPart&)> visit) const {
  const Entry& entry = entries_[piece.tensor];
  if (!entry.stacked.has_value()) {
    return visit({piece.block, piece.offset, piece.bytes});
  }
  // Of the rows that the shards divide.
  const int64_t row_bytes =
      (entry.end - entry.begin) / entry.layout->sizes()[*entry.stacked];
  const int64_t end = piece.offset + piece.bytes;
  int64_t shard = ShardAt(entry, piece.offset);
  Box box;
  for (int64_t at = piece.offset; at < end; ++shard) {
    entry.layout->BoxAt(shard, box);
    const int64_t first = box.offsets[*entry.stacked] * row_bytes;
    const int64_t last = first + box.sizes[*entry.stacked] * row_bytes;
    // Shards without elements have no part.
    if (last <= at) continue;
    const int64_t bytes = std::min(last, end) - at;
    SHERD_RETURN_IF_ERROR(visit({shard, at - first, bytes}));
    at += bytes;
  }
  return absl::OkStatus();
}

void ExchangeStream::ForEachIn(
    int64_t round, size_t tensor, const BoxView& box,
    absl::FunctionRef<void(const Piece&)> visit) const {
  const Entry& entry = entries_[tensor];
  Block block;
  const auto visit_block = [&](int64_t number) {
    BlockAt(entry, number, block);
    if (block.units == 0) return true;
    // Where the first and the last common element lie in the block.
    int64_t first = 0;
    int64_t last = 0;
    for (size_t d = 0; d < box.sizes.size(); ++d) {
      const int64_t begin = block.box.offsets[d];
      const int64_t size = block.box.sizes[d];
      first = first * size + std::max<int64_t>(box.offsets[d] - begin, 0);
      last = last * size + std::min(box.end(d) - begin, size) - 1;
    }
    const Cut& cut = block.cut;
    const auto part_of = [&](int64_t element) {
      const int64_t unit = cut.UnitAt(element * element_size_);
      return (block.begin + cut.BeginOf(unit)) / part_;
    };
    const int64_t end = std::min(part_of(last) + 1, (round + 1) * world_size_);
    for (int64_t part = std::max(part_of(first), round * world_size_);
         part < end; ++part) {
      // The visitor has no errors.
      VisitPart(block, part, [&](const Piece& piece) {
        if (CommonVolume(piece.box, box) > 0) visit(piece);
        return absl::OkStatus();
      }).IgnoreError();
    }
    return true;
  };
  if (entry.stacked.has_value()) {
    visit_block(0);
  } else {
    entry.layout->ForEachIn(box, visit_block);
  }
}

}  // namespace sherd
