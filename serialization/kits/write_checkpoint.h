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
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/safetensors/tensor_fingerprint.h"

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

// One checkpoint while it is written.
class CheckpointWriter {
 public:
  CheckpointWriter(const std::string& path, std::vector<TensorToWrite> tensors,
                   const WriteCheckpointOptions& options)
      : path_(path),
        tensors_(std::move(tensors)),
        options_(options),
        places_(tensors_.size()),
        fingerprints_(tensors_.size()),
        held_(static_cast<size_t>(options.ranks)) {
    std::sort(tensors_.begin(), tensors_.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    for (size_t t = 0; t < tensors_.size(); ++t) {
      for (int64_t i = 0; i < tensors_[t].layout.size(); ++i) {
        const int rank = static_cast<int>(i % options.ranks);
        places_[t].push_back({.placement = rank});
        if (tensors_[t].layout.VolumeAt(i) == 0) continue;
        held_[rank].push_back({t, i, tensors_[t].layout.BoxAt(i)});
        held_[rank].back().data =
            BytesOfShard(tensors_[t], held_[rank].back().box);
      }
    }
  }

  absl::Status Run() {
    SHERD_RETURN_IF_ERROR(FileSystem::Posix().CreateDirectories(path_));
    manifest_.writer = "sherd 0.1.0";
    manifest_.save_id = options_.save_id;
    manifest_.world_size = options_.ranks;
    manifest_.chunk_bytes = options_.chunk_bytes;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      manifest_.placements.push_back(absl::StrCat("rank:", rank, "/cpu"));
      if (!held_[rank].empty()) SHERD_RETURN_IF_ERROR(WriteFile(rank));
    }
    return options_.manifest ? WriteManifest() : absl::OkStatus();
  }

 private:
  struct Held {
    size_t tensor;
    int64_t shard;
    Box box;
    std::string data;
  };

  absl::Status Write(const std::string& name, absl::string_view bytes) {
    return WriteFileAtomically(
        FileSystem::Posix(), JoinPath(path_, name),
        absl::MakeSpan(reinterpret_cast<const std::byte*>(bytes.data()),
                       bytes.size()));
  }

  // In the order of the file.
  DataFileContents ContentsOf(int rank) const {
    DataFileContents contents;
    contents.save_id = options_.save_id;
    contents.world_size = options_.ranks;
    contents.rank = rank;
    contents.files = static_cast<int32_t>(
        std::count_if(held_.begin(), held_.end(),
                      [](const auto& list) { return !list.empty(); }));
    contents.chunk_bytes = options_.chunk_bytes;
    contents.placements = {manifest_.placements.back()};
    // A rank describes the tensors that it holds, and of those without
    // elements.
    std::vector<size_t> number(tensors_.size());
    for (size_t t = 0; t < tensors_.size(); ++t) {
      const TensorToWrite& tensor = tensors_[t];
      number[t] = contents.tensors.size();
      if (Volume(tensor.layout.sizes()) == 0 ||
          std::any_of(held_[rank].begin(), held_[rank].end(),
                      [&](const Held& held) { return held.tensor == t; })) {
        contents.tensors.push_back(
            {tensor.name, tensor.dtype, tensor.layout.sizes()});
      }
    }
    for (const Held& held : held_[rank]) {
      DataFileShard& shard = contents.shards.emplace_back();
      static_cast<Box&>(shard) = held.box;
      shard.tensor = number[held.tensor];
    }
    return contents;
  }

  absl::Status WriteFile(int rank) {
    // Those of equal length stay by name and number of the shard.
    std::stable_sort(held_[rank].begin(), held_[rank].end(),
                     [](const Held& a, const Held& b) {
                       const auto order = [](const Held& held) {
                         const auto n = static_cast<int64_t>(held.data.size());
                         return std::pair(-AlignmentClass(n), -n);
                       };
                       return order(a) < order(b);
                     });
    SHERD_ASSIGN_OR_RETURN(std::string bytes,
                           EncodeDataFileHeader(ContentsOf(rank)));
    ManifestFile file = {
        .name = absl::StrFormat("shard-%05d-of-%05d.%s.safetensors", rank,
                                options_.ranks, options_.save_id),
        .data_begin = static_cast<int64_t>(bytes.size())};
    std::vector<uint32_t> crcs = {CrcOf(bytes)};
    for (const Held& held : held_[rank]) {
      const absl::string_view data = held.data;
      const int64_t offset =
          static_cast<int64_t>(bytes.size()) - file.data_begin;
      const int64_t first_chunk = static_cast<int64_t>(crcs.size());
      for (size_t at = 0; at < data.size(); at += options_.chunk_bytes) {
        crcs.push_back(CrcOf(data.substr(at, options_.chunk_bytes)));
      }
      const TensorToWrite& tensor = tensors_[held.tensor];
      BoxFingerprint fingerprint(tensor.layout.sizes(), held.box,
                                 SizeOf(tensor.dtype));
      fingerprint.Add(absl::MakeSpan(
          reinterpret_cast<const std::byte*>(data.data()), data.size()));
      fingerprints_[held.tensor] ^= fingerprint.Finish();
      places_[held.tensor][held.shard].extents = {
          {static_cast<int32_t>(manifest_.files.size()), offset,
           static_cast<int64_t>(data.size()), first_chunk}};
      bytes += held.data;
    }
    file.chunks = static_cast<int64_t>(crcs.size()) - 1;
    const std::string table = EncodeCrcTable(crcs);
    bytes += table;
    file.size = static_cast<int64_t>(bytes.size());
    file.crc32c = CrcOf(table);
    manifest_.files.push_back(file);
    return Write(file.name, bytes);
  }

  absl::Status WriteManifest() {
    for (size_t t = 0; t < tensors_.size(); ++t) {
      ManifestTensor tensor = {.name = tensors_[t].name,
                               .dtype = tensors_[t].dtype,
                               .layout = tensors_[t].layout};
      tensor.fingerprint = Crc32cFromLinear(
          fingerprints_[t], static_cast<uint64_t>(tensor.bytes()));
      for (SavedShardPlace& place : places_[t]) {
        AppendPlace(std::move(place), options_.chunk_bytes, tensor.runs);
      }
      manifest_.tensors.push_back(std::move(tensor));
    }
    SHERD_RETURN_IF_ERROR(ValidateManifest(manifest_));
    SHERD_ASSIGN_OR_RETURN(const std::string bytes, EncodeManifest(manifest_));
    return Write(kManifestFileName, bytes);
  }

  const std::string path_;
  std::vector<TensorToWrite> tensors_;
  const WriteCheckpointOptions options_;
  Manifest manifest_;
  // By tensor.
  std::vector<std::vector<SavedShardPlace>> places_;
  std::vector<uint32_t> fingerprints_;
  // By rank.
  std::vector<std::vector<Held>> held_;
};

}  // namespace internal

// Writes a checkpoint of version 2 as a save does, by one process.
inline absl::Status WriteCheckpoint(const std::string& path,
                                    std::vector<TensorToWrite> tensors,
                                    const WriteCheckpointOptions& options) {
  return internal::CheckpointWriter(path, std::move(tensors), options).Run();
}

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_WRITE_CHECKPOINT_H_
