#include "sherd/core/nn/lookup/lookup_plan.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/lookup/lookup_place.h"
#include "sherd/core/nn/lookup/peer_counts.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"

namespace sherd::internal {
namespace {

// A shard in a list of words: its handle, the stride of its rows in bytes, and
// whether it can be reached.
constexpr size_t kHandleWords =
    std::tuple_size_v<decltype(MemoryHandle::words)>;
constexpr size_t kWordsPerShard = kHandleWords + 2;

absl::Status CheckGroup(const TableLookUp& lookup, const ProcessGroup* group) {
  const auto* const table = std::get_if<ShardedTensor>(&lookup.table);
  if (table == nullptr || !table->defined() || table->group() == nullptr ||
      table->group().get() == group) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("All distributed tensors should use the same ProcessGroup: "
                   "expected ",
                   group->name(), ", got ", table->group()->name()));
}

}  // namespace

std::string TableName(size_t index, TableNumbers numbers) {
  return absl::StrCat("table ", numbers.empty() ? index : numbers[index]);
}

absl::Status OfTable(size_t index, absl::Status status, TableNumbers numbers) {
  if (status.ok()) return status;
  return Annotate(std::move(status), TableName(index, numbers));
}

std::shared_ptr<ProcessGroup> GroupOf(absl::Span<const TableLookUp> lookups) {
  for (const TableLookUp& lookup : lookups) {
    const auto* const table = std::get_if<ShardedTensor>(&lookup.table);
    if (table != nullptr && table->defined() && table->group() != nullptr) {
      return table->group();
    }
  }
  return nullptr;
}

absl::Status CheckGroups(absl::Span<const TableLookUp> lookups,
                         const ProcessGroup* group, TableNumbers numbers) {
  for (size_t t = 0; t < lookups.size(); ++t) {
    SHERD_RETURN_IF_ERROR(OfTable(t, CheckGroup(lookups[t], group), numbers));
  }
  return absl::OkStatus();
}

bool LookUpPlan::IsFor(absl::Span<const TableLookUp> lookups) const {
  return std::equal(tables_.begin(), tables_.end(), lookups.begin(),
                    lookups.end(),
                    [](const PlannedTable& planned, const TableLookUp& lookup) {
                      return planned.IsOf(lookup.table);
                    });
}

absl::Status LookUpPlan::SetTables(absl::Span<const TableLookUp> lookups,
                                   TableNumbers numbers) {
  const int rank = group_ == nullptr ? 0 : group_->rank();
  const bool is_new = tables_.empty();
  tables_.resize(lookups.size());
  for (size_t t = 0; t < lookups.size(); ++t) {
    if (!is_new && std::holds_alternative<ShardedTensor>(lookups[t].table)) {
      continue;
    }
    SHERD_RETURN_IF_ERROR(
        OfTable(t, tables_[t].Set(lookups[t].table, rank), numbers));
  }
  return absl::OkStatus();
}

absl::Status LookUpPlan::Set(absl::Span<const TableLookUp> lookups,
                             bool& planned, Device* device,
                             TableNumbers numbers) {
  SHERD_RETURN_IF_ERROR(CheckGroups(lookups, group_, numbers));
  SHERD_RETURN_IF_ERROR(SetTables(lookups, numbers));
  planned = true;
  SHERD_ASSIGN_OR_RETURN(const Device found,
                         DeviceOfTables(tables_, lookups, group_, numbers));
  if (device != nullptr) {
    *device = found;
  } else if (!found.is_cpu()) {
    return absl::UnimplementedError(
        absl::StrCat("the tables are on ", found.ToString(),
                     ", expected them in host memory"));
  }
  for (size_t t = 0; t < lookups.size(); ++t) {
    const TableLookUp& lookup = lookups[t];
    PlannedTable& table = tables_[t];
    table.options = lookup.options;
    SHERD_RETURN_IF_ERROR(
        OfTable(t,
                table.bags.Set(table.dtype, table.rows, lookup.bags,
                               lookup.options, found),
                numbers));
  }
  return absl::OkStatus();
}

