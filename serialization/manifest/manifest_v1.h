#ifndef SHERD_SERIALIZATION_MANIFEST_MANIFEST_V1_H_
#define SHERD_SERIALIZATION_MANIFEST_MANIFEST_V1_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/manifest/manifest.h"

namespace sherd {

// The contents of a manifest of version 1: a list of shards per tensor.

// A data file, a safetensors file in the directory of the manifest.
struct ManifestFileV1 {
  // Without a directory; letters, digits, "-", "_" and ".", not beginning with
  // ".".
  std::string name;
  // Bytes in all; the data begins at `data_begin`, after the header.
  int64_t size = 0;
  int64_t data_begin = 0;
  // Crc32c of the bytes [0, data_begin).
  uint32_t header_crc32c = 0;

  friend bool operator==(const ManifestFileV1&,
                         const ManifestFileV1&) = default;
};

// A box of a tensor and where its bytes are, row-major.
struct ManifestShardV1 : Box {
  // The rank that held it: an index into ManifestV1::placements.
  int32_t placement = 0;
  // Index into ManifestV1::files; -1 for a shard without elements, which is
  // stored nowhere.
  int32_t file = -1;
  // First byte, counted from the start of the file.
  int64_t file_offset = 0;
  // Index of its first chunk in ManifestV1::chunk_crc32c. The chunks of a shard
  // are chunk_bytes long, the last one may be shorter.
  int64_t first_chunk = 0;

  friend bool operator==(const ManifestShardV1&,
                         const ManifestShardV1&) = default;
};

struct ManifestTensorV1 {
  std::string name;
  DType dtype = kFloat32;
  Dims sizes;
  bool requires_grad = false;
  SavedLayoutKind layout = SavedLayoutKind::kEnumerable;
  // The dimension that was cut, for kChunk.
  int32_t chunk_dim = 0;
  // Together they are the whole tensor, without overlaps.
  std::vector<ManifestShardV1> shards;

  friend bool operator==(const ManifestTensorV1&,
                         const ManifestTensorV1&) = default;
};

struct ManifestV1 {
  // The program that wrote it ("sherd 0.1.0"), for display.
  std::string writer;
  // Unique per save; part of the names of the data files.
  std::string save_id;
  int32_t world_size = 1;
  // Length of the chunks, each of which has a CRC.
  int64_t chunk_bytes = 256 << 10;
  std::vector<ManifestFileV1> files;
  // "rank:0/cpu", …
  std::vector<std::string> placements;
  // By name.
  std::vector<ManifestTensorV1> tensors;
  std::vector<uint32_t> chunk_crc32c;

  // Bytes and number of chunks of a shard.
  int64_t ShardBytes(const ManifestTensorV1& tensor,
                     const ManifestShardV1& shard) const;
  int64_t NumChunks(const ManifestTensorV1& tensor,
                    const ManifestShardV1& shard) const;

  friend bool operator==(const ManifestV1&, const ManifestV1&) = default;
};

// The same with layouts and runs, and the reverse.
Manifest FromV1(ManifestV1 manifest);
ManifestV1 ToV1(const Manifest& manifest);

// Checks that `manifest` is consistent: names, ranges, counts, shards that
// cover their tensor exactly once, shards that fill the data of their file
// exactly once.
//   kDataLoss  It is not; the message names file, tensor and offset.
absl::Status ValidateManifestV1(const ManifestV1& manifest);

// The part of ValidateManifestV1 that must hold before ShardBytes and NumChunks
// may be called: positive chunks, and shards inside their tensors.
absl::Status ValidateShapesV1(const ManifestV1& manifest);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_MANIFEST_V1_H_
