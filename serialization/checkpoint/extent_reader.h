#ifndef SHERD_SERIALIZATION_CHECKPOINT_EXTENT_READER_H_
#define SHERD_SERIALIZATION_CHECKPOINT_EXTENT_READER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/manifest_reader.h"

namespace sherd {

// Reads the data files of one checkpoint, of either version, and knows the CRCs
// of their chunks.
//
// Threads. Safe. Reads run at the same time; a file is opened, and its CRCs are
// read, by one thread while the others wait.
class ExtentReader {
 public:
  // Called after each operation on a file, on the thread of that; its error is
  // that of the call.
  using AfterRead = std::function<absl::Status()>;

  // `files` is borrowed.
  ExtentReader(ManifestReader manifest, FileSystem& files,
               AfterRead after_read = nullptr)
      : manifest_(std::move(manifest)),
        files_(files),
        after_read_(std::move(after_read)) {}

  // Opens a file by its number in the manifest, unless that was done before,
  // and checks its size. That a file is missing, or has the wrong size or CRCs,
  // is found once: later calls return the same error.
  //   kDataLoss  The file is missing, or its size differs from that in the
  //              manifest; the message names a tensor that is cut off, or the
  //              first. If the manifest was replaced since it was read, the
  //              checkpoint is not damaged.
  absl::Status Open(int32_t file);
  // The same, and that the extent is inside the data and the chunks of its
  // file: only then is the manifest trusted about memory.
  absl::Status Open(const SavedExtent& extent);

  // Fills `buffer` from byte `offset` of the data of a file on.
  absl::Status Read(int32_t file, int64_t offset, absl::Span<std::byte> buffer);

  // A file that one thread has read, so that its next read of the file need not
  // look for it. The file stays open with this.
  struct LastFile {
    int32_t index = -1;
    std::shared_ptr<File> file;
    int64_t data_begin = 0;
  };
  // The same for one read after another.
  absl::Status Read(LastFile& last, int32_t file, int64_t offset,
                    absl::Span<std::byte> buffer);
  // As File::ReadMany, where offsets are in the data of the file.
  absl::Status ReadMany(LastFile& last, int32_t file,
                        absl::Span<FileRead> reads,
                        absl::FunctionRef<absl::Status(size_t)> done);

  // The CRC that chunk number `chunk` of an extent must have.
  //   kDataLoss  The CRCs in the file are damaged.
  absl::StatusOr<uint32_t> ChunkCrc32c(const SavedExtent& extent,
                                       int64_t chunk);
  int64_t ChunkLength(const SavedExtent& extent, int64_t chunk) const;

  // That a chunk of a tensor is damaged: it has the CRC `actual`.
  absl::Status WrongChunk(absl::string_view tensor, const SavedExtent& extent,
                          int64_t chunk, uint32_t actual,
                          uint32_t expected) const;

  const ManifestReader& manifest() const { return manifest_; }
  int64_t chunk_bytes() const { return manifest_.summary().chunk_bytes; }
  // Bytes read so far.
  int64_t bytes_read() const { return bytes_read_; }

 private:
  struct OpenFile {
    std::shared_ptr<File> file;
    int64_t data_begin = 0;
    // The value of uses_ when it was last used.
    int64_t last_use = 0;
  };

  // Valid until the next file is opened.
  absl::StatusOr<OpenFile*> FileAt(int32_t index)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<const ManifestFile*> OpenLocked(int32_t file)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of version 2.
  absl::StatusOr<absl::Span<const uint32_t>> TableOf(int32_t index)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes `last` the file.
  absl::Status Find(int32_t index, LastFile& last);
  absl::StatusOr<OpenFile*> OpenNow(int32_t index)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Keeps kDataLoss for later calls.
  absl::Status Note(int32_t index, absl::Status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Missing(int32_t index, const ManifestFile& info) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NotAFile(int32_t index, const ManifestFile& info,
                        const absl::Status& status) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WrongSize(int32_t index, const ManifestFile& info,
                         int64_t size) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // "; it has tensor … at offset …": the tensor that a file of `size` bytes
  // lacks.
  std::string FirstLost(int32_t index, const ManifestFile& info,
                        int64_t size) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ManifestReader manifest_;
  FileSystem& files_;
  const AfterRead after_read_;
  std::atomic<int64_t> bytes_read_ = 0;

  absl::Mutex mutex_;
  // By number in the manifest. A table outlives the descriptor of its file,
  // because it is read again only at the cost of opening that.
  std::map<int32_t, OpenFile> open_ ABSL_GUARDED_BY(mutex_);
  std::map<int32_t, std::vector<uint32_t>> tables_ ABSL_GUARDED_BY(mutex_);
  size_t table_values_ ABSL_GUARDED_BY(mutex_) = 0;
  // Files that have been opened and have the right size; the manifest has them.
  absl::flat_hash_map<int32_t, const ManifestFile*> right_size_
      ABSL_GUARDED_BY(mutex_);
  int64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int32_t, absl::Status> damaged_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_EXTENT_READER_H_
