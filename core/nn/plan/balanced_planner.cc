#include "sherd/core/nn/balanced_planner.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/units.h"
#include "sherd/core/nn/tree/module_contents.h"
#include "sherd/core/nn/tree/value_identity.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"

namespace sherd {
namespace {

using internal::ModuleContents;
using internal::NamedMember;

struct Table {
  std::string path;
  Tensor tensor;

  int64_t rows() const { return tensor.sizes()[0]; }
  int64_t row_bytes() const {
    return tensor.sizes()[1] * static_cast<int64_t>(tensor.element_size());
  }
};

bool IsEmbedding(const Module& module, absl::string_view, absl::string_view) {
  return module.type_name() == "Embedding" ||
         module.type_name() == "EmbeddingBag";
}

// By falling bytes, then by path.
absl::StatusOr<std::vector<Table>> TablesOf(
    Module& root, const BalancedPlannerOptions& options) {
  const auto is_table = options.is_table ? options.is_table : IsEmbedding;
  std::vector<Table> tables;
  absl::flat_hash_set<internal::ValueIdentity> known;
  SHERD_RETURN_IF_ERROR(internal::ForEachModule(
      root, [&](const std::string& prefix, Module& module,
                const ModuleContents& contents) {
        for (const NamedMember& member : contents.members) {
          const auto* tensor = member.value.get_if<Tensor>();
          if (member.kind != MemberKind::kParameter || tensor == nullptr ||
              tensor->dim() != 2 || !is_table(module, prefix, member.name)) {
            continue;
          }
          const auto identity = internal::IdentityOf(member.value);
          if (identity && !known.insert(*identity).second) continue;
          tables.push_back({absl::StrCat(prefix, member.name), *tensor});
        }
        return absl::OkStatus();
      }));
  std::sort(tables.begin(), tables.end(), [](const Table& a, const Table& b) {
    if (a.tensor.nbytes() != b.tensor.nbytes()) {
      return a.tensor.nbytes() > b.tensor.nbytes();
    }
    return a.path < b.path;
  });
  return tables;
}

// The bytes of tables that ranks have so far.
class Ranks {
 public:
  Ranks(size_t count, int64_t capacity)
      : bytes_(count, 0), capacity_(capacity) {}

  int64_t bytes(size_t rank) const { return bytes_[rank]; }

  // The lowest rank with the fewest bytes.
  size_t Least() const {
    return static_cast<size_t>(std::min_element(bytes_.begin(), bytes_.end()) -
                               bytes_.begin());
  }

  void Add(size_t rank, int64_t bytes) { bytes_[rank] += bytes; }

  // Rows for each rank such that those that get some have the same bytes
  // afterwards, up to a row; empty if they do not fit.
  std::vector<int64_t> Divide(int64_t rows, int64_t row_bytes) const {
    int64_t low = 0;
    int64_t high = capacity_;
    if (Total(RowsUpTo(high, rows, row_bytes)) < rows) return {};
    while (low < high) {
      const int64_t level = low + (high - low) / 2;
      if (Total(RowsUpTo(level, rows, row_bytes)) < rows) {
        low = level + 1;
      } else {
        high = level;
      }
    }
    std::vector<int64_t> result = RowsUpTo(low, rows, row_bytes);
    // Fewer than one row per rank.
    int64_t surplus = Total(result) - rows;
    for (size_t rank = result.size(); surplus > 0 && rank-- > 0;) {
      const int64_t less = std::min<int64_t>(result[rank], 1);
      result[rank] -= less;
      surplus -= less;
    }
    return result;
  }

 private:
  static int64_t Total(const std::vector<int64_t>& rows) {
    return std::accumulate(
        rows.begin(), rows.end(), int64_t{0}, [](int64_t a, int64_t b) {
          return CheckedAdd(a, b).value_or(std::numeric_limits<int64_t>::max());
        });
  }

  // As many rows for each rank as keep it within `level` bytes.
  std::vector<int64_t> RowsUpTo(int64_t level, int64_t rows,
                                int64_t row_bytes) const {
    std::vector<int64_t> result;
    for (const int64_t bytes : bytes_) {
      result.push_back(
          std::min(rows, std::max<int64_t>(level - bytes, 0) / row_bytes));
    }
    return result;
  }

  std::vector<int64_t> bytes_;
  const int64_t capacity_;
};

// One plan.
class Balancer {
 public:
  Balancer(std::vector<Placement> placements, bool any_device,
           int64_t bytes_per_rank)
      : placements_(std::move(placements)),
        any_device_(any_device),
        bytes_per_rank_(bytes_per_rank),
        ranks_(placements_.size(), bytes_per_rank) {}

