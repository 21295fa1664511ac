#ifndef SHERD_SERIALIZATION_MANIFEST_DATA_FILE_H_
#define SHERD_SERIALIZATION_MANIFEST_DATA_FILE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/safetensors/safetensors_header.h"

namespace sherd {

// A data file of version 2: a safetensors file that proves itself. Its last
// tensor has the CRCs of its header and of the chunks of all others, and its
// metadata what a manifest has of it; see FORMAT.md.

// The name that no tensor of a checkpoint may have, and the key of the CRCs.
inline constexpr char kCrcTableName[] = "sherd.crc32c";
inline constexpr char kCrcTableKey[] = "sherd.crc32c@";

// The bytes of the CRCs of `chunks` chunks, with that of the header.
inline int64_t CrcTableBytes(int64_t chunks) { return 4 * (1 + chunks); }

// What a data file says about a tensor of which it has shards. See
// ManifestTensor.
struct DataFileTensor {
  std::string name;
  DType dtype = kFloat32;
  Dims sizes;
  bool requires_grad = false;
  SavedLayoutKind kind = SavedLayoutKind::kEnumerable;
  int32_t chunk_dim = 0;

  friend bool operator==(const DataFileTensor&,
                         const DataFileTensor&) = default;
};

// A shard that a data file holds, or consecutive bytes of one.
struct DataFileShard : Box {
  // Positions in DataFileContents::tensors and placements.
  size_t tensor = 0;
  size_t placement = 0;
  // If not 0: only so many of its bytes, row-major, from `part_begin` on. The
  // shard is one of DataFileContents::split.
  int64_t part_begin = 0;
  int64_t part_bytes = 0;

  friend bool operator==(const DataFileShard&, const DataFileShard&) = default;
};

// A shard of the rank that lies in files of earlier saves, wholly or in part.
struct SplitShard : Box {
  // As in DataFileShard.
  size_t tensor = 0;
  size_t placement = 0;
  // The file is 0 for the data file itself, otherwise 1 + index in
  // DataFileContents::earlier_files. Two of the data file never follow one
  // another; each is one of its shards.
  SavedExtents extents;

  friend bool operator==(const SplitShard&, const SplitShard&) = default;
};

// All that a data file says about itself and its save.
struct DataFileContents {
  std::string save_id;
  // Of the series of which the save is a step; nullopt: of none.
  std::optional<int64_t> step;
  int32_t world_size = 1;
  // The rank that wrote it, and how many wrote a file in this save.
  int32_t rank = 0;
  int32_t files = 1;
  int64_t chunk_bytes = kChunkBytes;
  // By name: those of the shards, split ones too, and all of the save without
  // elements.
  std::vector<DataFileTensor> tensors;
  // "rank:0/cpu", ….
  std::vector<std::string> placements;
  // In the order of the file.
  std::vector<DataFileShard> shards;
  // Of an incremental save, by name and offsets.
  std::vector<SplitShard> split;
  std::vector<std::string> earlier_files;

  friend bool operator==(const DataFileContents&,
                         const DataFileContents&) = default;
};

// The key of bytes of a shard from `begin` on: "name@2,0+262144".
std::string PartKey(absl::string_view tensor_name,
                    absl::Span<const int64_t> offsets, int64_t begin);

// The bytes before the data: its length is the data_begin of the file.
//   kInvalidArgument    A name is not allowed in a file, or there are more
//                       than kMaxFileChunks.
//   kResourceExhausted  As EncodeSafetensorsHeader.
absl::StatusOr<std::string> EncodeDataFileHeader(
    const DataFileContents& contents);

// The same from the parsed header of a file, which is untrusted. Errors begin
// with `what`.
//   kDataLoss       Not a data file of version 2, or its metadata does not fit
//                   its tensors.
//   kUnimplemented  A later version.
absl::StatusOr<DataFileContents> ParseDataFileHeader(
    const SafetensorsHeader& header, absl::string_view what);

// The last tensor of a file: number 0 is the CRC of the header, the others
// those of the chunks in the order of the file.
std::string EncodeCrcTable(absl::Span<const uint32_t> crcs);

// Reads the CRCs of a file, whose size has been compared with that in the
// manifest.
//   kDataLoss  They do not have the CRC that the manifest has.
absl::StatusOr<std::vector<uint32_t>> ReadCrcTable(
    File& file, const ManifestFile& expected);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_DATA_FILE_H_
