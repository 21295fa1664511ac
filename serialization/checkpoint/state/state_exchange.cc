#include "sherd/serialization/checkpoint/state/state_exchange.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/serialization/checkpoint/state/state_blob.h"

namespace sherd {
namespace {

using internal::ShardedTensorAccess;
using Shards = std::vector<Shard>;

uint64_t FingerprintOf(const StateValue& value) {
  Fingerprint fingerprint;
  fingerprint.Add(static_cast<int64_t>(value.kind()));
  if (const auto* boolean = value.get_if<bool>()) {
    fingerprint.Add(*boolean ? 1 : 0);
  } else if (const auto* integer = value.get_if<int64_t>()) {
    fingerprint.Add(*integer);
  } else if (const auto* number = value.get_if<double>()) {
    fingerprint.Add(std::bit_cast<int64_t>(*number));
  } else if (const auto* text = value.get_if<std::string>()) {
    fingerprint.Add(*text);
  } else if (const auto* bytes = value.get_if<StateBytes>()) {
    fingerprint.Add(bytes->data);
  }
  return fingerprint.value();
}

// A row of bytes for each of `ranks`, of which this one writes its own.
absl::Status AddBlob(const char* name,
                     const std::shared_ptr<ProcessGroup>& group,
                     absl::Span<const int> ranks, uint64_t message_bytes,
                     absl::string_view message,
                     std::map<std::string, ShardedTensor>& tensors) {
  std::vector<Placement> owners;
  for (const int rank : ranks) {
    owners.push_back(
        Placement::OnRank(group->world_ranks()[static_cast<size_t>(rank)]));
  }
  const auto rows = static_cast<int64_t>(owners.size());
  SHERD_ASSIGN_OR_RETURN(const ShardingSpecPtr spec,
                         ChunkShardingSpec::Create(0, std::move(owners)));
  const int64_t bytes = StateRowBytes(static_cast<int64_t>(message_bytes));
  auto blob = ShardedTensor::Empty(spec, {rows, bytes},
                                   {.dtype = kUInt8, .group = group});
  if (!blob.ok()) {
    return Annotate(blob.status(), absl::StrCat("no ", bytes,
                                                " bytes for the values of the "
                                                "state that are not tensors"));
  }
  for (const Shard& shard : blob->local_shards()) {
    Tensor row = shard.tensor;
    WriteStateRow(message, absl::MakeSpan(static_cast<std::byte*>(row.data()),
                                          static_cast<size_t>(row.nbytes())));
  }
  tensors[name] = *std::move(blob);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> GatherFromAll(
    ProcessGroup& group, const OperationLabel& operation,
    const absl::StatusOr<std::string>& own,
    std::optional<absl::Duration> timeout) {
  const CollectiveOptions options = {.timeout = timeout};
  SHERD_RETURN_IF_ERROR(Agree(group, operation, own.status(), {}, options));
  return AllGatherStrings(group, *own, options);
}

absl::Status StateExchange::Agree(LongStep& step, const absl::Status& made,
                                  const AgreedValue& value) {
  KeptStatePlans& kept = KeptStatePlans::Get();
  StateNote note = {.structure = local_.structure,
                    .values = Fingerprint().Add(local_.shared).value(),
                    .shared_bytes = local_.shared.size(),
                    .own_bytes = local_.own.size()};
  if (group_->is_member()) plan_ = kept.Find(group_, note.structure);
  if (plan_ != nullptr) {
    note.expected = plan_->fingerprint;
    note.weighted = WeightedValues(*plan_);
  }
  notes_.resize(static_cast<size_t>(group_->size()));
  SHERD_RETURN_IF_ERROR(step.AgreeAndGather(
      made, value,
      ConstBytes(reinterpret_cast<const std::byte*>(&note), sizeof(note)),
      MutableBytes(reinterpret_cast<std::byte*>(notes_.data()),
                   notes_.size() * sizeof(StateNote))));
  std::vector<uint64_t> structures;
  for (const StateNote& each : notes_) structures.push_back(each.structure);
  StatePlan classes;
  FindClasses(structures, classes);
  const bool is_expected = plan_ != nullptr && plan_->structures == structures;
  std::vector<StateDescription> states;
  if (IsKnown(classes)) {
    if (is_expected) return absl::OkStatus();
    // All ranks are alike, and know it.
    states.push_back({.tensors = Describe(local_.tensors, *group_)});
  } else {
    const std::vector<int> sources = Sources();
    SHERD_ASSIGN_OR_RETURN(states, Exchange(sources));
    SHERD_RETURN_IF_ERROR(Compare(sources, states));
    // Since no values differ.
    SHERD_CHECK(sources == classes.leaders);
  }
  SHERD_ASSIGN_OR_RETURN(plan_,
                         MakeStatePlan(group_, std::move(structures), states));
  kept.Keep(group_, plan_);
  return absl::OkStatus();
}

bool StateExchange::IsKnown(const StatePlan& classes) const {
  uint64_t weighted = 0;
  for (const int leader : classes.leaders) {
    weighted += notes_[static_cast<size_t>(leader)].weighted;
  }
  for (size_t r = 0; r < notes_.size(); ++r) {
    const auto leader = static_cast<size_t>(
        classes.leaders[static_cast<size_t>(classes.class_of_rank[r])]);
    if (notes_[r].values != notes_[leader].values) return false;
    if (classes.leaders.size() > 1 &&
        notes_[r].expected != classes.fingerprint) {
      return false;
    }
  }
  return classes.leaders.size() == 1 || weighted == 0;
}

uint64_t StateExchange::WeightedValues(const StatePlan& plan) const {
  uint64_t sum = 0;
  for (size_t i = 0; i < plan.weights.size(); ++i) {
    if (plan.weights[i] == 0) continue;
    sum += plan.weights[i] * FingerprintOf(local_.entries[i].value);
  }
  return sum;
}

std::vector<int> StateExchange::Sources() const {
  std::set<std::pair<uint64_t, uint64_t>> known;
  std::vector<int> sources;
  for (size_t r = 0; r < notes_.size(); ++r) {
    if (known.emplace(notes_[r].structure, notes_[r].values).second) {
      sources.push_back(static_cast<int>(r));
    }
  }
  return sources;
}

absl::StatusOr<std::vector<StateDescription>> StateExchange::Exchange(
    const std::vector<int>& sources) {
  absl::StatusOr<std::string> own = "";
  if (std::binary_search(sources.begin(), sources.end(), group_->rank())) {
    own = EncodeDescription(local_.shared, Describe(local_.tensors, *group_));
  }
  SHERD_ASSIGN_OR_RETURN(const std::vector<std::string> gathered,
                         GatherFromAll(*group_, operation_, own, timeout_));
  std::vector<StateDescription> states;
  for (const int source : sources) {
    SHERD_ASSIGN_OR_RETURN(
        StateDescription state,
        DecodeDescription(gathered[static_cast<size_t>(source)]));
    states.push_back(std::move(state));
  }
  return states;
}

absl::Status StateExchange::Compare(
    const std::vector<int>& sources,
    const std::vector<StateDescription>& states) const {
  StateDict merged;
  for (size_t i = 0; i < states.size(); ++i) {
    const auto conflict = MergeState(states[i].shared, merged);
    if (!conflict) continue;
    size_t first = 0;
    while (!states[first].shared.Contains(conflict->name)) ++first;
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(conflict->name), " is ",
        StateConflict::Describe(conflict->there), " on rank ", sources[first],
        ", but ", StateConflict::Describe(conflict->added), " on rank ",
        sources[i],
        ": expected the same on all ranks that have it, or its name in "
        "per_rank"));
  }
  return absl::OkStatus();
}

std::map<std::string, ShardedTensor> StateExchange::Tensors() const {
  std::map<std::string, ShardedTensor> tensors;
  for (const StatePlan::Item& item : plan_->items) {
    const auto add = [&](internal::LocalShards shards) {
      tensors.emplace_hint(
          tensors.end(), item.name,
          ShardedTensorAccess::Make(item.state, std::move(shards)));
    };
    if (item.own < 0) {
      add(std::make_shared<const Shards>());
      continue;
    }
    const auto& own = local_.tensors[static_cast<size_t>(item.own)].value;
    if (const Tensor* const tensor = std::get_if<Tensor>(&own)) {
      const auto shard = static_cast<size_t>(item.state->local_indices.front());
      add(std::make_shared<const Shards>(
          1, Shard{*tensor, item.state->metadata.shards[shard]}));
    } else if (item.state != nullptr) {
      add(ShardedTensorAccess::ShardsOf(std::get<ShardedTensor>(own)));
    } else {
      tensors.emplace_hint(tensors.end(), item.name,
                           std::get<ShardedTensor>(own));
    }
  }
  return tensors;
}

absl::Status StateExchange::AddBlobs(
    std::map<std::string, ShardedTensor>& tensors) const {
  uint64_t shared = 0, own = 0;
  for (const StateNote& note : notes_) {
    shared = std::max(shared, note.shared_bytes);
    own = std::max(own, note.own_bytes);
  }
  SHERD_RETURN_IF_ERROR(AddBlob(kSharedStateName, group_, plan_->leaders,
                                shared, local_.shared, tensors));
  if (own == 0) return absl::OkStatus();
  return AddBlob(kRankStateName, group_, AllRanks(group_->size()), own,
                 local_.own, tensors);
}

}  // namespace sherd
