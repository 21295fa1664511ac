#include "sherd/core/nn/update/accumulators.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/lookup/pool_kernels.h"
#include "sherd/core/nn/tree/value_identity.h"
#include "sherd/core/nn/update/update_checks.h"
#include "sherd/core/sharding/sharded_tensor_like.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/tensor/reshard_observer.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace internal {
namespace {

// Identifies the elements of a table without keeping them.
struct TableKey {
  std::weak_ptr<const void> memory;
  TableIdentity identity;

  friend bool operator<(const TableKey& a, const TableKey& b) {
    if (a.memory.owner_before(b.memory)) return true;
    if (b.memory.owner_before(a.memory)) return false;
    return a.identity < b.identity;
  }
};

TableKey KeyOf(const EmbeddingTable& table) {
  const TableIdentity identity = IdentityOf(table);
  if (identity.memory == nullptr) return {};
  if (const auto* const sharded = std::get_if<ShardedTensor>(&table)) {
    return {ShardedTensorAccess::ShardsOf(*sharded), identity};
  }
  return {std::get<Tensor>(table).storage(), identity};
}

// Empty for a table that was not created.
absl::Span<const int64_t> DimsOf(const EmbeddingTable& table) {
  return std::visit(
      [](const auto& tensor) -> absl::Span<const int64_t> {
        if (!tensor.defined()) return {};
        if constexpr (std::is_same_v<decltype(tensor), const Tensor&>) {
          return tensor.sizes();
        } else {
          return tensor.size();
        }
      },
      table);
}

// The accumulators of this process, by table. Each access also looks at some
// entries in turn, and takes out those whose table is gone.
class AccumulatorRegistry {
 public:
  // Lives forever.
  static AccumulatorRegistry& Get() {
    static auto* const registry = new AccumulatorRegistry;
    return *registry;
  }

  struct Entry {
    Value accumulator;
    // That of another table, too, until an Update copies it.
    bool inherited = false;
  };

  Entry Find(const EmbeddingTable& table) {
    // Destroyed after the lock.
    std::vector<Value> gone;
    absl::MutexLock lock(&mutex_);
    TakeGone(gone);
    const auto found = accumulators_.find(KeyOf(table));
    return found == accumulators_.end() ? Entry() : found->second;
  }

  void Set(const EmbeddingTable& table, Value accumulator,
           bool inherited = false) {
    TableKey key = KeyOf(table);
    if (key.memory.expired()) return;
    // As above; so is what `accumulator` replaces.
    std::vector<Value> gone;
    absl::MutexLock lock(&mutex_);
    TakeGone(gone);
    if (accumulator.is_none()) {
      const auto found = accumulators_.find(key);
      if (found != accumulators_.end()) gone.push_back(Erase(found));
      return;
    }
    Entry& entry = accumulators_[std::move(key)];
    entry.inherited = inherited;
    std::swap(entry.accumulator, accumulator);
  }

 private:
  using Accumulators = std::map<TableKey, Entry>;

  AccumulatorRegistry() {
    SetReshardObserver([](const ShardedTensor& before,
                          const ShardedTensor& after) {
      // In the same layout the elements stay those of other handles.
      InheritAccumulator(
          before, after,
          /*same_elements=*/SameLayout(before.metadata(), after.metadata()));
    });
  }

  Value Erase(Accumulators::iterator entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Value value = std::move(entry->second.accumulator);
    if (entry == next_) ++next_;
    accumulators_.erase(entry);
    return value;
  }

  void TakeGone(std::vector<Value>& gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    constexpr int kAtOnce = 2;
    for (int i = 0; i < kAtOnce && !accumulators_.empty(); ++i) {
      if (next_ == accumulators_.end()) next_ = accumulators_.begin();
      const auto entry = next_++;
      if (entry->first.memory.expired()) gone.push_back(Erase(entry));
    }
  }

  absl::Mutex mutex_;
  Accumulators accumulators_ ABSL_GUARDED_BY(mutex_);
  // The entry to look at next, or the end.
  Accumulators::iterator next_ ABSL_GUARDED_BY(mutex_) = accumulators_.end();
};

int64_t ColumnsOf(const PlannedTable& planned, SparseRule rule) {
  return rule == SparseRule::kAdagrad ? planned.columns : 1;
}

// Whether the table's layout has the accumulator's elements of the box there,
// in columns [0, ColumnsOf).
bool HoldsAccumulator(const BoxView& box, SparseRule rule) {
  return box.sizes[0] > 0 && box.sizes[1] > 0 &&
         (rule == SparseRule::kAdagrad || box.offsets[1] == 0);
}

// Of boxes with their ranks, in any order.
class BoxesFingerprint {
 public:
  void Add(const PlacedBox& box, int64_t columns) {
    sum_ += Fingerprint()
                .Add(box.rank)
                .Add(box.offsets[0])
                .Add(box.sizes[0])
                .Add(box.offsets[1])
                .Add(columns)
                .value();
  }
  uint64_t value() const { return sum_; }

