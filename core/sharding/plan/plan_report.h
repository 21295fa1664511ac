#ifndef SHERD_CORE_SHARDING_PLAN_PLAN_REPORT_H_
#define SHERD_CORE_SHARDING_PLAN_PLAN_REPORT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/plan/reshard_plan.h"

namespace sherd {

struct PlanReportOptions {
  // Bytes of an element.
  size_t element_size = 4;
  // Number of ranks of the group. 0: determined from the lists.
  int world_size = 0;
  // As in ReshardOptions.
  int64_t max_staging_bytes = int64_t{64} << 20;
  // As for ReshardPlan::Create.
  absl::Span<const int> host_of_rank = {};
  // Shards are accessible across processes: data is copied directly from source
  // to destination, without messages and staging.
  bool direct = false;
  // Rows and columns of the heat map at most; more ranks share them.
  int max_heat_map = 64;
};

// The work of one rank.
struct RankReport {
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  // Copied between shards of this rank, those of bytes_in_place included.
  int64_t bytes_local = 0;
  // As ReshardPlan::in_place().
  int64_t bytes_in_place = 0;
  // The bytes that the rank must receive under any plan.
  int64_t lower_bound_bytes = 0;
  // Its destination shards.
  int64_t result_bytes = 0;
  // Upper bound on memory for packed messages.
  int64_t staging_bytes = 0;
  // Ranks that it sends to, and receives from.
  int64_t sends = 0;
  int64_t receives = 0;
  // Rounds of messages that the rank needs; 0 without messages.
  int64_t rounds = 0;

  // Memory beside the source, at most.
  int64_t peak_extra_bytes() const { return result_bytes + staging_bytes; }
};

// The work of all ranks in a redistribution, predicted from the two lists: no
// rank has to take part.
struct PlanReport {
  // Ranks [first, last] that share a row and a column of the heat map.
  struct RankRange {
    int first = 0;
    int last = 0;
  };

  size_t element_size = 0;
  int64_t max_staging_bytes = 0;
  bool direct = false;
  // Shards with elements.
  int64_t from_shards = 0;
  int64_t to_shards = 0;
  // By rank.
  std::vector<RankReport> ranks;
  // Pairs of ranks of which one sends to the other; a message for each round
  // that a pair needs.
  int64_t pairs = 0;
  int64_t messages = 0;
  // All ranks take part in as many rounds as the one that needs most.
  int64_t rounds = 0;
  // False: there was too much to cut every message, and messages, rounds and
  // staging_bytes are what the bytes of each pair need at least, or at most.
  bool exact_rounds = true;
  // Of bytes_moved(): between ranks of different hosts. 0 if hosts are not
  // known.
  int64_t bytes_between_hosts = 0;
  std::vector<RankRange> heat_ranges;
  // Bytes from the ranks of range r to those of range c at [r * heat_ranges
  // .size() + c]. Data that stays on its rank is not counted.
  std::vector<int64_t> heat_map;

  int world_size() const { return static_cast<int>(ranks.size()); }
  // Over all ranks.
  int64_t bytes_moved() const;
  int64_t bytes_local() const;
  int64_t bytes_in_place() const;
  int64_t lower_bound_bytes() const;
  // Of the rank that needs most.
  int64_t peak_extra_bytes() const;
  // bytes_moved() / lower_bound_bytes(): 1 if nothing has to move. Each element
  // moves once in any plan of ReshardPlan, so this is 1.
  double ratio() const;

  // Totals, a table of ranks and the heat map, for a terminal of 100 columns.
  // More than 16 ranks are summed up, more than 8 share rows of the heat map.
  std::string ToText() const;
  // One object: totals, "ranks", "heat_map" {"ranks", "bytes"}. All ranks.
  std::string ToJson() const;
};

// Predicts the plans of all ranks.
//   kInvalidArgument  As ReshardPlan::Create for any rank, including source
//                     boxes that overlap anywhere; the total received by all
//                     ranks does not fit in 64 bits; a rank in the lists is not
//                     below world_size; element_size is not that of a dtype;
//                     max_staging_bytes is too small for the peers of a rank.
//
// Cost. With n boxes, k overlaps of a source and a destination box and w ranks,
// for all ranks together: time O((n + k) * d + w^2 + w * n / 1000) for grids,
// and O(n log^d n) instead of O(n * d) otherwise; memory O(n * d), and up to
// 300 MB beside it. A second or two for 10^4 rows to 10^4 columns on as many
// ranks.
absl::StatusOr<PlanReport> ExplainPlan(absl::Span<const PlacedBox> from,
                                       absl::Span<const PlacedBox> to,
                                       const PlanReportOptions& options = {});

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_PLAN_PLAN_REPORT_H_
