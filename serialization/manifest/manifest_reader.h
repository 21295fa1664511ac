#ifndef SHERD_SERIALIZATION_MANIFEST_MANIFEST_READER_H_
#define SHERD_SERIALIZATION_MANIFEST_MANIFEST_READER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/manifest/manifest.h"

namespace sherd {

// One process's view of a manifest on disk, which reads what is asked for. A
// save that replaces the manifest does not change the view.
//
// Errors. From the file system, and as DecodeManifest (manifest_codec.h); all
// begin with the manifest's path.
//
// Threads. Safe.
//
// Cost. A manifest of at most 64 KiB is read at once, by Open. Of a larger one
// Open reads the summary and the root of its index, and other functions
// O(log n) sections of some 64 KiB each, of which up to 64 MiB in memory are
// kept, and a larger one alone. Version 1 is
// read and decoded completely by Open.
class ManifestReader {
 public:
  // Called after each operation on the file, each of which reads at most 4 MiB:
  // a sign of life where others wait. Its error is that of the call.
  using AfterRead = std::function<absl::Status()>;

  // `checkpoint_path` is a directory, or the path of a manifest itself, as of a
  // step of a series (manifest_names.h).
  //   kNotFound            There is no checkpoint at `checkpoint_path`.
  //   kFailedPrecondition  The manifest is a link that leads nowhere.
  static absl::StatusOr<ManifestReader> Open(FileSystem& files,
                                             const std::string& checkpoint_path,
                                             AfterRead after_read = nullptr);

  // Where the data files are.
  const std::string& directory() const;
  // The manifest's own path.
  const std::string& path() const;
  const ManifestSummary& summary() const;
  int64_t num_tensors() const;
  int64_t num_files() const;
  // Of version 1.
  absl::Span<const uint32_t> chunk_crc32c() const;

  // The tensor of that name; shared, not kept by the reader.
  //   kInvalidArgument  No tensor has that name; the message lists some that
  //                     exist.
  absl::StatusOr<std::shared_ptr<const ManifestTensor>> Find(
      absl::string_view name) const;

  // The same for many names in ascending order. Each section is read once.
  absl::StatusOr<std::vector<std::shared_ptr<const ManifestTensor>>> FindAll(
      absl::Span<const absl::string_view> sorted_names) const;

  // The file of that number. Valid as long as the reader or a copy of it.
  //   kDataLoss  There is no file of that number.
  absl::StatusOr<const ManifestFile*> FileAt(int32_t index) const;

  // All of it, checked as a whole by ValidateManifest.
  absl::StatusOr<Manifest> ReadAll() const;

  // Bytes of the manifest read so far.
  int64_t bytes_read() const;

 private:
  struct State;
  explicit ManifestReader(std::shared_ptr<State> state)
      : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

// That of a directory whose manifests were lost (AllManifestsAreLost): a
// program must not begin afresh there, since they can be rebuilt.
absl::Status ManifestsAreLost(const std::string& directory);

// CheckpointExists (checkpoint.h).
absl::StatusOr<bool> ManifestExists(FileSystem& files,
                                    const std::string& checkpoint_path);

// Open and ReadAll.
absl::StatusOr<Manifest> ReadManifest(FileSystem& files,
                                      const std::string& checkpoint_path);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_MANIFEST_READER_H_
