#include "sherd/serialization/checkpoint/save_plan.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/version.h"
#include "sherd/core/sharding/plan/replica_division.h"
#include "sherd/serialization/checkpoint/lease.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/safetensors/safetensors_header.h"

namespace sherd {
namespace {

constexpr absl::string_view kShardPrefix = "shard-";
constexpr absl::string_view kShardSuffix = ".safetensors";

// The prefix of `text` is consumed if it has that form.
bool ConsumeDigits(absl::string_view& text) {
  size_t n = 0;
  while (n < text.size() && absl::ascii_isdigit(text[n])) ++n;
  text.remove_prefix(n);
  return n > 0;
}

}  // namespace

std::vector<PlacedBox> TensorToSave::Boxes() const {
  std::vector<PlacedBox> boxes;
  boxes.reserve(shards.size());
  for (const ShardToSave& shard : shards) {
    boxes.push_back({shard, shard.rank});
  }
  return boxes;
}

void AssignReplicaOwners(TensorToSave& tensor, absl::Span<int64_t> load) {
  const int64_t element_size = static_cast<int64_t>(SizeOf(tensor.dtype));
  // Loads of tensors with different dtypes add up as bytes.
  std::vector<int64_t> elements(load.size());
  for (size_t r = 0; r < load.size(); ++r) elements[r] = load[r] / element_size;
  std::vector<ShardToSave> shards;
  for (DividedBox& divided :
       DivideReplicas(tensor.Boxes(), kMinReplicaPartBytes / element_size,
                      absl::MakeSpan(elements))) {
    ShardToSave& shard = shards.emplace_back(tensor.shards[divided.box]);
    static_cast<Box&>(shard) = std::move(divided.part);
    load[static_cast<size_t>(shard.rank)] += Volume(shard) * element_size;
  }
  tensor.shards = std::move(shards);
}

std::vector<std::vector<ShardIndex>> ShardsByRank(
    const std::vector<TensorToSave>& tensors, int world_size) {
  std::vector<std::vector<ShardIndex>> by_rank(world_size);
  for (size_t t = 0; t < tensors.size(); ++t) {
    for (size_t s = 0; s < tensors[t].shards.size(); ++s) {
      by_rank[tensors[t].shards[s].rank].push_back({t, s});
    }
  }
  return by_rank;
}

absl::StatusOr<RankFile> PlanRankFile(const std::vector<TensorToSave>& tensors,
                                      const std::vector<ShardIndex>& shards,
                                      int rank, int world_size,
                                      absl::string_view save_id) {
  std::vector<SafetensorsTensorInfo> infos;
  absl::flat_hash_map<std::string, ShardIndex> by_key;
  for (const ShardIndex& index : shards) {
    const TensorToSave& tensor = tensors[index.tensor];
    const ShardToSave& shard = tensor.shards[index.shard];
    if (IsEmpty(shard)) continue;
    std::string key = ShardKey(tensor.name, shard.offsets);
    infos.push_back({key, tensor.dtype, shard.sizes});
    by_key.emplace(std::move(key), index);
  }
  RankFile file;
  if (infos.empty()) return file;
  file.name = absl::StrFormat("%s%05d-of-%05d.%s%s", kShardPrefix, rank,
                              world_size, save_id, kShardSuffix);
  SHERD_ASSIGN_OR_RETURN(
      const SafetensorsHeader header,
      PlanSafetensors(std::move(infos),
                      {{"sherd_save_id", std::string(save_id)}}));
  SHERD_ASSIGN_OR_RETURN(file.header, EncodeSafetensorsHeader(header));
  const int64_t data_begin = static_cast<int64_t>(file.header.size());
  file.size = data_begin + header.data_bytes();
  for (const SafetensorsEntry& entry : header.entries) {
    file.places.push_back(
        {by_key[entry.name], data_begin + entry.begin, entry.nbytes()});
  }
  return file;
}

absl::StatusOr<ManifestV1> PlanManifest(
    const std::vector<TensorToSave>& tensors, int world_size,
    absl::string_view save_id) {
  ManifestV1 manifest;
  manifest.writer = absl::StrCat("sherd ", kVersion);
  manifest.save_id = std::string(save_id);
  manifest.world_size = world_size;
  absl::flat_hash_map<absl::string_view, int32_t> placements;
  for (const TensorToSave& tensor : tensors) {
    ManifestTensorV1 out;
    out.name = tensor.name;
    out.dtype = tensor.dtype;
    out.sizes = tensor.sizes;
    out.requires_grad = tensor.requires_grad;
    out.layout = tensor.layout;
    out.chunk_dim = tensor.chunk_dim;
    for (const ShardToSave& shard : tensor.shards) {
      const auto [it, added] = placements.emplace(
          shard.placement, static_cast<int32_t>(manifest.placements.size()));
      if (added) manifest.placements.push_back(shard.placement);
      out.shards.push_back({shard, it->second});
    }
    manifest.tensors.push_back(std::move(out));
  }
  const auto by_rank = ShardsByRank(tensors, world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    SHERD_ASSIGN_OR_RETURN(
        const RankFile file,
        PlanRankFile(tensors, by_rank[rank], rank, world_size, save_id));
    if (file.name.empty()) continue;
    for (const RankFile::Place& place : file.places) {
      ManifestShardV1& saved =
          manifest.tensors[place.index.tensor].shards[place.index.shard];
      saved.file = static_cast<int32_t>(manifest.files.size());
      saved.file_offset = place.file_offset;
    }
    manifest.files.push_back(
        {file.name, file.size, static_cast<int64_t>(file.header.size()),
         Crc32c(absl::MakeSpan(
             reinterpret_cast<const std::byte*>(file.header.data()),
             file.header.size()))});
  }
  int64_t chunks = 0;
  for (ManifestTensorV1& tensor : manifest.tensors) {
    for (ManifestShardV1& shard : tensor.shards) {
      shard.first_chunk = chunks;
      chunks += manifest.NumChunks(tensor, shard);
    }
  }
  manifest.chunk_crc32c.resize(chunks);
  return manifest;
}

bool IsSaveFileName(absl::string_view name) {
  if (IsStagedManifestName(name)) return true;
  absl::string_view rest = name;
  // lease.sherd.<16 hex digits>.tmp
  if (absl::ConsumePrefix(&rest, absl::StrCat(kLeaseFileName, ".")) &&
      absl::ConsumeSuffix(&rest, ".tmp")) {
    return IsSaveId(rest);
  }
  // shard-<rank>-of-<ranks>.<16 hex digits>.safetensors
  if (!absl::ConsumePrefix(&rest, kShardPrefix) || !ConsumeDigits(rest) ||
      !absl::ConsumePrefix(&rest, "-of-") || !ConsumeDigits(rest) ||
      !absl::ConsumePrefix(&rest, ".") ||
      !absl::ConsumeSuffix(&rest, kShardSuffix)) {
    return false;
  }
  return IsSaveId(rest);
}

bool IsStagedManifestName(absl::string_view name) {
  // manifest.sherd.<16 hex digits>.tmp, and of earlier builds, which wrote
  // digits of any number.
  absl::string_view id = name;
  return absl::ConsumePrefix(&id, absl::StrCat(kManifestFileName, ".")) &&
         absl::ConsumeSuffix(&id, ".tmp") &&
         (IsSaveId(id) || (ConsumeDigits(id) && id.empty()));
}

std::string StagedManifestName(absl::string_view save_id) {
  return absl::StrCat(kManifestFileName, ".", save_id, ".tmp");
}

}  // namespace sherd
