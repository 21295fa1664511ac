#include "sherd/serialization/checkpoint/state/state_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/serialization/checkpoint/state/state_blob.h"

namespace sherd {
namespace {

using internal::ShardedTensorStatePtr;
using Description = StateTensorDescription;

// "sharded float32 [4, 6] over ranks 0,1".
std::string ToText(const Description& tensor) {
  std::string text =
      absl::StrCat(tensor.is_sharded ? "a sharded " : "a ", Name(tensor.dtype),
                   " tensor of ", FormatDims(tensor.size));
  if (tensor.is_direct) {
    absl::StrAppend(&text, " over all ranks");
  } else if (tensor.is_sharded) {
    absl::StrAppend(&text, " over the global ranks ",
                    absl::StrJoin(tensor.members, ", "));
  }
  return text;
}

bool IsSame(const Description& a, const Description& b) {
  return std::tie(a.is_sharded, a.is_direct, a.dtype, a.size, a.members) ==
             std::tie(b.is_sharded, b.is_direct, b.dtype, b.size, b.members) &&
         a.metadata == b.metadata;
}

// Makes the items of a plan.
class Planner {
 public:
  Planner(const std::shared_ptr<ProcessGroup>& group,
          absl::Span<const StateDescription> classes, StatePlan& plan)
      : group_(group),
        classes_(classes),
        plan_(plan),
        ranks_(plan.leaders.size()) {
    for (int r = 0; r < group->size(); ++r) {
      ranks_[static_cast<size_t>(ClassOf(r))].push_back(r);
    }
  }

  absl::Status MakeItems() {
    for (size_t c = 0; c < classes_.size(); ++c) {
      for (size_t i = 0; i < classes_[c].tensors.size(); ++i) {
        SHERD_RETURN_IF_ERROR(AddTensor(c, i));
      }
    }
    for (const auto& [name, entry] : entries_) {
      const Description& tensor = *entry.tensors.front();
      StatePlan::Item item = {.name = name, .own = entry.own};
      if (entry.rank >= 0) {
        SHERD_ASSIGN_OR_RETURN(item.state,
                               StateOn({{entry.rank, tensor.device}}, tensor));
      } else if (!tensor.is_sharded) {
        SHERD_ASSIGN_OR_RETURN(item.state, StateOfReplicas(entry));
      } else {
        SHERD_ASSIGN_OR_RETURN(item.state, StateOfSharded(name, entry));
      }
      plan_.items.push_back(std::move(item));
    }
    return absl::OkStatus();
  }

 private:
  // A name in the checkpoint.
  struct Entry {
    // The classes that have it, and what each has.
    std::vector<size_t> classes;
    std::vector<const Description*> tensors;
    // The only rank of a tensor that is per rank; otherwise -1.
    int rank = -1;
    int own = -1;
  };
  using Holders = std::vector<std::pair<int, Device>>;

  int ClassOf(int rank) const {
    return plan_.class_of_rank[static_cast<size_t>(rank)];
  }

  absl::Status AddTensor(size_t c, size_t i) {
    const Description& tensor = classes_[c].tensors[i];
    const int me = group_->rank();
    if (tensor.per_rank) {
      for (const int r : ranks_[c]) {
        entries_[RankTensorName(r, tensor.name)] = {
            .classes = {c},
            .tensors = {&tensor},
            .rank = r,
            .own = r == me ? static_cast<int>(i) : -1};
      }
      return absl::OkStatus();
    }
    Entry& entry = entries_[tensor.name];
    if (!entry.tensors.empty() && !IsSame(*entry.tensors.front(), tensor)) {
      return Differs(entry, c, tensor);
    }
    entry.classes.push_back(c);
    entry.tensors.push_back(&tensor);
    if (ClassOf(me) == static_cast<int>(c)) entry.own = static_cast<int>(i);
    return absl::OkStatus();
  }

