#ifndef SHERD_SERIALIZATION_CHECKPOINT_READER_H_
#define SHERD_SERIALIZATION_CHECKPOINT_READER_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/manifest_reader.h"

namespace sherd {

// A checkpoint of either version opened by one process: its contents, and reads
// of tensors or boxes of them.
//
// Errors of reads. As for LoadCheckpoint, with file, tensor and offset.
//
// Threads. Safe.
class CheckpointReader {
 public:
  // Reads what ManifestReader::Open reads, and no data.
  //   kNotFound            There is no checkpoint at `path`.
  //   kInvalidArgument     A directory is where the manifest should be, or
  //                        `path` begins with the scheme of no store and "://".
  //   kFailedPrecondition  The manifest is a link that leads nowhere.
  //   kUnimplemented       A later version wrote the checkpoint.
  //   kDataLoss            The manifest is damaged or incomplete.
  //   kResourceExhausted   It exceeds a limit of manifest_codec.h.
  //   others               From the file system.
  static absl::StatusOr<CheckpointReader> Open(
      const std::string& path, FileSystem& files = CheckpointFiles());

  const std::string& path() const { return path_; }
  const ManifestReader& manifest() const { return manifest_; }

  // A whole tensor, assembled from its shards.
  absl::StatusOr<Tensor> ReadTensor(absl::string_view name) const;

  // The box of `sizes` at `offsets`. Reads the chunks that contain it.
  //   kOutOfRange  The box is not inside the tensor.
  absl::StatusOr<Tensor> ReadSlice(absl::string_view name,
                                   absl::Span<const int64_t> offsets,
                                   absl::Span<const int64_t> sizes) const;

  // The box at `offsets` of the sizes of `destination`, into that: memory of
  // the caller with any strides, on the host or on a device, where it is
  // complete on return. After an error of reading its contents are unspecified;
  // after one of these it is as before:
  //   kOutOfRange          The box is not inside the tensor.
  //   kInvalidArgument     The tensor has another dtype, or elements of the
  //                        destination coincide.
  //   kFailedPrecondition  The destination is read-only or without data.
  absl::Status ReadInto(absl::string_view name,
                        absl::Span<const int64_t> offsets,
                        Tensor destination) const;

  // The state that was saved, without elements: tensors are on meta. Empty if
  // the checkpoint was saved from a map of tensors. ReadState has what ranks
  // share, ReadStateOf what was in per_rank on that rank, which may be nothing.
  //   kOutOfRange  No such rank saved.
  //   kDataLoss    Damaged, or a tensor of it is not there; it is named.
  absl::StatusOr<StateDict> ReadState() const;
  absl::StatusOr<StateDict> ReadStateOf(int rank) const;

 private:
  CheckpointReader(std::string path, FileSystem& files, ManifestReader manifest)
      : path_(std::move(path)),
        files_(&files),
        manifest_(std::move(manifest)) {}

  absl::StatusOr<Tensor> ReadBox(const ManifestTensor& tensor,
                                 const BoxView& slice) const;
  // Into the tensor that `make` returns once it is known that the files have
  // the box.
  absl::Status ReadBoxInto(
      const ManifestTensor& tensor, const BoxView& slice,
      absl::FunctionRef<absl::StatusOr<Tensor>()> make) const;

  std::string path_;
  FileSystem* files_;
  ManifestReader manifest_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_READER_H_
