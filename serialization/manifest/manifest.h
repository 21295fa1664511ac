#ifndef SHERD_SERIALIZATION_MANIFEST_MANIFEST_H_
#define SHERD_SERIALIZATION_MANIFEST_MANIFEST_H_

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

namespace sherd {

// The contents of a checkpoint and where they are stored: the file
// manifest.sherd. For the encoding see manifest_codec.h and FORMAT.md.

inline constexpr char kManifestFileName[] = "manifest.sherd";

// Limits of validity, far above useful values.
inline constexpr int64_t kMaxTensorNameBytes = 32 << 10;
inline constexpr int64_t kMaxChunkBytes = int64_t{64} << 20;

// A data file, a safetensors file in the directory of the manifest.
struct ManifestFile {
  // Without a directory; letters, digits, "-", "_" and ".", not beginning with
  // ".".
  std::string name;
  // Bytes in all; the data begins at `data_begin`, after the header.
  int64_t size = 0;
  int64_t data_begin = 0;
  // Crc32c of the bytes [0, data_begin).
  uint32_t header_crc32c = 0;

  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

// A box of a tensor and where its bytes are, row-major.
struct ManifestShard : Box {
  // The rank that held it: an index into Manifest::placements.
  int32_t placement = 0;
  // Index into Manifest::files; -1 for a shard without elements, which is
  // stored nowhere.
  int32_t file = -1;
  // First byte, counted from the start of the file.
  int64_t file_offset = 0;
  // Index of its first chunk in Manifest::chunk_crc32c. The chunks of a shard
  // are chunk_bytes long, the last one may be shorter.
  int64_t first_chunk = 0;

  friend bool operator==(const ManifestShard&, const ManifestShard&) = default;
};

// The tensor's layout when it was saved; for display only.
enum class SavedLayout : int32_t { kEnumerable = 0, kChunk = 1 };

struct ManifestTensor {
  std::string name;
  DType dtype = kFloat32;
  Dims sizes;
  bool requires_grad = false;
  SavedLayout layout = SavedLayout::kEnumerable;
  // The dimension that was cut, for kChunk.
  int32_t chunk_dim = 0;
  // Together they are the whole tensor, without overlaps.
  std::vector<ManifestShard> shards;

  friend bool operator==(const ManifestTensor&,
                         const ManifestTensor&) = default;
};

struct Manifest {
  // The program that wrote it ("sherd 0.1.0"), for display.
  std::string writer;
  // Unique per save; part of the names of the data files.
  std::string save_id;
  int32_t world_size = 1;
  // Length of the chunks, each of which has a CRC.
  int64_t chunk_bytes = 256 << 10;
  std::vector<ManifestFile> files;
  // "rank:0/cpu", …
  std::vector<std::string> placements;
  // By name.
  std::vector<ManifestTensor> tensors;
  std::vector<uint32_t> chunk_crc32c;

  // Bytes and number of chunks of a shard.
  int64_t ShardBytes(const ManifestTensor& tensor,
                     const ManifestShard& shard) const;
  int64_t NumChunks(const ManifestTensor& tensor,
                    const ManifestShard& shard) const;

  // The tensor of that name.
  //   kInvalidArgument  No tensor has that name; the message lists some that
  //                     exist.
  absl::StatusOr<const ManifestTensor*> Find(absl::string_view name) const;

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// The key of a shard in its data file: "name@2,0" for the box at (2, 0),
// "name@" for a tensor of rank 0.
std::string ShardKey(absl::string_view tensor_name,
                     absl::Span<const int64_t> offsets);

// Checks that `manifest` is consistent: names, ranges, counts, shards that
// cover their tensor exactly once, shards that fill the data of their file
// exactly once.
//   kDataLoss  It is not; the message names file, tensor and offset.
absl::Status ValidateManifest(const Manifest& manifest);

// The part of ValidateManifest that must hold before ShardBytes and NumChunks
// may be called: positive chunks, and shards inside their tensors.
absl::Status ValidateShapes(const Manifest& manifest);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_MANIFEST_H_
