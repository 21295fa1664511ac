#ifndef SHERD_CORE_NN_UPDATE_GRADIENT_MESSAGES_H_
#define SHERD_CORE_NN_UPDATE_GRADIENT_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/nn/lookup/planned_table.h"
#include "sherd/core/nn/lookup/request_router.h"
#include "sherd/core/nn/update/row_groups.h"

namespace sherd::internal {

// Ids and gradients as the owners of rows get them. A message consists of
// requests as those of lookups, each followed by the gradients of its bags: a
// row for each bag, in the dtype of the table, all padded to 8 bytes. Weights
// are factors of gradients, for kMean 1 / n.
//
// If ranks read each other's messages, one message is for all of them: it has a
// request for each table. Otherwise there is one for each owner, with a request
// for each of its shards, replicas included. Requests for tables that are not
// shared come last, in the message that this rank reads itself.
class GradientMessages {
 public:
  // Once for a plan and a form of messages.
  void Plan(absl::Span<const PlannedTable> tables, int rank, int ranks,
            bool for_all);

  // Distributes the ids of the call.
  void Collect(absl::Span<const PlannedTable> tables);
  // Entry r is the length of the message to rank r; with for_all there is one.
  absl::Span<const uint64_t> lengths() const { return lengths_; }
  // Writes message r to to[r]. gradients[t] is a contiguous Tensor.
  void Write(absl::Span<const PlannedTable> tables,
             absl::Span<const Tensor> gradients,
             absl::Span<std::byte* const> to);

  // Finds what rank `sender` has sent to this one.
  //   kDataLoss  The message is malformed.
  absl::Status Read(absl::Span<const PlannedTable> tables, int sender,
                    absl::Span<const std::byte> message);
  // Sets `sources` to what all ranks have sent for a shard, by rank. Returns
  // whether all of their ids are rows of the shard.
  bool FindSources(absl::Span<const PlannedTable> tables, size_t table,
                   size_t box, std::vector<GradientSource>& sources) const;

 private:
  // A request in each message that this rank reads.
  struct Slot {
    size_t table = 0;
    // -1: for all of the table.
    int64_t box = -1;
    int64_t width = 0;
  };

  void AddTable(const PlannedTable& table, size_t index, bool whole);
  const std::byte* FactorsOf(const PlannedTable& table);

  int rank_ = 0;
  // The tables in the order of the messages.
  std::vector<size_t> order_;
  RequestRouter router_;
  // Of each request of the router: its first column.
  std::vector<int64_t> columns_;
  std::vector<Slot> slots_;
  // Of each sender and slot.
  std::vector<std::vector<GradientSource>> sources_;
  std::vector<uint64_t> lengths_;
  std::vector<std::byte> factors_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_UPDATE_GRADIENT_MESSAGES_H_
