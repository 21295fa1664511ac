#ifndef SHERD_SERIALIZATION_MANIFEST_MANIFEST_H_
#define SHERD_SERIALIZATION_MANIFEST_MANIFEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/manifest/saved_layout.h"

namespace sherd {

// The contents of a checkpoint and where they are stored: the file
// manifest.sherd. For the encoding see manifest_codec.h and FORMAT.md.

inline constexpr char kManifestFileName[] = "manifest.sherd";

// Limits of validity, far above useful values.
inline constexpr int64_t kMaxTensorNameBytes = 32 << 10;
inline constexpr int64_t kMaxChunkBytes = int64_t{64} << 20;
// Chunks of a data file of version 2: a reader holds the CRCs of all.
inline constexpr int64_t kMaxFileChunks = int64_t{1} << 26;
// Length of the chunks in the files that are written.
inline constexpr int64_t kChunkBytes = 256 << 10;

// A data file, a safetensors file in the directory of the manifest.
struct ManifestFile {
  // Without a directory; letters, digits, "-", "_" and ".", not beginning with
  // ".".
  std::string name;
  // Bytes in all; the data begins at `data_begin`, after the header.
  int64_t size = 0;
  int64_t data_begin = 0;
  // Version 2: the chunks of all tensors, whose CRCs are in the file itself,
  // and Crc32c of these, with that of the header: see data_file.h.
  int64_t chunks = 0;
  uint32_t crc32c = 0;
  // Version 1: Crc32c of the bytes [0, data_begin).
  uint32_t header_crc32c = 0;

  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

// Consecutive bytes of a shard in a file. Each chunk is chunk_bytes long,
// counted from the extent's own first byte; the last one may be shorter.
struct SavedExtent {
  // Index into the files of the manifest.
  int32_t file = 0;
  // First byte, counted from the data_begin of the file: so files whose headers
  // differ in length are alike.
  int64_t data_offset = 0;
  int64_t bytes = 0;
  // Version 2: the first chunk's position among the CRCs of the file, of which
  // number 0 is that of the header. Version 1: in chunk_crc32c of the manifest.
  int64_t first_chunk = 0;

  friend bool operator==(const SavedExtent&, const SavedExtent&) = default;
};

using SavedExtents = absl::InlinedVector<SavedExtent, 1>;

// Where a shard is. Its extents together are its bytes, row-major; there are
// none if it has no elements.
struct SavedShardPlace {
  // The rank that held it: an index into the placements of the manifest.
  int32_t placement = 0;
  SavedExtents extents;

  friend bool operator==(const SavedShardPlace&,
                         const SavedShardPlace&) = default;
};

// Where consecutive shards of a tensor are: shard number first + k has the
// placement `placement + k * placement_step`, and its bytes, as many as the
// layout says, begin
//   nowhere                                    if there are no extents;
//   in file `file + k * file_step`, at the offset and chunk of the first
//                                              unless `advances`;
//   in the same file, k times the bytes and chunks of the first behind it
//                                              if `advances`.
struct SavedRun {
  // Numbers of shards: [first, first + shards).
  int64_t first = 0;
  int64_t shards = 1;
  int32_t placement = 0;
  // Each 0 or 1; file_step is 0 if there are no extents or `advances`.
  int32_t placement_step = 0;
  int32_t file_step = 0;
  bool advances = false;
  // Of the first shard. More than one only if it is alone.
  SavedExtents extents;

  friend bool operator==(const SavedRun&, const SavedRun&) = default;
};

// Most tensors are one run.
using SavedRuns = absl::InlinedVector<SavedRun, 1>;

// How the tensor was cut when it was saved; for display only.
enum class SavedLayoutKind : int32_t { kEnumerable = 0, kChunk = 1 };

struct ManifestTensor {
  std::string name;
  DType dtype = kFloat32;
  bool requires_grad = false;
  SavedLayoutKind kind = SavedLayoutKind::kEnumerable;
  // The dimension that was cut, for kChunk.
  int32_t chunk_dim = 0;
  // Crc32c of all bytes of the tensor, row-major, whatever its layout is;
  // nullopt in version 1.
  std::optional<uint32_t> fingerprint;
  SavedLayout layout;
  // Together as many shards as the layout has boxes, in that order.
  SavedRuns runs;

  const Dims& sizes() const { return layout.sizes(); }
  int64_t num_shards() const { return layout.size(); }
  // Of the whole tensor, and of one shard.
  int64_t bytes() const;
  int64_t ShardBytes(int64_t shard) const;
  // Of all shards.
  int64_t num_extents() const;

  // Where shard number `shard` is. O(log runs).
  SavedShardPlace PlaceOf(int64_t shard, int64_t chunk_bytes) const;

  friend bool operator==(const ManifestTensor&,
                         const ManifestTensor&) = default;
};

// Appends the place of the next shard, which has `place.extents` of its bytes,
// to the runs of a tensor: continues the last run if it can.
void AppendPlace(SavedShardPlace place, int64_t chunk_bytes, SavedRuns& runs);

// What describes a checkpoint as a whole.
struct ManifestSummary {
  // Of the encoding: 1 or 2.
  int32_t version = 2;
  // The program that wrote it ("sherd 0.1.0"), for display.
  std::string writer;
  // Unique per save; part of the names of the data files.
  std::string save_id;
  int32_t world_size = 1;
  // Length of the chunks, each of which has a CRC.
  int64_t chunk_bytes = kChunkBytes;

  friend bool operator==(const ManifestSummary&,
                         const ManifestSummary&) = default;
};

struct Manifest : ManifestSummary {
  std::vector<ManifestFile> files;
  // "rank:0/cpu", …
  std::vector<std::string> placements;
  // By name.
  std::vector<ManifestTensor> tensors;
  // Of version 1; in version 2 the files have them.
  std::vector<uint32_t> chunk_crc32c;

  // The tensor of that name.
  //   kInvalidArgument  No tensor has that name; the message lists some that
  //                     exist.
  absl::StatusOr<const ManifestTensor*> Find(absl::string_view name) const;

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// The number of chunks of `bytes` consecutive bytes.
inline int64_t NumChunks(int64_t bytes, int64_t chunk_bytes) {
  return bytes / chunk_bytes + (bytes % chunk_bytes != 0 ? 1 : 0);
}

// Whether an extent of version 2 is inside the data of its file, and its chunks
// are among those of the file.
//   kDataLoss  It is not.
absl::Status CheckExtent(const SavedExtent& extent, const ManifestFile& file,
                         int64_t chunk_bytes);

// The key of a shard in its data file: "name@2,0" for the box at (2, 0),
// "name@" for a tensor of rank 0.
std::string ShardKey(absl::string_view tensor_name,
                     absl::Span<const int64_t> offsets);

// That there is no tensor `name` among `count`, of which the first few are
// `some`.
absl::Status NoSuchTensor(absl::string_view name, int64_t count,
                          absl::Span<const std::string> some);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_MANIFEST_H_
