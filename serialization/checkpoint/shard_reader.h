#ifndef SHERD_SERIALIZATION_CHECKPOINT_SHARD_READER_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SHARD_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/manifest/manifest_v1.h"

namespace sherd {

// A shard of a checkpoint, and its tensor.
struct SavedShard {
  const ManifestTensorV1* tensor = nullptr;
  const ManifestShardV1* shard = nullptr;
};

// Reads shards of one checkpoint. Not thread-safe.
class ShardReader {
 public:
  // Called after each operation on a file; its error is that of the call.
  using AfterRead = std::function<absl::Status()>;

  // `manifest` and `files` are borrowed.
  ShardReader(std::string directory, const ManifestV1& manifest,
              FileSystem& files, AfterRead after_read = nullptr)
      : directory_(std::move(directory)),
        manifest_(manifest),
        files_(files),
        after_read_(std::move(after_read)) {}

  // Opens a file by its index in the manifest, unless it is open, and checks
  // its size.
  //   kDataLoss  The file is missing, or its size differs from that in the
  //              manifest; the message names a tensor that is cut off, or the
  //              first. If the manifest was replaced since it was read, the
  //              checkpoint is not damaged.
  absl::Status Open(int32_t file);

  // The open file, valid until the next call.
  absl::StatusOr<File*> FileAt(int32_t index);

  // Reads the box at `offsets` in a shard, of the sizes of `destination`, into
  // `destination`, in host memory or on a device, and exactly its bytes. `sums`
  // has one entry per chunk of the shard and receives the CRCs of the bytes
  // read, which are not checked here.
  absl::Status ReadBox(const SavedShard& saved,
                       absl::Span<const int64_t> offsets, Tensor destination,
                       absl::Span<uint32_t> sums);

  // The same into host memory, reading whole chunks and checking each before it
  // is used.
  absl::Status ReadBoxChecked(const SavedShard& saved,
                              absl::Span<const int64_t> offsets,
                              Tensor destination);

  // Reads a whole shard and checks it, without keeping it.
  absl::Status Verify(const SavedShard& saved);

  // Checks that the chunks of a shard have the CRCs in the manifest.
  //   kDataLoss  A chunk differs; the message names file, tensor and offset.
  absl::Status Check(const SavedShard& saved,
                     absl::Span<const uint32_t> sums) const;
  absl::Status CheckChunk(const SavedShard& saved, int64_t chunk,
                          uint32_t sum) const;

  // Bytes read so far.
  int64_t bytes_read() const { return bytes_read_; }

 private:
  absl::Status Missing(int32_t file) const;
  absl::Status WrongSize(int32_t file, int64_t size) const;
  // "; it has tensor … at offset …": the tensor that a file of `size` bytes
  // lacks.
  std::string FirstLost(int32_t file, int64_t size) const;
  absl::Status Read(File& file, int64_t offset, absl::Span<std::byte> buffer);
  // Reads chunk number `chunk` into `buffer`, of its length, and checks it.
  absl::Status ReadChunk(const SavedShard& saved, int64_t chunk,
                         absl::Span<std::byte> buffer);
  // Copies [offset, offset + out.size()) of a shard, chunk by chunk.
  absl::Status ReadRangeChecked(const SavedShard& saved, int64_t offset,
                                absl::Span<std::byte> out);
  absl::Status WrongChunk(const SavedShard& saved, int64_t chunk,
                          uint32_t actual) const;
  int64_t ChunkLength(const SavedShard& saved, int64_t chunk) const;

  const std::string directory_;
  const ManifestV1& manifest_;
  FileSystem& files_;
  const AfterRead after_read_;
  // Open files by index in the manifest.
  std::map<int32_t, std::unique_ptr<File>> open_;
  std::vector<std::byte> staging_;
  // The chunk that was read last, for pieces that share one.
  std::vector<std::byte> chunk_data_;
  const ManifestShardV1* chunk_shard_ = nullptr;
  int64_t chunk_index_ = -1;
  int64_t bytes_read_ = 0;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SHARD_READER_H_
