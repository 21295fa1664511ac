#ifndef SHERD_CORE_NN_LOOKUP_LOOKUP_PLAN_H_
#define SHERD_CORE_NN_LOOKUP_LOOKUP_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/comm/channel/peer_memory.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/lookup/lookup_messages.h"
#include "sherd/core/nn/lookup/planned_table.h"
#include "sherd/core/nn/lookup/row_pool.h"

namespace sherd::internal {

// What Update keeps with a plan; see update_plan.h.
class UpdatePlan;

// Of the first sharded table that has one; null if none has.
std::shared_ptr<ProcessGroup> GroupOf(absl::Span<const TableLookUp> lookups);

// "All distributed tensors should use the same ProcessGroup": `group`.
absl::Status CheckGroups(absl::Span<const TableLookUp> lookups,
                         const ProcessGroup* group, TableNumbers numbers = {});

// "table 3".
std::string TableName(size_t index, TableNumbers numbers);
// The status with that before its message.
absl::Status OfTable(size_t index, absl::Status status,
                     TableNumbers numbers = {});

// All that a rank needs to look up in the same tables again and again.
class LookUpPlan {
 public:
  // `group`: null if no table is shared.
  explicit LookUpPlan(ProcessGroup* group) : group_(group) {}

  bool IsFor(absl::Span<const TableLookUp> lookups) const;
  // Takes tables, bags and options of a call. `planned` becomes true once the
  // plan is one for these tables, and `device` theirs.
  //   kUnimplemented  They are on one, but `device` is null.
  //   Other errors. As LookUp for its arguments but the outputs.
  absl::Status Set(absl::Span<const TableLookUp> lookups, bool& planned,
                   Device* device = nullptr, TableNumbers numbers = {});
  // Of what ranks pass alike to the call, and as text.
  uint64_t FingerprintOfCall() const;
  std::string Describe(absl::Span<const TableLookUp> lookups,
                       TableNumbers numbers = {}) const;

  std::vector<PlannedTable>& tables() { return tables_; }
  RowPool& pool() { return pool_; }
  LookUpMessages& messages() { return messages_; }
  std::shared_ptr<UpdatePlan>& update() { return update_; }

  // Identifies the exchange in which the ranks learned each other's addresses;
  // 0: none. They are valid if all ranks have the same.
  uint64_t exchange() const { return exchange_; }
  // Whether all ranks reach what they read, as of that exchange.
  bool direct() const { return direct_; }
  void SetExchange(uint64_t exchange, bool direct);

  // Gathers the handles of all shards and maps those that this rank reads.
  // Collective. An error of the group, or else `mapped` is this rank's outcome:
  // kUnimplemented where some are out of reach by nature.
  absl::Status ExchangeAddresses(ProcessGroup& group,
                                 const CollectiveOptions& options,
                                 absl::Status& mapped);

  // What this rank passes to an agreement, and what all ranks passed.
  absl::Span<uint64_t> Note(size_t words) {
    note_.resize(words);
    return absl::MakeSpan(note_);
  }
  absl::Span<uint64_t> Notes(size_t words) {
    notes_.resize(words);
    return absl::MakeSpan(notes_);
  }
  absl::Span<const uint64_t> notes() const { return notes_; }

  // Lets go of the call's tensors.
  void EndCall();

 private:
  absl::Status SetTables(absl::Span<const TableLookUp> lookups,
                         TableNumbers numbers);
  absl::Status Map(ProcessGroup& group);

  ProcessGroup* const group_;
  std::vector<PlannedTable> tables_;
  RowPool pool_;
  LookUpMessages messages_;
  std::shared_ptr<UpdatePlan> update_;
  uint64_t exchange_ = 0;
  bool direct_ = false;
  std::vector<uint64_t> note_;
  std::vector<uint64_t> notes_;
  // Keeps what was mapped.
  std::shared_ptr<PeerMemory> memory_;
  // Eight words per shard of each rank; see lookup_plan.cc.
  std::vector<std::vector<uint64_t>> handles_;
};

// The plans of the last calls of each group of this process. A plan belongs to
// one call at a time.
//
// Threads. Safe.
class LookUpPlans {
 public:
  static constexpr size_t kPlansPerGroup = 8;

  // Lives forever.
  static LookUpPlans& Get();

  // One plan, out of the list.
  using Taken = std::list<LookUpPlan>;

  // The plan for these tables, or a new one. `group`: null if no table is
  // shared.
  Taken Take(const std::shared_ptr<ProcessGroup>& group,
             absl::Span<const TableLookUp> lookups);
  // Remembers it, if the group still exists.
  void Return(const std::shared_ptr<ProcessGroup>& group, Taken plan);

  // A number for an exchange, larger than that of any exchange in which this
  // process took part.
  uint64_t NextExchange();
  void TookPartIn(uint64_t exchange);

 private:
  using GroupRef = std::weak_ptr<ProcessGroup>;

  absl::Mutex mutex_;
  // The last used one first.
  std::map<GroupRef, std::list<LookUpPlan>, std::owner_less<>> plans_
      ABSL_GUARDED_BY(mutex_);
  uint64_t last_exchange_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_LOOKUP_LOOKUP_PLAN_H_
