#include "sherd/core/nn/lookup/row_pool.h"

#include <cstring>
#include <limits>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/lookup/pool_kernels.h"
#include "sherd/core/nn/lookup/pool_on_device.h"

namespace sherd::internal {
namespace {

// So many ids and addresses stay in the nearest caches.
constexpr int64_t kIdsAtOnce = 2048;

}  // namespace

void SetReadable(const ColumnStrip& strip, absl::Span<const PlacedBox> boxes,
                 absl::Span<const ShardRows> shards, size_t element_size,
                 int64_t column, ReadableStrip& readable) {
  readable = {.column = column, .width = strip.width};
  for (const RowBand& band : strip.bands) {
    const size_t s = static_cast<size_t>(band.shard);
    const int64_t skipped = strip.column - boxes[s].offsets[1];
    readable.begins.push_back(band.begin);
    readable.ends.push_back(band.end);
    readable.strides.push_back(shards[s].stride);
    readable.origins.push_back(
        reinterpret_cast<uintptr_t>(shards[s].data) +
        static_cast<uintptr_t>(skipped * static_cast<int64_t>(element_size) -
                               boxes[s].offsets[0] * shards[s].stride));
  }
}

int64_t RowPool::Collect(const BagRun& run, int64_t bag,
                         const PoolTarget& target) {
  ids_.clear();
  ends_.clear();
  counts_.clear();
  int64_t begin = run.begin(bag);
  const int64_t first = begin;
  int64_t bags = 0;
  const int64_t most =
      target.device.is_cpu() ? kIdsAtOnce : std::numeric_limits<int64_t>::max();
  for (; bag + bags < run.bags; ++bags) {
    const int64_t end = run.begin(bag + bags + 1);
    if (bags > 0 && end - first > most) break;
    begin = end;
  }
  const auto count = static_cast<size_t>(begin - first);
  const size_t size = SizeOf(AccumulatorOf(target.table));
  weighted_ = run.weighted;
  if (weighted_) {
    weights_.resize(count * size);
    run.copy_weights(first, begin, weights_.data());
  }
  // The weights of ids that are kept move to the front.
  const auto keep_weight = [&](size_t from) {
    if (!weighted_ || from == ids_.size()) return;
    std::memcpy(&weights_[ids_.size() * size], &weights_[from * size], size);
  };
  int64_t at = first;
  run.ids.Dispatch([&](const auto* ids) {
    for (int64_t b = 0; b < bags; ++b) {
      const int64_t end = run.begin(bag + b + 1);
      for (; at < end; ++at) {
        if (ids[at] == run.padding) continue;
        keep_weight(static_cast<size_t>(at - first));
        ids_.push_back(ids[at]);
      }
      const auto kept = static_cast<int64_t>(ids_.size());
      counts_.push_back(kept - (ends_.empty() ? 0 : ends_.back()));
      ends_.push_back(kept);
    }
  });
  return bags;
}

absl::Status RowPool::PoolStrip(const ReadableStrip& strip,
                                const PoolTarget& target, int64_t bag,
                                int64_t bags) {
  const size_t count = ids_.size();
  rows_.resize(count + kRowsAhead);
  if (strip.begins.size() == 1) {
    for (size_t i = 0; i < count; ++i) rows_[i] = strip.Row(0, ids_[i]);
  } else {
    for (size_t i = 0; i < count; ++i) {
      rows_[i] = strip.Row(strip.BandOf(ids_[i]), ids_[i]);
    }
  }
  for (size_t i = 0; i < kRowsAhead; ++i) {
    rows_[count + i] = count == 0 ? nullptr : rows_[count - 1];
  }
  std::byte* const out =
      target.data + bag * target.stride +
      strip.column * static_cast<int64_t>(SizeOf(target.dtype));
  return PoolOn(target.device, target.table, target.dtype, target.mode,
                {.out = out,
                 .out_stride = target.stride,
                 .width = strip.width,
                 .bags = bags,
                 .ends = ends_.data(),
                 .rows = rows_.data(),
                 .weights = weighted_ ? weights_.data() : nullptr,
                 .divisors = target.mode == BagMode::kMean && target.divide
                                 ? counts_.data()
                                 : nullptr});
}

absl::Status RowPool::Run(const BagRun& run,
                          absl::Span<const ReadableStrip> strips,
                          const PoolTarget& target) {
  for (int64_t bag = 0; bag < run.bags;) {
    const int64_t bags = Collect(run, bag, target);
    for (const ReadableStrip& strip : strips) {
      SHERD_RETURN_IF_ERROR(PoolStrip(strip, target, bag, bags));
    }
    bag += bags;
  }
  return absl::OkStatus();
}

}  // namespace sherd::internal
