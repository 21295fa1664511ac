#include "sherd/core/nn/update/row_groups.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "sherd/core/nn/lookup/pool_kernels.h"

namespace sherd::internal {
namespace {

// As many counters as stay in the nearest cache.
constexpr int kMostDigitBits = 11;
// Fewer entries are compared with one another: counters cost more.
constexpr size_t kFewEntries = 200;

// For buffers that are not cleared when they grow again.
template <typename T>
void GrowTo(std::vector<T>& buffer, size_t size) {
  if (buffer.size() < size) buffer.resize(size);
}

}  // namespace

bool RowGroups::Collect(const GradientSource& source, int64_t begin,
                        uint64_t span, size_t& count) {
  const RequestView& request = source.request;
  const auto ids_in_all = static_cast<size_t>(request.ids.size());
  return request.ids.Dispatch([&](const auto* ids) {
    size_t i = 0;
    const std::byte* gradient = source.gradients;
    for (uint64_t b = 0; b < request.bags; ++b, gradient += source.stride) {
      const size_t length = request.lengths == nullptr ? 1 : request.lengths[b];
      if (length > ids_in_all - i) return false;
      for (const size_t end = i + length; i < end; ++i) {
        // Written in any case: a branch would be mispredicted.
        const auto row = static_cast<uint64_t>(int64_t{ids[i]}) -
                         static_cast<uint64_t>(begin);
        entries_[count] = {row, count};
        found_gradients_[count] = gradient;
        found_factors_[count] = source.factors + i * source.factor_stride;
        count += row < span ? 1 : 0;
      }
    }
    return i == ids_in_all;
  });
}

void RowGroups::Sort(size_t count, uint64_t span) {
  if (count < kFewEntries) {
    std::sort(entries_.begin(),
              entries_.begin() + static_cast<std::ptrdiff_t>(count),
              [](const Entry& a, const Entry& b) {
                return a.row != b.row ? a.row < b.row : a.position < b.position;
              });
    return;
  }
  const int bits = span <= 1 ? 0 : std::bit_width(span - 1);
  const int passes = (bits + kMostDigitBits - 1) / kMostDigitBits;
  std::array<size_t, size_t{1} << kMostDigitBits> places;
  for (int pass = 0; pass < passes; ++pass) {
    const int digit_bits = (bits + passes - 1) / passes;
    const int shift = pass * digit_bits;
    const uint64_t mask = (uint64_t{1} << digit_bits) - 1;
    std::fill_n(places.begin(), mask + 1, 0);
    for (size_t i = 0; i < count; ++i) {
      ++places[entries_[i].row >> shift & mask];
    }
    size_t next = 0;
    for (size_t digit = 0; digit <= mask; ++digit) {
      next += std::exchange(places[digit], next);
    }
    for (size_t i = 0; i < count; ++i) {
      other_entries_[places[entries_[i].row >> shift & mask]++] = entries_[i];
    }
    std::swap(entries_, other_entries_);
  }
}

bool RowGroups::Set(absl::Span<const GradientSource> sources, int64_t begin,
                    int64_t end, size_t factor_bytes, bool all) {
  factor_bytes_ = factor_bytes;
  size_t most = 0;
  for (const GradientSource& source : sources) {
    most += static_cast<size_t>(source.request.ids.size());
  }
  // One more, which is written for an id that is not taken.
  GrowTo(entries_, most + 1);
  GrowTo(other_entries_, most + 1);
  GrowTo(found_gradients_, most + 1);
  GrowTo(found_factors_, most + 1);
  const auto span = static_cast<uint64_t>(end - begin);
  size_t count = 0;
  for (const GradientSource& source : sources) {
    if (!Collect(source, begin, span, count)) return false;
  }
  if (all && count != most) return false;
  Sort(count, span);
  GrowTo(gradients_, count + kRowsAhead);
  GrowTo(factors_, count * factor_bytes);
  rows_.clear();
  firsts_.clear();
  for (size_t i = 0; i < count; ++i) {
    const Entry& entry = entries_[i];
    if (i == 0 || entry.row != entries_[i - 1].row) {
      rows_.push_back(begin + static_cast<int64_t>(entry.row));
      firsts_.push_back(static_cast<int64_t>(i));
    }
    gradients_[i] = found_gradients_[entry.position];
    if (factor_bytes == 0) continue;
    std::memcpy(&factors_[i * factor_bytes], found_factors_[entry.position],
                factor_bytes);
  }
  firsts_.push_back(static_cast<int64_t>(count));
  std::fill_n(&gradients_[count], kRowsAhead,
              count == 0 ? nullptr : gradients_[count - 1]);
  return true;
}

}  // namespace sherd::internal
