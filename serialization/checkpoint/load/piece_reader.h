#ifndef SHERD_SERIALIZATION_CHECKPOINT_LOAD_PIECE_READER_H_
#define SHERD_SERIALIZATION_CHECKPOINT_LOAD_PIECE_READER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint/extent_reader.h"
#include "sherd/serialization/checkpoint/load/chunk_ledger.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/safetensors/box_pieces.h"
#include "sherd/serialization/safetensors/device_blocks.h"

namespace sherd {

// A shard of a checkpoint.
struct ShardSource {
  // The tensor's number in the ledger, and the shard's in the layout.
  int32_t tensor = 0;
  int64_t shard = 0;
  DType dtype = kUInt8;
  Dims sizes;
  SavedExtents extents;
};

// Reads boxes of shards and enters what it reads in a ledger. Not thread-safe.
//
// Merging. Long pieces that are contiguous at the destination are read straight
// into it; those of 1 MiB and more by File::ReadMany, several parts at once
// where the page cache does not have them. Those of up to 64 KiB wait as long
// as each begins in the file where the one before ends, and are read together,
// up to 256 KiB at once. Short and scattered ones wait in a list until a
// long one comes or the next one lies too far away in the file; then all are
// read at once, through 256 KiB, of any number of shards and tensors. Too far
// is: a page of the file would be read that is not needed, and such pages were
// more than a twentieth. So ask in the order of the file.
//
// Devices. What goes to a device is read into pinned memory as above, also that
// of many tensors together, and copied when 4 MiB of it are there.
//
// Conversion. Elements may be wanted as another dtype than that of the shard;
// their values are converted as Tensor::To does, as soon as they are read, in
// blocks of at most 256 KiB. What they are checked for is what is in the file.
class PieceReader {
 public:
  // Both are borrowed.
  PieceReader(ExtentReader& reader, ChunkLedger& ledger)
      : reader_(reader),
        ledger_(ledger),
        device_([this] { return FlushReads(); }) {}
  PieceReader(const PieceReader&) = delete;
  PieceReader& operator=(const PieceReader&) = delete;

  // Reads the box at `offsets` in a shard, of the sizes of `destination`, into
  // `destination`, in host memory or on a device, as elements of its dtype. It
  // is complete after Flush; its storage must live until then.
  absl::Status ReadBox(const ShardSource& source,
                       absl::Span<const int64_t> offsets,
                       const Tensor& destination);

  // Reads consecutive elements of a shard as a dtype, in which `offset` is the
  // number of bytes before them and `buffer` has their length. Complete after
  // Flush.
  absl::Status ReadContiguous(const ShardSource& source, int64_t offset,
                              DType dtype, absl::Span<std::byte> buffer);

  absl::Status Flush();

 private:
  // A piece that waits.
  struct Waiting {
    ExtentOfShard place;
    // In the extent; until that is found, in the shard.
    int64_t offset;
    int64_t bytes;
    std::byte* data;
    // In the file and at the destination.
    DType from;
    DType to;
    // If it is not contiguous at the destination.
    Dims sizes;
    Dims strides;
  };

  // Where one is that is read straight into place.
  struct DirectPlace {
    ExtentOfShard place;
    // In the extent.
    int64_t offset;
  };

  // Reads bytes of a shard from `offset` in it on, at once.
  absl::Status ReadRun(const ShardSource& source, int64_t offset,
                       absl::Span<std::byte> buffer);
  absl::Status ReadInExtent(const ExtentOfShard& place, int64_t offset,
                            absl::Span<std::byte> buffer);
  absl::Status ReadPiece(const ShardSource& source, const BoxPiece& piece,
                         DType dtype);
  // One that is read straight into place, with its neighbours.
  absl::Status ReadDirect(const ShardSource& source, const BoxPiece& piece);
  absl::Status FlushDirect();
  // One that goes through staging, where it has room.
  absl::Status ReadShort(const ShardSource& source, const BoxPiece& piece,
                         DType dtype);
  // Whether all of a piece is in one extent of the shard, which `place` gets;
  // `offset` is in the shard, and then in the extent.
  bool FindExtent(const ShardSource& source, int64_t bytes,
                  ExtentOfShard& place, int64_t& offset) const;
  absl::Status FlushStaged();
  // Completes what was asked for in host memory.
  absl::Status FlushReads();
  bool Joins(const SavedExtent& extent, int64_t offset, int64_t bytes) const;
  void Scatter(const Waiting& piece, const std::byte* from);
  // Returns the elements of `piece` as those of its destination.
  const std::byte* Convert(const Waiting& piece, const std::byte* from);

  ExtentReader& reader_;
  ChunkLedger& ledger_;
  ExtentReader::LastFile last_file_;
  std::vector<FileRead> blocks_;
  // Pieces that follow one another in the data of a file, and their places.
  std::vector<FileRead> direct_;
  std::vector<DirectPlace> direct_places_;
  int64_t direct_bytes_ = 0;
  std::vector<Waiting> waiting_;
  // What the waiting pieces span of a file's data, and the pages in it that
  // none of them needs.
  int32_t file_ = 0;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  int64_t needless_pages_ = 0;
  std::vector<std::byte> staging_;
  // Elements before and after they are converted.
  std::vector<std::byte> saved_;
  std::vector<std::byte> converted_;
  DeviceWriter device_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_LOAD_PIECE_READER_H_