  absl::Status Differs(const Entry& entry, size_t c,
                       const Description& tensor) const {
    const std::string first = ToText(*entry.tensors.front());
    const std::string second = ToText(tensor);
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", Quoted(tensor.name), " is ", first, " on rank ",
        plan_.leaders[entry.classes.front()], ", but ", second, " on rank ",
        plan_.leaders[c], first == second ? ", with other shards" : "",
        ": expected the same on all ranks that have it, or per_rank"));
  }

  // A tensor of one shard, which each of `holders` has.
  absl::StatusOr<ShardedTensorStatePtr> StateOn(const Holders& holders,
                                                const Description& tensor) {
    ShardedTensorMetadata metadata;
    metadata.size = tensor.size;
    metadata.properties.dtype = tensor.dtype;
    for (const auto& [rank, device] : holders) {
      const int global = group_->world_ranks()[static_cast<size_t>(rank)];
      metadata.shards.push_back(
          {.offsets = Dims(tensor.size.size(), 0),
           .sizes = tensor.size,
           .placement = Placement::OnRank(global, device)});
    }
    SHERD_ASSIGN_OR_RETURN(
        ShardingSpecPtr spec,
        EnumerableShardingSpec::CreateWithReplicas(metadata.shards));
    return internal::MakeStateOf(group_, std::move(spec), std::move(metadata));
  }

  // Thousands of scalars are alike.
  absl::StatusOr<ShardedTensorStatePtr> StateOfReplicas(const Entry& entry) {
    const Description& tensor = *entry.tensors.front();
    std::string key = absl::StrCat(tensor.dtype, FormatDims(tensor.size));
    for (size_t k = 0; k < entry.classes.size(); ++k) {
      absl::StrAppend(&key, " ", entry.classes[k], "/",
                      entry.tensors[k]->device.ToString());
    }
    ShardedTensorStatePtr& state = alike_[key];
    if (state != nullptr) return state;
    Holders holders;
    for (size_t k = 0; k < entry.classes.size(); ++k) {
      for (const int r : ranks_[entry.classes[k]]) {
        holders.emplace_back(r, entry.tensors[k]->device);
      }
    }
    std::sort(holders.begin(), holders.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    SHERD_ASSIGN_OR_RETURN(state, StateOn(holders, tensor));
    return state;
  }

  // The ranks of the tensor's group in this one.
  absl::StatusOr<std::vector<bool>> MembersOf(const std::string& name,
                                              const Description& tensor) {
    std::vector<bool> is_member(static_cast<size_t>(group_->size()),
                                tensor.is_direct);
    for (const int global : tensor.members) {
      const auto& ranks = group_->world_ranks();
      const auto it = std::find(ranks.begin(), ranks.end(), global);
      if (it == ranks.end()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tensor ", Quoted(name), " is ", ToText(tensor), ", of which ",
            global, " is not in the group ", Quoted(group_->name()),
            " of the global ranks ", absl::StrJoin(ranks, ", "),
            ": expected a group within it"));
      }
      is_member[static_cast<size_t>(it - ranks.begin())] = true;
    }
    return is_member;
  }

  absl::StatusOr<ShardedTensorStatePtr> StateOfSharded(const std::string& name,
                                                       const Entry& entry) {
    const Description& tensor = *entry.tensors.front();
    SHERD_ASSIGN_OR_RETURN(const std::vector<bool> is_member,
                           MembersOf(name, tensor));
    for (int r = 0; r < group_->size(); ++r) {
      const bool has_it =
          std::binary_search(entry.classes.begin(), entry.classes.end(),
                             static_cast<size_t>(ClassOf(r)));
      if (has_it == is_member[static_cast<size_t>(r)]) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Quoted(name), " is ", ToText(tensor), ", but rank ", r,
          has_it ? ", which is not in that group, has it, too"
                 : ", which is in that group, does not have it"));
    }
    if (tensor.is_direct) return ShardedTensorStatePtr();
    SHERD_ASSIGN_OR_RETURN(
        ShardingSpecPtr spec,
        InferShardingSpec(tensor.metadata.shards, Replicas::kAllowed));
    return internal::MakeStateOf(group_, std::move(spec), tensor.metadata);
  }

  const std::shared_ptr<ProcessGroup>& group_;
  const absl::Span<const StateDescription> classes_;
  StatePlan& plan_;
  // By class.
  std::vector<std::vector<int>> ranks_;
  std::map<std::string, Entry> entries_;
  absl::flat_hash_map<std::string, ShardedTensorStatePtr> alike_;
};