 private:
  uint64_t sum_ = 0;
};

bool HasTablesLayout(const ShardedTensor& accumulator,
                     const PlannedTable& planned, SparseRule rule) {
  if (!planned.shared) {
    // All of the table's shards are here, and need their accumulators.
    for (size_t box = 0; box < planned.boxes.size(); ++box) {
      if (HoldsAccumulator(planned.boxes[box], rule) &&
          RowsOfAccumulator(accumulator, planned, box, rule).data == nullptr) {
        return false;
      }
    }
    return true;
  }
  BoxesFingerprint actual;
  for (const PlacedBox& box : accumulator.placed_boxes()) {
    if (HasElements(box)) actual.Add(box, box.sizes[1]);
  }
  BoxesFingerprint expected;
  for (const PlacedBox& box : planned.boxes) {
    if (!HoldsAccumulator(box, rule)) continue;
    expected.Add(box, rule == SparseRule::kAdagrad ? box.sizes[1] : 1);
  }
  return actual.value() == expected.value();
}

// A tensor of one column whose rows are held by the owners of column 0.
absl::StatusOr<ShardedTensor> ZerosForRows(const ShardedTensor& table,
                                           DType dtype) {
  std::vector<ShardMetadata> boxes;
  for (const ShardMetadata& shard : table.metadata().shards) {
    if (!HoldsAccumulator(shard, SparseRule::kRowWiseAdagrad)) continue;
    boxes.push_back(shard);
    boxes.back().sizes[1] = 1;
  }
  SHERD_ASSIGN_OR_RETURN(const ShardingSpecPtr spec,
                         InferShardingSpec(boxes, Replicas::kAllowed));
  if (table.group() != nullptr) {
    return ShardedTensor::Zeros(spec, {table.size()[0], 1},
                                {.dtype = dtype, .group = table.group()});
  }
  ShardedTensorMetadata metadata = table.metadata();
  metadata.size[1] = 1;
  metadata.properties.dtype = dtype;
  metadata.shards = boxes;
  std::vector<Shard> shards;
  for (const ShardMetadata& box : boxes) {
    SHERD_ASSIGN_OR_RETURN(Tensor tensor,
                           Tensor::Zeros(box.sizes, {.dtype = dtype}));
    shards.push_back({std::move(tensor), box});
  }
  return ShardedTensor::WithoutGroup(std::move(shards), metadata, spec);
}

bool HasAccumulator(const PlannedTable& planned, SparseRule rule) {
  return rule != SparseRule::kSgd && planned.rows > 0 && planned.columns > 0;
}

absl::StatusOr<Value> NewAccumulator(const EmbeddingTable& table,
                                     const PlannedTable& planned,
                                     SparseRule rule) {
  const DType dtype = AccumulatorOf(planned.dtype);
  if (planned.plain) {
    return Tensor::Zeros({planned.rows, ColumnsOf(planned, rule)},
                         {.dtype = dtype});
  }
  const auto& sharded = std::get<ShardedTensor>(table);
  if (rule == SparseRule::kRowWiseAdagrad) return ZerosForRows(sharded, dtype);
  return ZerosLike(sharded, {.dtype = dtype, .requires_grad = false});
}

bool IsUsable(const Tensor& tensor) {
  return tensor.numel() == 0 ||
         (tensor.device().is_cpu() && tensor.writable() &&
          (tensor.sizes()[1] == 1 || tensor.strides()[1] == 1));
}

absl::Status CheckAccumulator(const Value& accumulator,
                              const EmbeddingTable& table,
                              const PlannedTable& planned, SparseRule rule) {
  const DType dtype = AccumulatorOf(planned.dtype);
  const Dims size = {planned.rows, ColumnsOf(planned, rule)};
  bool fits = false;
  bool usable = true;
  if (const auto* const tensor = accumulator.get_if<Tensor>()) {
    fits = tensor->dtype() == dtype && tensor->sizes() == absl::MakeSpan(size);
    usable = fits && IsUsable(*tensor);
  } else if (const auto* const sharded = accumulator.get_if<ShardedTensor>()) {
    fits = !planned.plain && sharded->dtype() == dtype &&
           sharded->size() == absl::MakeSpan(size) &&
           sharded->group() == std::get<ShardedTensor>(table).group() &&
           (planned.shared || HasTablesLayout(*sharded, planned, rule));
    for (const Shard& shard : sharded->local_shards()) {
      usable = fits && usable && IsUsable(shard.tensor);
    }
  }
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrCat("the accumulator of a table for this rule needs to be of ",
                     Name(dtype), " and size ", FormatDims(size),
                     planned.shared ? "" : ", with the table's layout",
                     ", got ", accumulator.ToString(), "; see SetAccumulator"));
  }
  if (usable) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the accumulator's rows need to be contiguous, in host memory and "
      "writable");
}

}  // namespace

