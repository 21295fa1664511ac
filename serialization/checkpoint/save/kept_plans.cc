#include "sherd/serialization/checkpoint/save/kept_plans.h"

#include <algorithm>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/serialization/checkpoint/sharded_layout.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/manifest/manifest_codec.h"

namespace sherd {
namespace {

// Describes the file of a rank as its header does.
class ContentsBuilder {
 public:
  explicit ContentsBuilder(const SaveLayout& layout) : layout_(layout) {}

  // Tensors are added by ascending index.
  void AddTensor(int32_t index) {
    const TensorLayout& tensor = layout_.tensors[static_cast<size_t>(index)];
    position_[index] = contents_.tensors.size();
    contents_.tensors.push_back({.name = tensor.name,
                                 .dtype = tensor.dtype,
                                 .sizes = tensor.layout.sizes(),
                                 .requires_grad = tensor.requires_grad,
                                 .kind = tensor.kind,
                                 .chunk_dim = tensor.chunk_dim});
  }

  void AddShard(const FileShard& shard, const Box& box) {
    DataFileShard& added = contents_.shards.emplace_back();
    static_cast<Box&>(added) = box;
    added.tensor = position_.at(shard.tensor);
    const auto [it, is_new] =
        placements_.try_emplace(shard.placement, contents_.placements.size());
    if (is_new) {
      contents_.placements.push_back(
          layout_.placements[static_cast<size_t>(shard.placement)]);
    }
    added.placement = it->second;
  }

  DataFileContents Take() && { return std::move(contents_); }

 private:
  const SaveLayout& layout_;
  DataFileContents contents_;
  // By index in the layout, and by number there.
  absl::flat_hash_map<int32_t, size_t> position_;
  absl::flat_hash_map<int32_t, size_t> placements_;
};

void DescribeFile(const SaveLayout& layout, const RankFile& file, int rank,
                  int num_files, SavePlan& plan) {
  std::vector<bool> has_shard(layout.tensors.size());
  for (const FileShard& shard : file.shards) {
    has_shard[static_cast<size_t>(shard.tensor)] = true;
  }
  ContentsBuilder contents(layout);
  for (size_t t = 0; t < layout.tensors.size(); ++t) {
    const TensorLayout& tensor = layout.tensors[t];
    // Tensors without elements are in all files: their owners may have none.
    if (has_shard[t] || Volume(tensor.layout.sizes()) == 0) {
      contents.AddTensor(static_cast<int32_t>(t));
    }
  }
  for (size_t i = 0; i < file.shards.size(); ++i) {
    contents.AddShard(file.shards[i], plan.shards[i].box);
  }
  plan.contents = std::move(contents).Take();
  plan.contents.world_size = layout.world_size;
  plan.contents.rank = rank;
  plan.contents.files = num_files;
}

// Sets `held` of the shards of `file`, which the plan has in the same order.
void FindHeld(absl::Span<const OwnShard> own, SavePlan& plan) {
  for (PlannedShard& shard : plan.shards) {
    const auto it = std::lower_bound(
        own.begin(), own.end(), shard,
        [](const OwnShard& a, const PlannedShard& b) {
          return std::tie(a.tensor, a.shard) < std::tie(b.tensor, b.shard);
        });
    shard.held = it->held;
  }
}

// Then its placements do not tell which ranks have its shards.
bool HasWorkerNames(const ShardedTensor& tensor) {
  const std::vector<ShardMetadata>& shards = tensor.metadata().shards;
  return std::any_of(
      shards.begin(), shards.end(), [](const ShardMetadata& shard) {
        return !shard.placement->rank() && shard.placement->worker_name();
      });
}

// Fails as the save would once everything is written.
absl::Status CheckEncoding(const SavePlan& plan) {
  constexpr char kAnySave[] = "0123456789abcdef";
  DataFileContents contents = plan.contents;
  contents.save_id = kAnySave;
  if (!plan.shards.empty()) {
    SHERD_RETURN_IF_ERROR(EncodeDataFileHeader(contents).status());
  }
  if (plan.contents.rank != 0) return absl::OkStatus();
  Manifest manifest = plan.manifest.manifest;
  manifest.save_id = kAnySave;
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    manifest.files[i].name = DataFileName(plan.manifest.rank_of_file[i],
                                          manifest.world_size, kAnySave);
  }
  return EncodeManifest(manifest,
                        [&](size_t t) { return plan.manifest.RunsOf(t); })
      .status();
}

absl::StatusOr<std::shared_ptr<const SavePlan>> MakePlan(
    const ProcessGroup& group,
    const std::map<std::string, ShardedTensor>& tensors, bool find_replicas) {
  SaveLayoutBuilder builder(group, find_replicas);
  Fingerprint fingerprint;
  for (const auto& [name, tensor] : tensors) {
    SHERD_RETURN_IF_ERROR(builder.Add(name, tensor, fingerprint));
  }
  builder.Finish();
  const SaveLayout& layout = builder.layout();
  auto plan = std::make_shared<SavePlan>(PlanOwnFile(layout, group.rank()));
  FindHeld(builder.own(), *plan);
  plan->fingerprint = fingerprint.value();
  plan->tensor_bytes = builder.tensor_bytes();
  plan->replicas = builder.TakeReplicas();
  if (group.rank() == 0) plan->manifest = PlanManifest(layout);
  SHERD_RETURN_IF_ERROR(CheckEncoding(*plan));
  return plan;
}

}  // namespace