// Neighbours in the ring of classes that have a name cancel out.
uint64_t WeightOf(const std::string& name, const std::vector<size_t>& classes,
                  size_t c) {
  const auto hash = [&](size_t k) {
    return Fingerprint().Add(name).Add(static_cast<int64_t>(k)).value();
  };
  const auto it = std::lower_bound(classes.begin(), classes.end(), c);
  const size_t next = it + 1 == classes.end() ? classes.front() : *(it + 1);
  return hash(c) - hash(next);
}

std::vector<uint64_t> WeighValues(absl::Span<const StateDescription> classes,
                                  size_t own_class) {
  absl::flat_hash_map<std::string, std::vector<size_t>> classes_of_name;
  for (size_t c = 0; c < classes.size(); ++c) {
    for (const StateEntry& entry : classes[c].shared.Flatten()) {
      classes_of_name[entry.name].push_back(c);
    }
  }
  std::vector<uint64_t> weights;
  for (const StateEntry& entry : classes[own_class].shared.Flatten()) {
    const StateKind kind = entry.value.kind();
    const bool is_tensor =
        kind == StateKind::kTensor || kind == StateKind::kShardedTensor;
    // What is an empty map here may have keys elsewhere.
    const bool is_compared = !is_tensor && kind != StateKind::kMap;
    weights.push_back(
        is_compared
            ? WeightOf(entry.name, classes_of_name[entry.name], own_class)
            : 0);
  }
  return weights;
}

}  // namespace

uint64_t FingerprintOf(absl::Span<const uint64_t> structures) {
  Fingerprint fingerprint;
  for (const uint64_t structure : structures) {
    fingerprint.Add(static_cast<int64_t>(structure));
  }
  return fingerprint.value();
}

void FindClasses(std::vector<uint64_t> structures, StatePlan& plan) {
  absl::flat_hash_map<uint64_t, int> known;
  for (size_t r = 0; r < structures.size(); ++r) {
    const auto [it, is_new] =
        known.try_emplace(structures[r], static_cast<int>(plan.leaders.size()));
    if (is_new) plan.leaders.push_back(static_cast<int>(r));
    plan.class_of_rank.push_back(it->second);
  }
  plan.fingerprint = FingerprintOf(structures);
  plan.structures = std::move(structures);
}

absl::StatusOr<std::shared_ptr<const StatePlan>> MakeStatePlan(
    const std::shared_ptr<ProcessGroup>& group,
    std::vector<uint64_t> structures,
    absl::Span<const StateDescription> classes) {
  auto plan = std::make_shared<StatePlan>();
  FindClasses(std::move(structures), *plan);
  SHERD_RETURN_IF_ERROR(Planner(group, classes, *plan).MakeItems());
  if (classes.size() > 1) {
    const int own = plan->class_of_rank[static_cast<size_t>(group->rank())];
    plan->weights = WeighValues(classes, static_cast<size_t>(own));
  }
  return plan;
}

KeptStatePlans& KeptStatePlans::Get() {
  static KeptStatePlans* const plans = new KeptStatePlans;
  return *plans;
}

KeptStatePlans::Plan KeptStatePlans::Find(
    const std::shared_ptr<ProcessGroup>& group, uint64_t structure) {
  const size_t rank = static_cast<size_t>(group->rank());
  return plans_
      .Find(
          group,
          [&](const Plan& plan) { return plan->structures[rank] == structure; })
      .value_or(nullptr);
}

void KeptStatePlans::Keep(const std::shared_ptr<ProcessGroup>& group,
                          const Plan& plan) {
  plans_.Keep(group, plan, [&plan](const Plan& kept) {
    return kept->structures == plan->structures;
  });
}

}  // namespace sherd
