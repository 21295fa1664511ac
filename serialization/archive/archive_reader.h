#ifndef SHERD_SERIALIZATION_ARCHIVE_ARCHIVE_READER_H_
#define SHERD_SERIALIZATION_ARCHIVE_ARCHIVE_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/archive.h"
#include "sherd/serialization/archive/archive_layout.h"
#include "sherd/serialization/archive/saved_state.h"

namespace sherd::internal {

// An archive whose tree was read and checked. Thread-safe.
class ArchiveReader {
 public:
  // Errors as Archive::Open, but those of ReadTable.
  static absl::StatusOr<ArchiveReader> Open(
      std::shared_ptr<ArchiveSource> source);

  const SavedState& state() const { return state_; }

  // Apart, since the tree says with whom an error is shared. Call it before
  // all that follows.
  //   kDataLoss  The archive has another size than its tree says, or the table
  //              is damaged.
  absl::Status ReadTable();

  const ArchiveLayout& layout() const { return layout_; }

  // Reads a block into `bytes`, a tensor of as many bytes, on any device, and
  // checks it and the zeros before it.
  //   kDataLoss  It is damaged; the message has the offset.
  absl::Status ReadBlock(size_t block, Tensor bytes) const;
  // The same, into nothing.
  absl::Status VerifyBlock(size_t block) const;

  // All of the file at `path`, mapped, if it is still this archive.
  //   kDataLoss  It was replaced.
  absl::StatusOr<std::shared_ptr<Storage>> Map(const std::string& path) const;

 private:
  explicit ArchiveReader(std::shared_ptr<ArchiveSource> source)
      : source_(std::move(source)) {}

  // Up to and including the CRC of the message.
  absl::Status ReadFront();
  absl::Status CheckPadding(size_t block) const;
  absl::Status ReadDeviceBlock(size_t block, const Tensor& bytes) const;
  // Calls `place` for memory for each chunk, which is then there, checked,
  // until the next call.
  absl::Status ReadChunks(
      size_t block,
      absl::FunctionRef<absl::Span<std::byte>(int64_t offset, int64_t bytes)>
          place) const;
  absl::Status CheckChunk(size_t block, int64_t chunk,
                          absl::Span<const std::byte> bytes) const;

  std::shared_ptr<ArchiveSource> source_;
  int64_t size_ = 0;
  int64_t front_bytes_ = 0;
  uint32_t front_crc_ = 0;
  SavedState state_;
  ArchiveLayout layout_;
  // The table of CRCs, and the CRC of it.
  std::string table_;
};

}  // namespace sherd::internal

#endif  // SHERD_SERIALIZATION_ARCHIVE_ARCHIVE_READER_H_