SavePlan PlanOwnFile(const SaveLayout& layout, int rank) {
  SavePlan plan;
  const RankFile file = PlanRankFile(layout, rank);
  plan.chunks = file.chunks;
  plan.shards.reserve(file.shards.size());
  for (const FileShard& shard : file.shards) {
    const TensorLayout& tensor =
        layout.tensors[static_cast<size_t>(shard.tensor)];
    plan.shards.push_back({.tensor = shard.tensor,
                           .shard = shard.shard,
                           .box = tensor.layout.BoxAt(shard.shard),
                           .data_offset = shard.data_offset,
                           .first_chunk = shard.first_chunk,
                           .chunks = NumChunks(shard.bytes, kChunkBytes)});
  }
  DescribeFile(layout, file, rank, CountFiles(layout), plan);
  return plan;
}

KeptPlans& KeptPlans::Get() {
  static KeptPlans* const plans = new KeptPlans;
  return *plans;
}

KeptPlans::Key KeptPlans::KeyOf(
    const std::map<std::string, ShardedTensor>& tensors, bool find_replicas) {
  Key key;
  key.find_replicas = find_replicas;
  key.tensors.reserve(tensors.size());
  // Many tensors share their metadata, as scalars of a state do.
  absl::flat_hash_map<const ShardedTensorMetadata*, bool> has_worker_names;
  for (const auto& [name, tensor] : tensors) {
    const DisplayLayout display = DisplayLayoutOf(tensor);
    Fingerprint fingerprint;
    fingerprint.Add(static_cast<int64_t>(LayoutFingerprintOf(tensor)))
        .Add(static_cast<int64_t>(tensor.dtype()))
        .Add(tensor.requires_grad() ? 1 : 0)
        .Add(static_cast<int64_t>(display.kind))
        .Add(display.chunk_dim);
    const auto [named, is_new] =
        has_worker_names.try_emplace(&tensor.metadata(), false);
    if (is_new) named->second = HasWorkerNames(tensor);
    if (named->second) {
      for (const PlacedBox& box : tensor.placed_boxes()) {
        fingerprint.Add(box.rank);
      }
    }
    key.tensors.emplace_back(name, fingerprint.value());
  }
  return key;
}

absl::StatusOr<std::shared_ptr<const SavePlan>> KeptPlans::PlanFor(
    const std::shared_ptr<ProcessGroup>& group,
    const std::map<std::string, ShardedTensor>& tensors, bool find_replicas) {
  Key key = KeyOf(tensors, find_replicas);
  const auto has_key = [&key](const std::shared_ptr<const Entry>& entry) {
    return entry->key == key;
  };
  if (const auto known = plans_.Find(group, has_key)) return (*known)->plan;
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<const SavePlan> plan,
                         MakePlan(*group, tensors, find_replicas));
  ++plans_made_;
  plans_.Keep(group, std::make_shared<const Entry>(Entry{key, plan}), has_key);
  return plan;
}

}  // namespace sherd
