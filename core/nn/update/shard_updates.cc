#include "sherd/core/nn/update/shard_updates.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/lookup/peer_counts.h"
#include "sherd/core/nn/lookup/pool_kernels.h"
#include "sherd/core/nn/update/accumulators.h"

namespace sherd::internal {
namespace {

// Rows whose gradients and weights stay in the nearest cache.
constexpr int64_t kBytesAtOnce = 8192;

size_t RowsAtOnce(int64_t row_bytes) {
  return static_cast<size_t>(
      std::clamp<int64_t>(kBytesAtOnce / row_bytes, 1, 64));
}

template <typename T>
T* NumbersIn(std::vector<std::byte>& bytes, size_t count) {
  if (bytes.size() < count * sizeof(T)) bytes.resize(count * sizeof(T));
  return reinterpret_cast<T*>(bytes.data());
}

// Calls `visit` with a 0 of the type AccumulatorOf(table).
template <typename Visitor>
auto DispatchNumber(DType table, Visitor visit) {
  return table == kFloat64 ? visit(double{0}) : visit(float{0});
}

ColumnRange RangeOf(const PlannedTable& table, size_t box) {
  return {.column = table.boxes[box].offsets[1],
          .width = table.boxes[box].sizes[1],
          .columns = table.columns};
}

}  // namespace

void ShardUpdates::Plan(absl::Span<const PlannedTable> tables, int rank) {
  rank_ = rank;
  states_.resize(tables.size());
  for (size_t t = 0; t < tables.size(); ++t) {
    const PlannedTable& table = tables[t];
    TableState& state = states_[t];
    state.strips = StripsOf(table.boxes, /*reader=*/0);
    state.sends.resize(table.boxes.size());
    state.sums.resize(table.boxes.size());
    for (const ColumnStrip& strip : state.strips) {
      for (const RowBand& band : strip.bands) {
        const auto box = static_cast<size_t>(band.shard);
        state.sends[box] = table.boxes[box].sizes[1] < table.columns;
      }
    }
    for (size_t b = 0; b < table.boxes.size(); ++b) {
      if (!HasElements(table.boxes[b])) continue;
      if (table.shared && table.boxes[b].rank != rank) continue;
      shards_.push_back({.table = t, .box = b});
    }
  }
}

bool ShardUpdates::IsCut(size_t table, size_t box) const {
  return options_.rule == SparseRule::kRowWiseAdagrad &&
         tables_[table].boxes[box].sizes[1] < tables_[table].columns;
}

void ShardUpdates::Begin(absl::Span<const PlannedTable> tables,
                         absl::Span<const size_t> same,
                         absl::Span<const Value> accumulators,
                         const UpdateOptions& options) {
  tables_ = tables;
  same_ = same;
  options_ = options;
  adds_squares_ = false;
  exchanges_squares_ = false;
  for (size_t t = 0; t < tables.size(); ++t) {
    for (size_t b = 0; b < tables[t].boxes.size(); ++b) {
      if (same[t] != t || !HasElements(tables[t].boxes[b])) continue;
      adds_squares_ |= IsCut(t, b);
      exchanges_squares_ |= IsCut(t, b) && tables[t].shared;
    }
  }
  for (OwnShard& shard : shards_) {
    if (same[shard.table] != shard.table) continue;
    shard.cut = IsCut(shard.table, shard.box);
    shard.accumulator =
        RowsOfAccumulator(accumulators[shard.table], tables[shard.table],
                          shard.box, options.rule);
  }
}

absl::Status ShardUpdates::SetGroups(const GradientMessages& messages,
                                     size_t table, size_t box,
                                     RowGroups& groups) {
  static constexpr double kOne = 1;
  static constexpr float kOneFloat = 1;
  sources_.clear();
  bool all = true;
  for (size_t t = table; t < tables_.size(); ++t) {
    if (same_[t] != table) continue;
    all = messages.FindSources(tables_, t, box, sources_) && all;
  }
  // Lookups of one table may have factors or not.
  const DType dtype = AccumulatorOf(tables_[table].dtype);
  const bool has_factors =
      std::any_of(sources_.begin(), sources_.end(),
                  [](const GradientSource& s) { return s.factors != nullptr; });
  for (GradientSource& source : sources_) {
    if (source.factors != nullptr) continue;
    source.factors = dtype == kFloat64
                         ? reinterpret_cast<const std::byte*>(&kOne)
                         : reinterpret_cast<const std::byte*>(&kOneFloat);
  }
  const PlacedBox& rows = tables_[table].boxes[box];
  if (groups.Set(sources_, rows.offsets[0], rows.offsets[0] + rows.sizes[0],
                 has_factors ? SizeOf(dtype) : 0, all)) {
    return absl::OkStatus();
  }
  return absl::DataLossError("a rank sent a malformed message of gradients");
}

template <typename Visitor>
absl::Status ShardUpdates::ForEachSent(int rank, Visitor visit) const {
  for (const bool shared : {true, false}) {
    // Those of tables that are not shared stay with their rank.
    if (!shared && rank != rank_) continue;
    for (size_t t = 0; t < tables_.size(); ++t) {
      if (same_[t] != t || tables_[t].shared != shared) continue;
      for (size_t b = 0; b < tables_[t].boxes.size(); ++b) {
        if (!states_[t].sends[b]) continue;
        if (shared && tables_[t].boxes[b].rank != rank) continue;
        SHERD_RETURN_IF_ERROR(visit(t, b));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ShardUpdates::Collect(const GradientMessages& messages,
                                   size_t& bytes) {
  bytes = 0;
  for (OwnShard& shard : shards_) {
    if (same_[shard.table] != shard.table || !shard.cut) continue;
    SHERD_RETURN_IF_ERROR(
        SetGroups(messages, shard.table, shard.box, shard.groups));
    if (!states_[shard.table].sends[shard.box]) continue;
    const PlannedTable& table = tables_[shard.table];
    const size_t number = SizeOf(AccumulatorOf(table.dtype));
    const size_t rows = shard.groups.rows().size();
    const ColumnRange range = RangeOf(table, shard.box);
    bytes +=
        sizeof(uint64_t) + rows * sizeof(int64_t) +
        (range.column == 0 ? PaddedPart(rows * number) : 0) +
        PaddedPart(rows * number * static_cast<size_t>(SquareCount(range)));
  }
  return absl::OkStatus();
}

template <typename Number>
void ShardUpdates::AddGradients(const OwnShard& shard, const RowGroups& groups,
                                size_t first, size_t count, Number* sums) {
  const PlannedTable& table = tables_[shard.table];
  const int64_t width = table.boxes[shard.box].sizes[1];
  const int64_t begin = groups.first(first);
  ends_.clear();
  for (size_t i = 0; i < count; ++i) {
    ends_.push_back(groups.first(first + i + 1) - begin);
  }
  const std::byte* const factors = groups.factors();
  PoolRows(table.dtype, AccumulatorOf(table.dtype), /*max=*/false,
           {.out = reinterpret_cast<std::byte*>(sums),
            .out_stride = width * static_cast<int64_t>(sizeof(Number)),
            .width = width,
            .bags = static_cast<int64_t>(count),
            .ends = ends_.data(),
            .rows = groups.gradients() + begin,
            .weights = factors == nullptr
                           ? nullptr
                           : factors + begin * int64_t{sizeof(Number)}});
}

template <typename Number>
void ShardUpdates::WriteSumsOf(OwnShard& shard, std::byte*& to) {
  const ColumnRange range = RangeOf(tables_[shard.table], shard.box);
  const absl::Span<const int64_t> rows = shard.groups.rows();
  const uint64_t count = rows.size();
  std::memcpy(to, &count, sizeof(count));
  std::copy(rows.begin(), rows.end(),
            reinterpret_cast<int64_t*>(to + sizeof(count)));
  to += sizeof(count) + rows.size() * sizeof(int64_t);
  if (range.column == 0) {
    auto* const old = reinterpret_cast<Number*>(to);
    const int64_t first = tables_[shard.table].boxes[shard.box].offsets[0];
    for (size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(
          &old[i],
          shard.accumulator.data + (rows[i] - first) * shard.accumulator.stride,
          sizeof(Number));
    }
    to += PaddedPart(rows.size() * sizeof(Number));
  }
  auto* squares = reinterpret_cast<Number*>(to);
  const int64_t squares_per_row = SquareCount(range);
  const size_t at_once =
      RowsAtOnce(range.width * static_cast<int64_t>(sizeof(Number)));
  auto* gradient = NumbersIn<Number>(
      shard.gradients, rows.size() * static_cast<size_t>(range.width));
  for (size_t i = 0; i < rows.size(); i += at_once) {
    const size_t n = std::min(at_once, rows.size() - i);
    AddGradients(shard, shard.groups, i, n, gradient);
    for (size_t k = 0; k < n; ++k, gradient += range.width) {
      WriteSquares(range, gradient, squares);
      squares += squares_per_row;
    }
  }
  to += PaddedPart(rows.size() * sizeof(Number) *
                   static_cast<size_t>(squares_per_row));
}

void ShardUpdates::WriteSums(std::byte* to) {
  ForEachSent(rank_, [&](size_t table, size_t box) {
    const auto shard = std::find_if(
        shards_.begin(), shards_.end(),
        [&](const OwnShard& s) { return s.table == table && s.box == box; });
    DispatchNumber(tables_[table].dtype,
                   [&](auto zero) { WriteSumsOf<decltype(zero)>(*shard, to); });
    return absl::OkStatus();
  }).IgnoreError();
}

absl::Status ShardUpdates::ReadSumsOf(int rank,
                                      absl::Span<const std::byte> bytes) {
  return ForEachSent(rank, [&](size_t table, size_t box) -> absl::Status {
    const ColumnRange range = RangeOf(tables_[table], box);
    const size_t number = SizeOf(AccumulatorOf(tables_[table].dtype));
    const auto squares = static_cast<size_t>(SquareCount(range));
    const auto malformed = [&] {
      return Malformed(rank, "malformed sums of squares");
    };
    uint64_t count = 0;
    if (bytes.size() < sizeof(count)) return malformed();
    std::memcpy(&count, bytes.data(), sizeof(count));
    bytes.remove_prefix(sizeof(count));
    if (count > bytes.size() / sizeof(int64_t) ||
        (count > 0 && squares > bytes.size() / number / count)) {
      return malformed();
    }
    const size_t old = range.column == 0 ? PaddedPart(count * number) : 0;
    const size_t all =
        count * sizeof(int64_t) + old + PaddedPart(count * number * squares);
    if (bytes.size() < all) return malformed();
    ShardSums& sums = states_[table].sums[box];
    sums.rows = {reinterpret_cast<const int64_t*>(bytes.data()), count};
    sums.accumulators = bytes.data() + count * sizeof(int64_t);
    sums.squares = sums.accumulators + old;
    bytes.remove_prefix(all);
    return absl::OkStatus();
  });
}

template <typename Number>
absl::Status ShardUpdates::FindMeans(OwnShard& shard) {
  const PlannedTable& table = tables_[shard.table];
  TableState& state = states_[shard.table];
  const absl::Span<const int64_t> rows = shard.groups.rows();
  auto* const means = NumbersIn<Number>(shard.means, rows.size());
  auto* const old = NumbersIn<Number>(shard.accumulators, rows.size());
  for (size_t i = 0; i < rows.size();) {
    // The shards of the row, and the rows up to which they are the same.
    ranges_.clear();
    parts_.clear();
    squares_.clear();
    int64_t end = std::numeric_limits<int64_t>::max();
    int last = -1;
    for (const ColumnStrip& strip : state.strips) {
      const auto band = std::partition_point(
          strip.bands.begin(), strip.bands.end(),
          [&](const RowBand& b) { return b.end <= rows[i]; });
      end = std::min(end, band->end);
      if (band->shard == last) continue;
      last = band->shard;
      ranges_.push_back(RangeOf(table, static_cast<size_t>(last)));
      parts_.push_back(&state.sums[static_cast<size_t>(last)]);
    }
    const auto next = static_cast<size_t>(
        std::lower_bound(rows.begin() + static_cast<std::ptrdiff_t>(i),
                         rows.end(), end) -
        rows.begin());
    const absl::Span<const int64_t> same = rows.subspan(i, next - i);
    for (size_t p = 0; p < parts_.size(); ++p) {
      const ShardSums& part = *parts_[p];
      const auto at = static_cast<size_t>(
          std::lower_bound(part.rows.begin(), part.rows.end(), rows[i]) -
          part.rows.begin());
      if (part.rows.size() - at < same.size() ||
          part.rows.subspan(at, same.size()) != same) {
        return absl::DataLossError(
            "ranks have gradients of different rows of a table");
      }
      if (p == 0) {
        std::memcpy(&old[i], part.accumulators + at * sizeof(Number),
                    same.size() * sizeof(Number));
      }
      squares_.push_back(part.squares +
                         at * sizeof(Number) *
                             static_cast<size_t>(SquareCount(ranges_[p])));
    }
    AddSquares(ranges_, squares_, same.size(), &means[i]);
    for (; i < next; ++i) means[i] /= static_cast<Number>(table.columns);
  }
  return absl::OkStatus();
}

absl::Status ShardUpdates::ReadSums(
    absl::Span<const absl::Span<const std::byte>> sums) {
  for (size_t r = 0; r < sums.size(); ++r) {
    SHERD_RETURN_IF_ERROR(ReadSumsOf(static_cast<int>(r), sums[r]));
  }
  for (OwnShard& shard : shards_) {
    if (same_[shard.table] != shard.table || !shard.cut) continue;
    SHERD_RETURN_IF_ERROR(DispatchNumber(
        tables_[shard.table].dtype,
        [&](auto zero) { return FindMeans<decltype(zero)>(shard); }));
  }
  return absl::OkStatus();
}

void ShardUpdates::Prefetch(const OwnShard& shard, const RowGroups& groups,
                            size_t first, size_t count) const {
  // Longer rows are fetched by the processor itself.
  constexpr int64_t kMostBytes = 1024;
  const PlannedTable& table = tables_[shard.table];
  const PlacedBox& box = table.boxes[shard.box];
  const ShardRows& to = table.shards[shard.box];
  const int64_t bytes = std::min(
      box.sizes[1] * static_cast<int64_t>(SizeOf(table.dtype)), kMostBytes);
  const bool wide = options_.rule == SparseRule::kAdagrad;
  for (size_t i = first; i < std::min(first + count, groups.rows().size());
       ++i) {
    const int64_t row = groups.rows()[i] - box.offsets[0];
    for (int64_t b = 0; b < bytes; b += 64) {
      __builtin_prefetch(to.data + row * to.stride + b, 1);
    }
    if (shard.accumulator.data == nullptr) continue;
    for (int64_t b = 0; b < (wide ? bytes : 1); b += 64) {
      __builtin_prefetch(
          shard.accumulator.data + row * shard.accumulator.stride + b, 1);
    }
  }
}

template <typename Number>
void ShardUpdates::FindFactors(const OwnShard& shard, size_t first,
                               size_t count, const Number* gradients) {
  const auto rate = static_cast<Number>(options_.learning_rate);
  const auto eps = static_cast<Number>(options_.eps);
  auto* const factors = NumbersIn<Number>(factors_, count);
  if (options_.rule == SparseRule::kSgd) {
    std::fill_n(factors, count, rate);
    return;
  }
  const int64_t columns = tables_[shard.table].columns;
  for (size_t i = 0; i < count; ++i) {
    Number sum = 0;
    Number mean = 0;
    if (shard.cut) {
      const size_t at = (first + i) * sizeof(Number);
      std::memcpy(&sum, &shard.accumulators[at], sizeof(sum));
      std::memcpy(&mean, &shard.means[at], sizeof(mean));
    } else {
      std::memcpy(&sum, accumulators_[i], sizeof(sum));
      mean =
          SumOfSquares(gradients + static_cast<int64_t>(i) * columns, columns) /
          static_cast<Number>(columns);
    }
    sum += mean;
    if (accumulators_[i] != nullptr) {
      std::memcpy(accumulators_[i], &sum, sizeof(sum));
    }
    factors[i] = rate / (std::sqrt(sum) + eps);
  }
}

template <typename Number>
void ShardUpdates::ApplyTo(OwnShard& shard, const RowGroups& groups) {
  const PlannedTable& table = tables_[shard.table];
  const PlacedBox& box = table.boxes[shard.box];
  const ShardRows& to = table.shards[shard.box];
  const size_t all = groups.rows().size();
  const auto width = static_cast<size_t>(box.sizes[1]);
  const bool sent = shard.cut && states_[shard.table].sends[shard.box];
  const size_t at_once =
      RowsAtOnce(box.sizes[1] * static_cast<int64_t>(sizeof(Number)));
  Prefetch(shard, groups, 0, at_once);
  for (size_t first = 0; first < all; first += at_once) {
    const size_t count = std::min(at_once, all - first);
    Prefetch(shard, groups, first + count, at_once);
    // The sums that were sent are still there.
    auto* const gradients =
        sent ? NumbersIn<Number>(shard.gradients, all * width) + first * width
             : NumbersIn<Number>(gradients_, count * width);
    if (!sent) AddGradients(shard, groups, first, count, gradients);
    rows_.clear();
    accumulators_.clear();
    for (size_t i = first; i < first + count; ++i) {
      const int64_t row = groups.rows()[i] - box.offsets[0];
      rows_.push_back(to.data + row * to.stride);
      accumulators_.push_back(shard.accumulator.data == nullptr
                                  ? nullptr
                                  : shard.accumulator.data +
                                        row * shard.accumulator.stride);
    }
    const UpdateBatch batch = {.count = static_cast<int64_t>(count),
                               .width = box.sizes[1],
                               .rows = rows_.data(),
                               .gradients = gradients};
    if (options_.rule == SparseRule::kAdagrad) {
      SubtractAdagrad(table.dtype, batch, accumulators_.data(),
                      options_.learning_rate, options_.eps);
      continue;
    }
    FindFactors(shard, first, count, gradients);
    SubtractScaled(table.dtype, batch, factors_.data());
  }
}

absl::Status ShardUpdates::Apply(const GradientMessages& messages) {
  for (OwnShard& shard : shards_) {
    if (same_[shard.table] != shard.table) continue;
    RowGroups& groups = shard.cut ? shard.groups : groups_;
    if (!shard.cut) {
      SHERD_RETURN_IF_ERROR(
          SetGroups(messages, shard.table, shard.box, groups));
    }
    DispatchNumber(tables_[shard.table].dtype,
                   [&](auto zero) { ApplyTo<decltype(zero)>(shard, groups); });
  }
  return absl::OkStatus();
}

}  // namespace sherd::internal
