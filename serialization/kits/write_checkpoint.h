#ifndef SHERD_SERIALIZATION_KITS_WRITE_CHECKPOINT_H_
#define SHERD_SERIALIZATION_KITS_WRITE_CHECKPOINT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint/tensor_fingerprint.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/safetensors/crc32c.h"

namespace sherd {

// For tests: a tensor of a checkpoint, with the bytes of FillSample. Shard i is
// held by rank i % ranks.
struct TensorToWrite {
  std::string name;
  DType dtype = kFloat32;
  SavedLayout layout;
  int seed = 0;
};

struct WriteCheckpointOptions {
  int ranks = 2;
  int64_t chunk_bytes = kChunkBytes;
  std::string save_id = "18c251e97a0589a9";
  // Without it, data files alone.
  bool manifest = true;
};

namespace internal {

inline std::string BytesOfShard(const TensorToWrite& tensor, const Box& box) {
  const Tensor part = *Tensor::Empty(box.sizes, {.dtype = tensor.dtype});
  ForEachElement(part, box.offsets, tensor.layout.sizes(),
                 [&](std::byte* element, int64_t index) {
                   for (size_t b = 0; b < SizeOf(tensor.dtype); ++b) {
                     element[b] =
                         SampleByte(tensor.seed, index, b, tensor.dtype);
                   }
                 });
  return std::string(static_cast<const char*>(part.data()),
                     static_cast<size_t>(part.nbytes()));
}

inline uint32_t CrcOf(absl::string_view bytes) {
  return Crc32c(absl::MakeSpan(reinterpret_cast<const std::byte*>(bytes.data()),
                               bytes.size()));
}

}  // namespace internal

// Writes a checkpoint of version 2 as a save does, by one process.
inline absl::Status WriteCheckpoint(const std::string& path,
                                    std::vector<TensorToWrite> tensors,
                                    const WriteCheckpointOptions& options) {
  FileSystem& files = FileSystem::Posix();
  SHERD_RETURN_IF_ERROR(files.CreateDirectories(path));
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  Manifest manifest;
  manifest.writer = "sherd 0.1.0";
  manifest.save_id = options.save_id;
  manifest.world_size = options.ranks;
  manifest.chunk_bytes = options.chunk_bytes;
  DataFileContents all;
  std::vector<std::vector<SavedShardPlace>> places(tensors.size());
  std::vector<uint32_t> fingerprints(tensors.size());
  // By rank: tensor and shard.
  std::vector<std::vector<std::pair<size_t, int64_t>>> held(options.ranks);
  for (size_t t = 0; t < tensors.size(); ++t) {
    const TensorToWrite& tensor = tensors[t];
    all.tensors.push_back({tensor.name, tensor.dtype, tensor.layout.sizes()});
    for (int64_t i = 0; i < tensor.layout.size(); ++i) {
      const int rank = static_cast<int>(i % options.ranks);
      places[t].push_back({.placement = rank});
      if (tensor.layout.VolumeAt(i) > 0) held[rank].emplace_back(t, i);
    }
  }
  all.files = static_cast<int32_t>(
      std::count_if(held.begin(), held.end(),
                    [](const auto& list) { return !list.empty(); }));
  for (int rank = 0; rank < options.ranks; ++rank) {
    manifest.placements.push_back(absl::StrCat("rank:", rank, "/cpu"));
    if (held[rank].empty()) continue;
    DataFileContents contents = all;
    contents.save_id = options.save_id;
    contents.world_size = options.ranks;
    contents.rank = rank;
    contents.chunk_bytes = options.chunk_bytes;
    contents.placements = {manifest.placements.back()};
    std::vector<Box> boxes;
    std::vector<std::string> data;
    std::vector<ShardInFile> shards;
    for (const auto& [t, i] : held[rank]) {
      boxes.push_back(tensors[t].layout.BoxAt(i));
      data.push_back(internal::BytesOfShard(tensors[t], boxes.back()));
    }
    // Once the boxes stay where they are.
    for (size_t k = 0; k < boxes.size(); ++k) {
      shards.push_back({tensors[held[rank][k].first].name, boxes[k].offsets,
                        static_cast<int64_t>(data[k].size())});
    }
    SHERD_ASSIGN_OR_RETURN(const FilePlan plan,
                           PlanDataFile(shards, options.chunk_bytes));
    // A rank tells of the tensors that it holds, and of those without elements.
    std::vector<size_t> number(tensors.size());
    contents.tensors.clear();
    for (size_t t = 0; t < tensors.size(); ++t) {
      const bool holds =
          std::any_of(held[rank].begin(), held[rank].end(),
                      [&](const auto& h) { return h.first == t; });
      number[t] = contents.tensors.size();
      if (holds || Volume(tensors[t].layout.sizes()) == 0) {
        contents.tensors.push_back(all.tensors[t]);
      }
    }
    for (const PlaceInFile& place : plan.places) {
      DataFileShard& shard = contents.shards.emplace_back();
      static_cast<Box&>(shard) = boxes[place.shard];
      shard.tensor = number[held[rank][place.shard].first];
    }
    SHERD_ASSIGN_OR_RETURN(std::string bytes, EncodeDataFileHeader(contents));
    const int64_t data_begin = static_cast<int64_t>(bytes.size());
    std::vector<uint32_t> crcs = {internal::CrcOf(bytes)};
    for (const PlaceInFile& place : plan.places) {
      const auto& [t, i] = held[rank][place.shard];
      const std::string& own = data[place.shard];
      for (size_t at = 0; at < own.size(); at += options.chunk_bytes) {
        crcs.push_back(internal::CrcOf(
            absl::string_view(own).substr(at, options.chunk_bytes)));
      }
      BoxFingerprint fingerprint(tensors[t].layout.sizes(), boxes[place.shard],
                                 SizeOf(tensors[t].dtype));
      fingerprint.Add(absl::MakeSpan(
          reinterpret_cast<const std::byte*>(own.data()), own.size()));
      fingerprints[t] ^= fingerprint.Finish();
      places[t][i].extents = {
          {static_cast<int32_t>(manifest.files.size()), place.data_offset,
           static_cast<int64_t>(own.size()), place.first_chunk}};
      bytes += own;
    }
    const std::string table = EncodeCrcTable(crcs);
    bytes += table;
    ManifestFile& file = manifest.files.emplace_back();
    file.name = absl::StrFormat("shard-%05d-of-%05d.%s.safetensors", rank,
                                options.ranks, options.save_id);
    file.size = static_cast<int64_t>(bytes.size());
    file.data_begin = data_begin;
    file.chunks = plan.chunks;
    file.crc32c = internal::CrcOf(table);
    SHERD_RETURN_IF_ERROR(WriteFileAtomically(
        files, JoinPath(path, file.name),
        absl::MakeSpan(reinterpret_cast<const std::byte*>(bytes.data()),
                       bytes.size())));
  }
  for (size_t t = 0; t < tensors.size(); ++t) {
    ManifestTensor tensor = {.name = tensors[t].name,
                             .dtype = tensors[t].dtype,
                             .layout = tensors[t].layout};
    tensor.fingerprint = Crc32cFromLinear(
        fingerprints[t], static_cast<uint64_t>(tensor.bytes()));
    for (SavedShardPlace& place : places[t]) {
      AppendPlace(std::move(place), options.chunk_bytes, tensor.runs);
    }
    manifest.tensors.push_back(std::move(tensor));
  }
  if (!options.manifest) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(ValidateManifest(manifest));
  SHERD_ASSIGN_OR_RETURN(const std::string bytes, EncodeManifest(manifest));
  return WriteFileAtomically(
      files, JoinPath(path, kManifestFileName),
      absl::MakeSpan(reinterpret_cast<const std::byte*>(bytes.data()),
                     bytes.size()));
}

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_WRITE_CHECKPOINT_H_