absl::StatusOr<PreparedAccumulator> PrepareAccumulator(
    const EmbeddingTable& table, const PlannedTable& planned, SparseRule rule) {
  PreparedAccumulator result;
  if (!HasAccumulator(planned, rule)) return result;
  auto [found, inherited] = AccumulatorRegistry::Get().Find(table);
  if (!found.is_none()) {
    SHERD_RETURN_IF_ERROR(CheckAccumulator(found, table, planned, rule));
    const auto* const sharded = found.get_if<ShardedTensor>();
    if (planned.plain ||
        (sharded != nullptr && HasTablesLayout(*sharded, planned, rule))) {
      result.is_new = inherited;
      result.value = std::move(found);
      if (inherited) {
        SHERD_ASSIGN_OR_RETURN(result.value, CloneTensor(result.value));
      }
      return result;
    }
  }
  result.is_new = true;
  SHERD_ASSIGN_OR_RETURN(result.value, NewAccumulator(table, planned, rule));
  if (const auto* const sharded = found.get_if<ShardedTensor>()) {
    result.moves_from = *sharded;
  } else if (const auto* const whole = found.get_if<Tensor>()) {
    result.from_whole = true;
    for (const Shard& shard :
         result.value.get_if<ShardedTensor>()->local_shards()) {
      Tensor to = shard.tensor;
      SHERD_ASSIGN_OR_RETURN(
          const Tensor part,
          whole->Narrow(shard.metadata.offsets, shard.metadata.sizes));
      SHERD_RETURN_IF_ERROR(to.CopyFrom(part));
    }
  }
  return result;
}

ShardRows RowsOfAccumulator(const Value& accumulator,
                            const PlannedTable& planned, size_t box,
                            SparseRule rule) {
  const auto rows_of = [](const Tensor& tensor) -> ShardRows {
    return {.data = static_cast<std::byte*>(const_cast<void*>(tensor.data())),
            .stride = tensor.strides()[0] *
                      static_cast<int64_t>(tensor.element_size())};
  };
  if (const auto* const tensor = accumulator.get_if<Tensor>()) {
    return rows_of(*tensor);
  }
  const auto* const sharded = accumulator.get_if<ShardedTensor>();
  const PlacedBox& wanted = planned.boxes[box];
  if (sharded == nullptr || !HoldsAccumulator(wanted, rule)) return {};
  // Replicas in one process have an accumulator each.
  auto skipped = std::count(
      planned.boxes.begin(),
      planned.boxes.begin() + static_cast<std::ptrdiff_t>(box), wanted);
  for (const Shard& shard : sharded->local_shards()) {
    const bool has_columns = rule != SparseRule::kAdagrad ||
                             shard.metadata.sizes[1] == wanted.sizes[1];
    if (shard.tensor.numel() > 0 &&
        shard.metadata.offsets[0] == wanted.offsets[0] &&
        shard.metadata.sizes[0] == wanted.sizes[0] &&
        shard.metadata.offsets[1] == wanted.offsets[1] && has_columns &&
        skipped-- == 0) {
      return rows_of(shard.tensor);
    }
  }
  return {};
}

void InheritAccumulator(const EmbeddingTable& from, const EmbeddingTable& to,
                        bool same_elements) {
  AccumulatorRegistry& registry = AccumulatorRegistry::Get();
  auto [accumulator, inherited] = registry.Find(from);
  if (accumulator.is_none() || DimsOf(from) != DimsOf(to) ||
      !registry.Find(to).accumulator.is_none()) {
    return;
  }
  registry.Set(to, std::move(accumulator), inherited || !same_elements);
}

}  // namespace internal

Value GetAccumulator(const EmbeddingTable& table) {
  return internal::AccumulatorRegistry::Get().Find(table).accumulator;
}

void SetAccumulator(const EmbeddingTable& table, Value accumulator) {
  internal::AccumulatorRegistry::Get().Set(table, std::move(accumulator));
}

absl::Status MakeAccumulator(const EmbeddingTable& table, SparseRule rule) {
  SHERD_RETURN_IF_ERROR(internal::CheckUpdateOptions({.rule = rule}));
  if (rule == SparseRule::kSgd) return absl::OkStatus();
  const auto* const sharded = std::get_if<ShardedTensor>(&table);
  const ProcessGroup* const group = sharded != nullptr && sharded->defined()
                                        ? sharded->group().get()
                                        : nullptr;
  internal::PlannedTable planned;
  SHERD_RETURN_IF_ERROR(
      planned.Set(table, group == nullptr ? 0 : group->rank()));
  if (!planned.device.is_cpu()) {
    return absl::UnimplementedError(
        absl::StrCat("the table is on ", planned.device.ToString(),
                     ", expected it in host memory: see To"));
  }
  if (!internal::HasAccumulator(planned, rule)) return absl::OkStatus();
  const Value found = GetAccumulator(table);
  if (!found.is_none()) {
    return internal::CheckAccumulator(found, table, planned, rule);
  }
  SHERD_ASSIGN_OR_RETURN(Value made,
                         internal::NewAccumulator(table, planned, rule));
  SetAccumulator(table, std::move(made));
  return absl::OkStatus();
}

}  // namespace sherd