uint64_t LookUpPlan::FingerprintOfCall() const {
  Fingerprint fingerprint;
  for (const PlannedTable& table : tables_) {
    const BagOptions& options = table.options;
    fingerprint.Add(static_cast<int64_t>(table.fingerprint))
        .Add(table.shared ? 1 : 0)
        .Add(static_cast<int64_t>(options.mode))
        .Add(table.bags.weighted() ? 1 : 0)
        .Add(options.padding_idx ? 1 : 0)
        .Add(options.padding_idx.value_or(0))
        .Add(std::bit_cast<int64_t>(options.max_norm.value_or(0)))
        .Add(std::bit_cast<int64_t>(options.norm_type));
  }
  return fingerprint.value();
}

std::string LookUpPlan::Describe(absl::Span<const TableLookUp> lookups,
                                 TableNumbers numbers) const {
  std::string text = absl::StrCat(lookups.size(), " tables\n");
  for (size_t t = 0; t < lookups.size(); ++t) {
    const BagOptions& options = lookups[t].options;
    const std::string name = TableName(t, numbers);
    const auto* const table = std::get_if<ShardedTensor>(&lookups[t].table);
    absl::StrAppend(
        &text,
        table == nullptr ? absl::StrCat(name, " that is a Tensor\n")
                         : DescribeForAgreement(name, *table),
        name, " with mode ", Name(options.mode), ", ",
        tables_[t].bags.weighted() ? "" : "no ", "weights, padding_idx ",
        options.padding_idx ? absl::StrCat(*options.padding_idx) : "none",
        ", max_norm ",
        options.max_norm ? absl::StrCat(*options.max_norm) : "none",
        ", norm_type ", options.norm_type, "\n");
  }
  return text;
}

void LookUpPlan::SetExchange(uint64_t exchange, bool direct) {
  exchange_ = exchange;
  direct_ = direct;
}

void LookUpPlan::EndCall() {
  const Tensor none;
  for (PlannedTable& table : tables_) {
    table.bags.Clear();
    table.output = none;
  }
}

absl::Status LookUpPlan::ExchangeAddresses(ProcessGroup& group,
                                           const CollectiveOptions& options,
                                           absl::Status& mapped) {
  exchange_ = 0;
  memory_ = group.peer_memory();
  const auto rank = static_cast<size_t>(group.rank());
  handles_.assign(static_cast<size_t>(group.size()), {});
  for (const PlannedTable& table : tables_) {
    for (size_t i = 0; table.shared && i < table.boxes.size(); ++i) {
      const PlacedBox& box = table.boxes[i];
      if (!HasElements(box)) continue;
      std::vector<uint64_t>& words = handles_[static_cast<size_t>(box.rank)];
      words.resize(words.size() + kWordsPerShard);
      if (box.rank != group.rank() || memory_ == nullptr) continue;
      const ShardRows& shard = table.shards[i];
      const std::optional<MemoryHandle> handle = memory_->Export(
          shard.data,
          static_cast<size_t>((box.sizes[0] - 1) * shard.stride) +
              static_cast<size_t>(box.sizes[1]) * SizeOf(table.dtype));
      uint64_t* const to = &words[words.size() - kWordsPerShard];
      if (handle) std::copy(handle->words.begin(), handle->words.end(), to);
      to[kHandleWords] = static_cast<uint64_t>(shard.stride);
      to[kHandleWords + 1] = handle ? 1 : 0;
    }
  }
  std::vector<MutableBytes> recvs;
  for (std::vector<uint64_t>& words : handles_) {
    recvs.emplace_back(reinterpret_cast<std::byte*>(words.data()),
                       words.size() * sizeof(uint64_t));
  }
  SHERD_RETURN_IF_ERROR(group.AllGatherV(recvs[rank], recvs, options));
  mapped = Map(group);
  return absl::OkStatus();
}

