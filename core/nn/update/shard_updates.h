#ifndef SHERD_CORE_NN_UPDATE_SHARD_UPDATES_H_
#define SHERD_CORE_NN_UPDATE_SHARD_UPDATES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/nn/lookup/planned_table.h"
#include "sherd/core/nn/lookup/table_layout.h"
#include "sherd/core/nn/update.h"
#include "sherd/core/nn/update/gradient_messages.h"
#include "sherd/core/nn/update/row_groups.h"
#include "sherd/core/nn/update/update_kernels.h"

namespace sherd::internal {

// What a rank does to its shards in an Update.
//
// The row-wise rule needs sums over whole rows. Shards that have parts of rows
// are cut; their owners exchange sums of squares before any of them changes a
// row. The bytes of a rank's sums are, for each of its cut shards by ascending
// table and box, those of tables that are not shared last, and of replicas one:
//   uint64 n; int64 rows[n], ascending; accumulators[n] if the shard has column
//   0; squares[n * SquareCount]
// as numbers (AccumulatorOf the table), each part padded to 8 bytes.
class ShardUpdates {
 public:
  // Once for a plan.
  void Plan(absl::Span<const PlannedTable> tables, int rank);

  // Begins a call. `same`[t]: the first of the lookups that have the table of
  // lookup t. `accumulators`: of each lookup.
  void Begin(absl::Span<const PlannedTable> tables,
             absl::Span<const size_t> same,
             absl::Span<const Value> accumulators,
             const UpdateOptions& options);
  // Whether shards need sums of squares of one another in this call, and
  // whether those of different ranks do: the same on all.
  bool adds_squares() const { return adds_squares_; }
  bool exchanges_squares() const { return exchanges_squares_; }

  // Reads the gradients of cut shards, and finds the length of their sums.
  //   Errors. As Apply.
  absl::Status Collect(const GradientMessages& messages, size_t& bytes);
  // At an address that is a multiple of 8.
  void WriteSums(std::byte* to);
  // Takes the sums of all ranks.
  //   kDataLoss  They are malformed, or of other rows than this rank has.
  absl::Status ReadSums(absl::Span<const absl::Span<const std::byte>> sums);

  // Changes the rows of all shards.
  //   kDataLoss  A message is malformed. Some rows have changed.
  absl::Status Apply(const GradientMessages& messages);

 private:
  // A shard of this rank.
  struct OwnShard {
    size_t table = 0;
    size_t box = 0;
    // Of a call. A cut one keeps its gradients, added by rows if it sends their
    // squares, and what the sums are needed for: the old accumulators and the
    // means, as numbers.
    bool cut = false;
    ShardRows accumulator = {};
    RowGroups groups = {};
    std::vector<std::byte> gradients = {};
    std::vector<std::byte> accumulators = {};
    std::vector<std::byte> means = {};
  };
  // The sums of a cut shard of any rank.
  struct ShardSums {
    absl::Span<const int64_t> rows;
    const std::byte* accumulators = nullptr;
    const std::byte* squares = nullptr;
  };
  struct TableState {
    // As one rank reads them, so that all ranks take the same of replicas.
    std::vector<ColumnStrip> strips;
    // Of each box: whether its owner sends sums, and those of the call.
    std::vector<bool> sends;
    std::vector<ShardSums> sums;
  };

  bool IsCut(size_t table, size_t box) const;
  absl::Status SetGroups(const GradientMessages& messages, size_t table,
                         size_t box, RowGroups& groups);
  // Calls `visit` for the boxes whose sums are in the bytes of `rank`, in their
  // order.
  template <typename Visitor>
  absl::Status ForEachSent(int rank, Visitor visit) const;
  absl::Status ReadSumsOf(int rank, absl::Span<const std::byte> bytes);
  // Sets `sums` to the gradients of `count` rows.
  template <typename Number>
  void AddGradients(const OwnShard& shard, const RowGroups& groups,
                    size_t first, size_t count, Number* sums);
  template <typename Number>
  void WriteSumsOf(OwnShard& shard, std::byte*& to);
  template <typename Number>
  absl::Status FindMeans(OwnShard& shard);
  template <typename Number>
  void ApplyTo(OwnShard& shard, const RowGroups& groups);
  // The factors of rows for the row-wise rule; changes the accumulators.
  template <typename Number>
  void FindFactors(const OwnShard& shard, size_t first, size_t count,
                   const Number* gradients);
  void Prefetch(const OwnShard& shard, const RowGroups& groups, size_t first,
                size_t count) const;

  int rank_ = 0;
  std::vector<TableState> states_;
  std::vector<OwnShard> shards_;
  // Of the call.
  absl::Span<const PlannedTable> tables_;
  absl::Span<const size_t> same_;
  UpdateOptions options_;
  bool adds_squares_ = false;
  bool exchanges_squares_ = false;
  // Of shards that are not cut, and of batches of rows.
  RowGroups groups_;
  std::vector<GradientSource> sources_;
  std::vector<int64_t> ends_;
  std::vector<std::byte> gradients_;
  std::vector<std::byte*> rows_;
  std::vector<std::byte*> accumulators_;
  std::vector<std::byte> factors_;
  // Of the strips that a row consists of.
  std::vector<ColumnRange> ranges_;
  std::vector<const ShardSums*> parts_;
  std::vector<const std::byte*> squares_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_UPDATE_SHARD_UPDATES_H_
