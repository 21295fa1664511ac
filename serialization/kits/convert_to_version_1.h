#ifndef SHERD_SERIALIZATION_KITS_CONVERT_TO_VERSION_1_H_
#define SHERD_SERIALIZATION_KITS_CONVERT_TO_VERSION_1_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/manifest/manifest_reader.h"

namespace sherd {

// For tests: turns a checkpoint of version 2 into one of version 1 that loads
// alike. The CRCs go from the end of each data file into the manifest; headers
// stay as they are, and describe a tensor too many.
inline absl::Status ConvertToVersion1(const std::string& path) {
  FileSystem& files = FileSystem::Posix();
  SHERD_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(files, path));
  manifest.version = 1;
  // By file.
  std::vector<std::vector<uint32_t>> crcs;
  for (ManifestFile& info : manifest.files) {
    const std::string name = JoinPath(path, info.name);
    SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                           files.OpenForRead(name));
    SHERD_ASSIGN_OR_RETURN(crcs.emplace_back(), ReadCrcTable(*file, info));
    info.header_crc32c = crcs.back().front();
    info.size -= CrcTableBytes(info.chunks);
    info.chunks = 0;
    info.crc32c = 0;
    std::filesystem::resize_file(name, static_cast<uintmax_t>(info.size));
  }
  for (ManifestTensor& tensor : manifest.tensors) {
    tensor.fingerprint = std::nullopt;
    SavedRuns runs;
    for (int64_t i = 0; i < tensor.num_shards(); ++i) {
      SavedShardPlace place = tensor.PlaceOf(i, manifest.chunk_bytes);
      // Version 1 has them in the order of the shards.
      for (SavedExtent& extent : place.extents) {
        const int64_t chunks =
            (extent.bytes + manifest.chunk_bytes - 1) / manifest.chunk_bytes;
        const auto first =
            crcs[static_cast<size_t>(extent.file)].begin() + extent.first_chunk;
        extent.first_chunk = static_cast<int64_t>(manifest.chunk_crc32c.size());
        manifest.chunk_crc32c.insert(manifest.chunk_crc32c.end(), first,
                                     first + chunks);
      }
      AppendPlace(std::move(place), manifest.chunk_bytes, runs);
    }
    tensor.runs = std::move(runs);
  }
  SHERD_ASSIGN_OR_RETURN(const std::string bytes, EncodeManifest(manifest));
  return WriteFileAtomically(
      files, JoinPath(path, kManifestFileName),
      absl::MakeSpan(reinterpret_cast<const std::byte*>(bytes.data()),
                     bytes.size()));
}

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_CONVERT_TO_VERSION_1_H_