  absl::Status Add(const Table& table) {
    const size_t least = ranks_.Least();
    const int64_t bytes = table.tensor.nbytes();
    if (bytes <= bytes_per_rank_ - ranks_.bytes(least)) {
      absl::StrAppend(&plan_.reasons, table.path, ", ", FormatBytes(bytes),
                      ": whole on ", PlaceOf(least, table).ToString(),
                      ", which had the fewest bytes, ",
                      FormatBytes(ranks_.bytes(least)), "\n");
      return Place(table, {{least, table.rows()}});
    }
    const std::vector<int64_t> rows =
        ranks_.Divide(table.rows(), table.row_bytes());
    if (rows.empty()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          table.path, " of ", FormatBytes(bytes), " does not fit: ",
          placements_.size(), " ranks of ", FormatBytes(bytes_per_rank_),
          " are full of the tables before; allow more by bytes_per_rank"));
    }
    std::vector<std::pair<size_t, int64_t>> parts;
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      if (rows[rank] > 0) parts.emplace_back(rank, rows[rank]);
    }
    Explain(table, parts);
    return Place(table, parts);
  }

  ShardingPlan plan() && { return std::move(plan_); }

 private:
  Placement PlaceOf(size_t rank, const Table& table) const {
    const Placement& placement = placements_[rank];
    if (!any_device_) return placement;
    return placement.OnSameOwner(Device(table.tensor.device().type));
  }

  void Explain(const Table& table,
               const std::vector<std::pair<size_t, int64_t>>& parts) {
    absl::StrAppend(&plan_.reasons, table.path, ", ",
                    FormatBytes(table.tensor.nbytes()), ": rows ");
    int64_t first = 0;
    for (const auto& [rank, rows] : parts) {
      absl::StrAppend(&plan_.reasons, first == 0 ? "" : ", ", first, "-",
                      first + rows - 1, " on ",
                      PlaceOf(rank, table).ToString());
      first += rows;
    }
    absl::StrAppend(&plan_.reasons, "; as a whole it exceeds ",
                    FormatBytes(bytes_per_rank_), " per rank\n");
  }

  // Each rank of `parts` gets that many of the next rows.
  absl::Status Place(const Table& table,
                     const std::vector<std::pair<size_t, int64_t>>& parts) {
    std::vector<ShardMetadata> shards;
    int64_t first = 0;
    for (const auto& [rank, rows] : parts) {
      shards.push_back({.offsets = {first, 0},
                        .sizes = {rows, table.tensor.sizes()[1]},
                        .placement = PlaceOf(rank, table)});
      ranks_.Add(rank, rows * table.row_bytes());
      first += rows;
    }
    SHERD_ASSIGN_OR_RETURN(ShardingSpecPtr spec,
                           EnumerableShardingSpec::Create(std::move(shards)));
    plan_.plan.push_back({table.path, std::move(spec)});
    return absl::OkStatus();
  }

  const std::vector<Placement> placements_;
  const bool any_device_;
  const int64_t bytes_per_rank_;
  Ranks ranks_;
  ShardingPlan plan_;
};

absl::StatusOr<std::vector<Placement>> PlacesOf(
    const BalancedPlannerOptions& options) {
  if (options.placements.empty()) {
    SHERD_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group,
                           internal::GroupOrDefault(options.group));
    return PlacementsOn(group->world_ranks());
  }
  for (const Placement& placement : options.placements) {
    SHERD_RETURN_IF_ERROR(placement.status());
  }
  return options.placements;
}

}  // namespace

absl::StatusOr<ShardingPlan> BalancedPlanner::BuildPlan(Module& module) {
  if (options_.bytes_per_rank < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes_per_rank is ", options_.bytes_per_rank,
                     ", but should be a number of bytes, or 0"));
  }
  SHERD_ASSIGN_OR_RETURN(std::vector<Placement> places, PlacesOf(options_));
  SHERD_ASSIGN_OR_RETURN(const std::vector<Table> tables,
                         TablesOf(module, options_));
  int64_t total = 0;
  int64_t longest_row = 0;
  for (const Table& table : tables) {
    total = CheckedAdd(total, table.tensor.nbytes())
                .value_or(std::numeric_limits<int64_t>::max());
    longest_row = std::max(longest_row, table.row_bytes());
  }
  const auto count = static_cast<int64_t>(places.size());
  const int64_t even = total / count + (total % count != 0);
  // Rows are not cut.
  const int64_t bytes_per_rank =
      options_.bytes_per_rank > 0
          ? options_.bytes_per_rank
          : CheckedAdd(even, even / 20 + longest_row)
                .value_or(std::numeric_limits<int64_t>::max());
  Balancer balancer(std::move(places), options_.placements.empty(),
                    bytes_per_rank);
  for (const Table& table : tables) SHERD_RETURN_IF_ERROR(balancer.Add(table));
  return std::move(balancer).plan();
}

}  // namespace sherd
