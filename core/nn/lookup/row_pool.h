#ifndef SHERD_CORE_NN_LOOKUP_ROW_POOL_H_
#define SHERD_CORE_NN_LOOKUP_ROW_POOL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/lookup/bag_view.h"
#include "sherd/core/nn/lookup/table_layout.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd::internal {

// Rows of a shard as this process reads them; null: it cannot.
struct ShardRows {
  std::byte* data = nullptr;
  // In bytes.
  int64_t stride = 0;

  friend bool operator==(const ShardRows&, const ShardRows&) = default;
};

// Some columns of a table whose rows this process can read: row k of band i is
// at origins[i] + k * strides[i], for begins[i] <= k < ends[i].
struct ReadableStrip {
  // In the output.
  int64_t column = 0;
  int64_t width = 0;
  std::vector<int64_t> begins = {};
  std::vector<int64_t> ends = {};
  // Addresses of row 0 of the table, where it need not be.
  std::vector<uintptr_t> origins = {};
  std::vector<int64_t> strides = {};

  // The band that begins at or before `row`.
  size_t BandOf(int64_t row) const { return LastAtOrBefore(begins, row); }
  // The row, of the band at `band`.
  std::byte* Row(size_t band, int64_t row) const {
    return reinterpret_cast<std::byte*>(
        origins[band] + static_cast<uintptr_t>(row * strides[band]));
  }
  bool Holds(int64_t row) const {
    if (begins.empty() || row < begins[0]) return false;
    return row < ends[BandOf(row)];
  }
};

// Sets `readable` to `strip`, whose boxes and shards are given. `column`: see
// ReadableStrip.
void SetReadable(const ColumnStrip& strip, absl::Span<const PlacedBox> boxes,
                 absl::Span<const ShardRows> shards, size_t element_size,
                 int64_t column, ReadableStrip& readable);

// Bags in any form. The ids of bag b are those at [begin(b), begin(b + 1)), and
// all are rows of the table, or `padding`.
struct BagRun {
  IndexList ids;
  int64_t bags = 0;
  int64_t padding = -1;
  absl::FunctionRef<int64_t(int64_t b)> begin;
  bool weighted = false;
  // Writes the weights at [begin, end) in the dtype AccumulatorOf(table).
  absl::FunctionRef<void(int64_t begin, int64_t end, void* to)> copy_weights;
};

// The output of RowPool.
struct PoolTarget {
  BagMode mode = BagMode::kSum;
  // Sums are divided, if the mode is kMean.
  bool divide = true;
  DType table = kFloat32;
  DType dtype = kFloat32;
  // That of the rows and of `data`.
  Device device = {};
  // Row b is at data + b * stride.
  std::byte* data = nullptr;
  int64_t stride = 0;
};

// Finds the rows of bags and pools them: a few thousand at a time, or all on a
// device. Keeps its buffers.
class RowPool {
 public:
  //   Errors. Those of PoolOn.
  absl::Status Run(const BagRun& run, absl::Span<const ReadableStrip> strips,
                   const PoolTarget& target);

 private:
  // Collects the bags from `bag`, as many as fit, and returns how many.
  int64_t Collect(const BagRun& run, int64_t bag, const PoolTarget& target);
  absl::Status PoolStrip(const ReadableStrip& strip, const PoolTarget& target,
                         int64_t bag, int64_t bags);

  std::vector<int64_t> ids_;
  std::vector<int64_t> ends_;
  std::vector<int64_t> counts_;
  // In the dtype of sums.
  std::vector<std::byte> weights_;
  bool weighted_ = false;
  std::vector<const std::byte*> rows_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_LOOKUP_ROW_POOL_H_
