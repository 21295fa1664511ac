#include "sherd/serialization/checkpoint/save/save_layout.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/plan/replica_division.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/serialization/checkpoint/state/state_blob.h"
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/safetensors/safetensors_header.h"

namespace sherd {

void AssignReplicaOwners(TensorToSave& tensor, absl::Span<int64_t> load,
                         absl::Span<const int> host_of_rank) {
  const int64_t element_size = static_cast<int64_t>(SizeOf(tensor.dtype));
  // Loads of tensors with different dtypes add up as bytes.
  std::vector<int64_t> elements(load.size());
  for (size_t r = 0; r < load.size(); ++r) elements[r] = load[r] / element_size;
  std::vector<ShardToSave> shards;
  for (DividedBox& divided :
       DivideReplicas(tensor.Boxes(), kMinReplicaPartBytes / element_size,
                      absl::MakeSpan(elements), host_of_rank)) {
    ShardToSave& shard = shards.emplace_back(tensor.shards[divided.box]);
    static_cast<Box&>(shard) = std::move(divided.part);
    load[static_cast<size_t>(shard.rank)] += Volume(shard) * element_size;
  }
  tensor.shards = std::move(shards);
}

SaveLayoutBuilder::SaveLayoutBuilder(const ProcessGroup& group,
                                     bool find_replicas)
    : group_(group),
      find_replicas_(find_replicas),
      bytes_of_rank_(static_cast<size_t>(group.size())) {
  layout_.world_size = group.size();
}

template <typename Item>
SaveLayoutBuilder::SharedList<Item> SaveLayoutBuilder::Share(
    std::vector<Item> items,
    absl::flat_hash_map<std::string, SharedList<Item>>& known) {
  const std::string key(reinterpret_cast<const char*>(items.data()),
                        items.size() * sizeof(Item));
  SharedList<Item>& list = known[key];
  if (list == nullptr) {
    items.shrink_to_fit();
    list = std::make_shared<const std::vector<Item>>(std::move(items));
  }
  return list;
}

absl::Status SaveLayoutBuilder::Add(const std::string& name,
                                    const ShardedTensor& tensor,
                                    Fingerprint& fingerprint) {
  if (name == kCrcTableName) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor has the name ", Quoted(name),
                     ", which the checksums of a data file have; give it "
                     "another one"));
  }
  SHERD_ASSIGN_OR_RETURN(TensorToSave described,
                         DescribeTensor(name, tensor, group_));
  if (IsStateBlob(name) &&
      (described.dtype != kUInt8 || described.sizes.size() != 2)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Quoted(name), " is ", Name(described.dtype),
                     " ", FormatDims(described.sizes),
                     ", but its name is that of the values of a state; give "
                     "it another one"));
  }
  if (IsStoredAsParts(described.dtype) &&
      described.sizes.size() == static_cast<size_t>(kMaxRank)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", Quoted(name), " of ", Name(described.dtype), " has ",
        kMaxRank, " dimensions, expected at most ", kMaxRank - 1,
        ": it takes one more in a file; reshape it"));
  }
  AddToFingerprint(described, fingerprint);
  // Each rank writes these, too, into its own file.
  fingerprint.Add(described.requires_grad ? 1 : 0)
      .Add(static_cast<int64_t>(described.layout))
      .Add(described.chunk_dim)
      .Add(static_cast<int64_t>(described.layout_fingerprint));
  SHERD_ASSIGN_OR_RETURN(const int64_t bytes,
                         NumBytes(described.sizes, described.dtype));
  const auto sum = CheckedAdd(tensor_bytes_, bytes);
  if (!sum.has_value()) {
    return absl::InvalidArgumentError(
        "the tensors together have 2^63 bytes or more");
  }
  tensor_bytes_ = *sum;
  if (find_replicas_) FindReplicas(described);
  AssignReplicaOwners(described, absl::MakeSpan(bytes_of_rank_),
                      group_.host_of_rank());
  std::vector<Box> boxes(described.shards.begin(), described.shards.end());
  std::vector<int64_t> order;
  const int32_t index = static_cast<int32_t>(layout_.tensors.size());
  TensorLayout& added = layout_.tensors.emplace_back();
  added.name = name;
  added.dtype = described.dtype;
  added.requires_grad = described.requires_grad;
  added.kind = described.layout;
  added.chunk_dim = described.chunk_dim;
  added.layout = SavedLayout::FromBoxes(described.sizes, boxes, &order);
  std::vector<OwnerRun> owners;
  for (size_t i = 0; i < order.size(); ++i) {
    const ShardToSave& shard = described.shards[static_cast<size_t>(order[i])];
    AppendOwner(shard.rank, PlacementOf(tensor, shard), owners);
    if (shard.rank != group_.rank() || IsEmpty(shard)) continue;
    own_.push_back({index, static_cast<int64_t>(i), shard.held});
  }
  added.owners = Share(std::move(owners), owners_);
  return absl::OkStatus();
}