absl::Status LookUpPlan::Map(ProcessGroup& group) {
  std::vector<size_t> next(handles_.size());
  for (PlannedTable& table : tables_) {
    for (size_t i = 0; table.shared && i < table.boxes.size(); ++i) {
      const PlacedBox& box = table.boxes[i];
      if (!HasElements(box)) continue;
      const auto owner = static_cast<size_t>(box.rank);
      const uint64_t* const words =
          &handles_[owner][kWordsPerShard * next[owner]++];
      if (box.rank == group.rank()) continue;
      if (words[kHandleWords + 1] == 0 || memory_ == nullptr) {
        return absl::UnimplementedError(
            absl::StrCat("shards of rank ", box.rank, " are out of reach"));
      }
      SHERD_RETURN_IF_ERROR(
          MaybeInjectFault({.point = FaultPoint::kShardImport,
                            .rank = group.world_ranks()[group.rank()],
                            .subject = LookUpOp::kName}));
      MemoryHandle handle;
      std::copy_n(words, kHandleWords, handle.words.begin());
      SHERD_ASSIGN_OR_RETURN(const absl::Span<std::byte> bytes,
                             memory_->Import(box.rank, handle));
      const auto stride = static_cast<int64_t>(words[kHandleWords]);
      const int64_t row_bytes =
          box.sizes[1] * static_cast<int64_t>(SizeOf(table.dtype));
      SHERD_RETURN_IF_ERROR(
          CheckRows(box.rank, box.sizes[0], row_bytes, stride, bytes.size()));
      table.shards[i] = {.data = bytes.data(), .stride = stride};
    }
    table.SetAddresses();
  }
  return absl::OkStatus();
}

LookUpPlans& LookUpPlans::Get() {
  static LookUpPlans* const plans = new LookUpPlans;
  return *plans;
}

LookUpPlans::Taken LookUpPlans::Take(const std::shared_ptr<ProcessGroup>& group,
                                     absl::Span<const TableLookUp> lookups) {
  Taken taken;
  bool is_new = false;
  {
    absl::MutexLock lock(&mutex_);
    const auto [it, inserted] = plans_.try_emplace(group);
    is_new = inserted;
    std::list<LookUpPlan>& plans = it->second;
    for (auto plan = plans.begin(); plan != plans.end(); ++plan) {
      if (!plan->IsFor(lookups)) continue;
      taken.splice(taken.end(), plans, plan);
      break;
    }
  }
  if (is_new && group != nullptr) {
    // A group that was destroyed already has its error from its collectives.
    group
        ->OnDestroy([ref = GroupRef(group)](const absl::Status&) {
          LookUpPlans& self = Get();
          std::list<LookUpPlan> gone;
          absl::MutexLock lock(&self.mutex_);
          const auto plans = self.plans_.find(ref);
          if (plans == self.plans_.end()) return;
          gone = std::move(plans->second);
          self.plans_.erase(plans);
        })
        .IgnoreError();
  }
  if (taken.empty()) taken.emplace_back(group.get());
  return taken;
}

void LookUpPlans::Return(const std::shared_ptr<ProcessGroup>& group,
                         Taken plan) {
  absl::MutexLock lock(&mutex_);
  const auto plans = plans_.find(group);
  if (plans == plans_.end()) return;
  plans->second.splice(plans->second.begin(), plan);
  if (plans->second.size() <= kPlansPerGroup) return;
  plan.splice(plan.end(), plans->second, std::prev(plans->second.end()));
}

uint64_t LookUpPlans::NextExchange() {
  absl::MutexLock lock(&mutex_);
  return last_exchange_ + 1;
}

void LookUpPlans::TookPartIn(uint64_t exchange) {
  absl::MutexLock lock(&mutex_);
  last_exchange_ = std::max(last_exchange_, exchange);
}

}  // namespace sherd::internal
