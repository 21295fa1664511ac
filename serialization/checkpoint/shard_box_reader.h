#ifndef SHERD_SERIALIZATION_CHECKPOINT_SHARD_BOX_READER_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SHARD_BOX_READER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint/extent_reader.h"
#include "sherd/serialization/manifest/manifest.h"

namespace sherd {

// Reads boxes of the shards of a checkpoint by whole chunks, each of which is
// checked before it is used. Not thread-safe.
class ShardBoxReader {
 public:
  // `reader` is borrowed.
  explicit ShardBoxReader(ExtentReader& reader) : reader_(reader) {}

  // Reads the box at `offsets` in shard number `shard` of a tensor, of the
  // sizes of `destination`; on a device it is complete on return.
  //   kDataLoss  A chunk is damaged; the message names file, tensor and offset.
  absl::Status ReadBox(const ManifestTensor& tensor, int64_t shard,
                       absl::Span<const int64_t> offsets, Tensor destination);

 private:
  // The bytes of the shard from `offset` on.
  absl::Status ReadRange(const ManifestTensor& tensor,
                         const SavedExtents& extents, int64_t offset,
                         absl::Span<std::byte> out);
  // The same of an extent.
  absl::Status ReadInExtent(const ManifestTensor& tensor,
                            const SavedExtent& extent, int64_t offset,
                            absl::Span<std::byte> out);
  absl::Status ReadChunk(const ManifestTensor& tensor,
                         const SavedExtent& extent, int64_t chunk,
                         absl::Span<std::byte> buffer);

  ExtentReader& reader_;
  std::vector<std::byte> staging_;
  // The chunk that was read last, for pieces that share one.
  std::vector<std::byte> chunk_data_;
  SavedExtent chunk_extent_ = {.file = -1};
  int64_t chunk_index_ = -1;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SHARD_BOX_READER_H_