int32_t SaveLayoutBuilder::PlacementOf(const ShardedTensor& tensor,
                                       const ShardToSave& shard) {
  const Placement& placement = *tensor.metadata().shards[shard.held].placement;
  const auto [it, added] =
      placements_.try_emplace(placement, static_cast<int32_t>(known_.size()));
  if (added) known_.push_back({shard.rank, placement.ToString()});
  return it->second;
}

void SaveLayoutBuilder::FindReplicas(const TensorToSave& tensor) {
  const int32_t index = static_cast<int32_t>(layout_.tensors.size());
  absl::flat_hash_map<BoxView, std::vector<size_t>> holders;
  for (size_t i = 0; i < tensor.shards.size(); ++i) {
    if (!IsEmpty(tensor.shards[i])) holders[tensor.shards[i]].push_back(i);
  }
  for (size_t i = 0; i < tensor.shards.size(); ++i) {
    const auto it = holders.find(tensor.shards[i]);
    if (it == holders.end() || it->second.front() != i) continue;
    ReplicaSet set;
    set.tensor = index;
    set.box = tensor.shards[i];
    std::vector<int> ranks;
    for (const size_t holder : it->second) {
      const ShardToSave& shard = tensor.shards[holder];
      ranks.push_back(shard.rank);
      if (shard.rank == group_.rank()) set.held.push_back(shard.held);
    }
    if (ranks.size() == 1 || set.held.empty()) continue;
    std::sort(ranks.begin(), ranks.end());
    set.comparer = ranks[(static_cast<size_t>(index) + i) % ranks.size()];
    set.holders = Share(std::move(ranks), holders_);
    replicas_.push_back(std::move(set));
  }
}

void SaveLayoutBuilder::Finish() {
  std::vector<int32_t> sorted(known_.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  std::sort(sorted.begin(), sorted.end(), [this](int32_t a, int32_t b) {
    const KnownPlacement& x = known_[static_cast<size_t>(a)];
    const KnownPlacement& y = known_[static_cast<size_t>(b)];
    return std::tie(x.rank, x.text) < std::tie(y.rank, y.text);
  });
  std::vector<int32_t> number(known_.size());
  for (size_t i = 0; i < sorted.size(); ++i) {
    KnownPlacement& placement = known_[static_cast<size_t>(sorted[i])];
    // Placements that differ in what their text leaves out are one.
    if (layout_.placements.empty() ||
        layout_.placements.back() != placement.text) {
      layout_.placements.push_back(placement.text);
    }
    number[static_cast<size_t>(sorted[i])] =
        static_cast<int32_t>(layout_.placements.size()) - 1;
  }
  absl::flat_hash_map<Owners, Owners> renumbered;
  for (TensorLayout& tensor : layout_.tensors) {
    Owners& owners = renumbered[tensor.owners];
    if (owners == nullptr) {
      std::vector<OwnerRun> runs;
      for (const OwnerRun& run : *tensor.owners) {
        for (int32_t k = 0; k < run.shards; ++k) {
          const int32_t placement = run.placement + k * run.placement_step;
          AppendOwner(run.rank + k * run.rank_step,
                      number[static_cast<size_t>(placement)], runs);
        }
      }
      owners = std::make_shared<const std::vector<OwnerRun>>(std::move(runs));
    }
    tensor.owners = owners;
  }
}

}  // namespace sherd
