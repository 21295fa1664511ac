#include "sherd/core/nn/lookup/max_norm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "absl/types/span.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/nn/lookup/peer_counts.h"
#include "sherd/core/nn/lookup/table_layout.h"

namespace sherd::internal {
namespace {

using Ids = std::vector<int64_t>;

void SortAndUnify(Ids& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

// The ids of all ranks for a table with `rows` rows, ascending.
absl::StatusOr<Ids> AllIds(const BagView& bags, int64_t rows,
                           ProcessGroup* group,
                           const CollectiveOptions& options) {
  Ids own(static_cast<size_t>(bags.ids().size()));
  for (size_t i = 0; i < own.size(); ++i) {
    own[i] = bags.ids()[static_cast<int64_t>(i)];
  }
  SortAndUnify(own);
  if (group == nullptr) return own;
  const auto ranks = static_cast<size_t>(group->size());
  std::vector<int64_t> counts(ranks);
  const auto count = static_cast<int64_t>(own.size());
  SHERD_RETURN_IF_ERROR(group->AllGather<int64_t>(
      absl::MakeConstSpan(&count, 1), absl::MakeSpan(counts), options));
  SHERD_RETURN_IF_ERROR(CheckIdCounts(counts, rows));
  size_t total = 0;
  for (const int64_t n : counts) total += static_cast<size_t>(n);
  Ids all(total);
  std::vector<MutableBytes> recvs(ranks);
  std::byte* to = reinterpret_cast<std::byte*>(all.data());
  for (size_t r = 0; r < ranks; ++r) {
    recvs[r] =
        MutableBytes(to, static_cast<size_t>(counts[r]) * sizeof(int64_t));
    to += recvs[r].size();
  }
  SHERD_RETURN_IF_ERROR(group->AllGatherV(
      ConstBytes(reinterpret_cast<const std::byte*>(own.data()),
                 own.size() * sizeof(int64_t)),
      recvs, options));
  absl::Span<const int64_t> rest = all;
  for (size_t r = 0; r < ranks; ++r) {
    const auto ids = rest.first(static_cast<size_t>(counts[r]));
    SHERD_RETURN_IF_ERROR(CheckIds(static_cast<int>(r), ids, rows));
    rest.remove_prefix(ids.size());
  }
  SortAndUnify(all);
  return all;
}

// Calls `visit` with the type of elements of `dtype`.
template <typename Visitor>
void DispatchTable(DType dtype, Visitor visit) {
  DispatchDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float> ||
                  std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
      visit(tag);
    }
  });
}

// A row's norm to the power of p, or its largest element for an infinite p.
class PowerSum {
 public:
  explicit PowerSum(double p) : p_(p) {}

  template <typename T>
  void Add(const T* row, int64_t count, double& sum) const {
    for (int64_t i = 0; i < count; ++i) {
      const double size = std::abs(static_cast<double>(row[i]));
      if (std::isinf(p_)) {
        if (!(size <= sum)) sum = size;
      } else {
        sum += p_ == 2 ? size * size : p_ == 1 ? size : std::pow(size, p_);
      }
    }
  }
  ReduceOp reduction() const {
    return std::isinf(p_) ? ReduceOp::kMax : ReduceOp::kSum;
  }
  double Norm(double sum) const {
    if (p_ == 2) return std::sqrt(sum);
    return p_ == 1 || std::isinf(p_) ? sum : std::pow(sum, 1 / p_);
  }

 private:
  double p_;
};

// What this rank contributes to the sums of the rows `ids`.
template <typename T>
void AddOwn(const PlannedTable& table, int rank, bool direct,
            const PowerSum& power, const Ids& ids, std::vector<double>& sums) {
  // As one rank reads them, so that all ranks have the same.
  const std::vector<ColumnStrip> strips = StripsOf(table.boxes, /*reader=*/0);
  std::vector<ReadableStrip> readable(strips.size());
  for (size_t s = 0; s < strips.size(); ++s) {
    SetReadable(strips[s], table.boxes, table.shards, sizeof(T), 0,
                readable[s]);
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    int first_owner = -1;
    for (size_t s = 0; s < strips.size(); ++s) {
      const size_t band = readable[s].BandOf(ids[i]);
      const auto shard = static_cast<size_t>(strips[s].bands[band].shard);
      const int owner = table.boxes[shard].rank;
      if (s == 0) first_owner = owner;
      if ((direct ? first_owner : owner) != rank) continue;
      power.Add(reinterpret_cast<const T*>(readable[s].Row(band, ids[i])),
                strips[s].width, sums[i]);
    }
  }
}

template <typename T>
void ScaleOwn(const PlannedTable& table, int rank, const PowerSum& power,
              const Ids& ids, absl::Span<const double> sums) {
  using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const double max_norm = *table.options.max_norm;
  for (size_t b = 0; b < table.boxes.size(); ++b) {
    const PlacedBox& box = table.boxes[b];
    if (box.rank != rank || !HasElements(box)) continue;
    const auto begin = std::lower_bound(ids.begin(), ids.end(), box.offsets[0]);
    for (auto id = begin;
         id != ids.end() && *id < box.offsets[0] + box.sizes[0]; ++id) {
      const double norm =
          power.Norm(sums[static_cast<size_t>(id - ids.begin())]);
      if (!(norm > max_norm)) continue;
      const Sum scale = static_cast<Sum>(max_norm / (norm + 1e-7));
      T* const row =
          reinterpret_cast<T*>(table.shards[b].data +
                               (*id - box.offsets[0]) * table.shards[b].stride);
      for (int64_t c = 0; c < box.sizes[1]; ++c) {
        row[c] = static_cast<T>(static_cast<Sum>(row[c]) * scale);
      }
    }
  }
}

}  // namespace

absl::Status Renormalize(PlannedTable& table, ProcessGroup* group,
                         const CollectiveOptions& options, bool direct) {
  if (group != nullptr && group->size() == 1) group = nullptr;
  const int rank = group == nullptr ? 0 : group->rank();
  SHERD_ASSIGN_OR_RETURN(const Ids ids,
                         AllIds(table.bags, table.rows, group, options));
  const PowerSum power(table.options.norm_type);
  std::vector<double> sums(ids.size());
  DispatchTable(table.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    AddOwn<T>(table, rank, direct, power, ids, sums);
  });
  if (group != nullptr) {
    // All have read when it ends.
    SHERD_RETURN_IF_ERROR(group->AllReduce<double>(absl::MakeSpan(sums),
                                                   power.reduction(), options));
  }
  DispatchTable(table.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    ScaleOwn<T>(table, rank, power, ids, sums);
  });
  if (group == nullptr || !direct) return absl::OkStatus();
  return group->Barrier(options);
}

}  // namespace sherd::internal
