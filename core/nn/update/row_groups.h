#ifndef SHERD_CORE_NN_UPDATE_ROW_GROUPS_H_
#define SHERD_CORE_NN_UPDATE_ROW_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "sherd/core/nn/lookup/request_message.h"

namespace sherd::internal {

// One rank's ids for a table and the gradients of their bags: that of bag b of
// the request is at gradients + b * stride, and the factor of id i at factors +
// i * factor_stride; null: there are none.
struct GradientSource {
  RequestView request = {};
  const std::byte* gradients = nullptr;
  int64_t stride = 0;
  const std::byte* factors = nullptr;
  size_t factor_stride = 0;
};

// The gradients of a shard's rows, by ascending row and, of one row, in the
// order of the sources and their ids. Keeps its buffers.
class RowGroups {
 public:
  // Takes the ids that are rows [begin, end). `factor_bytes`: the size of the
  // factors, which all sources have or none; 0: none. False if a request's
  // lengths are not those of its ids, or with `all` if an id is not one of the
  // rows.
  //
  // Cost. O(ids) for each eleven bits of end - begin.
  bool Set(absl::Span<const GradientSource> sources, int64_t begin, int64_t end,
           size_t factor_bytes, bool all);

  // The rows that have gradients.
  absl::Span<const int64_t> rows() const { return rows_; }
  // The gradients of rows()[i] are those from first(i) to first(i + 1) - 1.
  int64_t first(size_t i) const { return firsts_[i]; }
  // Followed by kRowsAhead more addresses.
  const std::byte* const* gradients() const { return gradients_.data(); }
  // Of each gradient; null: there are none.
  const std::byte* factors() const {
    return factor_bytes_ == 0 ? nullptr : factors_.data();
  }

 private:
  struct Entry {
    // Counted from the first row of the shard.
    uint64_t row = 0;
    // Position in the order of the sources.
    uint64_t position = 0;
  };

  bool Collect(const GradientSource& source, int64_t begin, uint64_t span,
               size_t& count);
  void Sort(size_t count, uint64_t span);

  size_t factor_bytes_ = 0;
  std::vector<Entry> entries_;
  std::vector<Entry> other_entries_;
  // Of each entry before it was sorted.
  std::vector<const std::byte*> found_gradients_;
  std::vector<const std::byte*> found_factors_;
  std::vector<int64_t> rows_;
  std::vector<int64_t> firsts_;
  std::vector<const std::byte*> gradients_;
  std::vector<std::byte> factors_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_UPDATE_ROW_GROUPS_H_
