#include "sherd/core/nn/balanced_planner.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
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
  SHERD_ASSIGN_OR_RETURN(const std::vector<NamedMember> members,
                         internal::MembersOf(root));
  std::vector<Table> tables;
  absl::flat_hash_set<internal::ValueIdentity> known;
  for (const NamedMember& member : members) {
    const auto* tensor = member.value.get_if<Tensor>();
    const absl::string_view prefix =
        absl::string_view(member.path)
            .substr(0, member.path.size() - member.name.size());
    if (member.kind != MemberKind::kParameter || tensor == nullptr ||
        tensor->dim() != 2 || !is_table(*member.module, prefix, member.name)) {
      continue;
    }
    const auto identity = internal::IdentityOf(member.value);
    if (identity && !known.insert(*identity).second) continue;
    tables.push_back({member.path, *tensor});
  }
  std::sort(tables.begin(), tables.end(), [](const Table& a, const Table& b) {
    return std::tuple(-a.tensor.nbytes(), a.path) <
           std::tuple(-b.tensor.nbytes(), b.path);
  });
  return tables;
}

int64_t Total(const std::vector<int64_t>& numbers) {
  return std::accumulate(
      numbers.begin(), numbers.end(), int64_t{0}, [](int64_t a, int64_t b) {
        return CheckedAdd(a, b).value_or(std::numeric_limits<int64_t>::max());
      });
}

// One plan.
class Balancer {
 public:
  Balancer(std::vector<Placement> placements, bool any_device,
           int64_t bytes_per_rank)
      : placements_(std::move(placements)),
        any_device_(any_device),
        bytes_per_rank_(bytes_per_rank),
        bytes_(placements_.size(), 0) {}

  absl::Status Add(const Table& table) {
    // The lowest of the ranks with the fewest bytes.
    const auto least = static_cast<size_t>(
        std::min_element(bytes_.begin(), bytes_.end()) - bytes_.begin());
    const int64_t bytes = table.tensor.nbytes();
    const bool whole = bytes <= bytes_per_rank_ - bytes_[least];
    std::vector<int64_t> rows(placements_.size(), 0);
    if (whole) {
      rows[least] = table.rows();
    } else {
      rows = Divide(table);
    }
    if (Total(rows) < table.rows()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          table.path, " of ", FormatBytes(bytes), " does not fit: ",
          placements_.size(), " ranks of ", FormatBytes(bytes_per_rank_),
          " are full of the tables before; allow more by bytes_per_rank"));
    }
    const std::string why =
        whole ? absl::StrCat("which had the fewest bytes, ",
                             FormatBytes(bytes_[least]))
              : absl::StrCat("as a whole it exceeds ",
                             FormatBytes(bytes_per_rank_), " per rank");
    std::string places;
    std::vector<ShardMetadata> shards;
    int64_t first = 0;
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      // A table without rows has a place, too.
      if (rows[rank] == 0 && !(whole && rank == least)) continue;
      const Placement place = PlaceOf(rank, table);
      absl::StrAppend(
          &places, first == 0 ? "" : ", ",
          whole ? "whole" : absl::StrCat(first, "-", first + rows[rank] - 1),
          " on ", place.ToString());
      shards.push_back({.offsets = {first, 0},
                        .sizes = {rows[rank], table.tensor.sizes()[1]},
                        .placement = place});
      bytes_[rank] += rows[rank] * table.row_bytes();
      first += rows[rank];
    }
    absl::StrAppend(&plan_.reasons, table.path, ", ", FormatBytes(bytes),
                    whole ? ": " : ": rows ", places, whole ? ", " : "; ", why,
                    "\n");
    SHERD_ASSIGN_OR_RETURN(ShardingSpecPtr spec,
                           EnumerableShardingSpec::Create(std::move(shards)));
    plan_.plan.push_back({table.path, std::move(spec)});
    return absl::OkStatus();
  }

  ShardingPlan plan() && { return std::move(plan_); }

 private:
  Placement PlaceOf(size_t rank, const Table& table) const {
    const Placement& placement = placements_[rank];
    if (!any_device_) return placement;
    return placement.OnSameOwner(Device(table.tensor.device().type));
  }

  // Rows for each rank such that those that get some have the same bytes
  // afterwards, up to a row; fewer than there are if they do not fit.
  std::vector<int64_t> Divide(const Table& table) const {
    int64_t low = 0;
    int64_t high = bytes_per_rank_;
    while (low < high) {
      const int64_t level = low + (high - low) / 2;
      if (Total(RowsUpTo(level, table)) < table.rows()) {
        low = level + 1;
      } else {
        high = level;
      }
    }
    std::vector<int64_t> result = RowsUpTo(low, table);
    // Fewer than one row per rank.
    int64_t surplus = Total(result) - table.rows();
    for (size_t rank = result.size(); surplus > 0 && rank-- > 0;) {
      const int64_t less = std::min<int64_t>(result[rank], 1);
      result[rank] -= less;
      surplus -= less;
    }
    return result;
  }

  // As many rows for each rank as keep it within `level` bytes.
  std::vector<int64_t> RowsUpTo(int64_t level, const Table& table) const {
    std::vector<int64_t> result;
    for (const int64_t bytes : bytes_) {
      result.push_back(
          std::min(table.rows(),
                   std::max<int64_t>(level - bytes, 0) / table.row_bytes()));
    }
    return result;
  }

  const std::vector<Placement> placements_;
  const bool any_device_;
  const int64_t bytes_per_rank_;
  // Of the tables that each rank has so far.
  std::vector<int64_t> bytes_;
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
