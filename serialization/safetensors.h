#ifndef SHERD_SERIALIZATION_SAFETENSORS_H_
#define SHERD_SERIALIZATION_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/safetensors/safetensors_header.h"

namespace sherd {

// An open file whose header was read and checked.
//
// Threads. Safe.
class SafetensorsFile {
 public:
  // Reads the header, nothing else. Cost: at most kMaxSafetensorsHeaderBytes
  // are read, and no more memory is used than a small multiple of the header.
  //
  // Errors. Those of ParseSafetensorsHeader, and
  //   kNotFound         The file does not exist.
  //   kInvalidArgument  It is a directory, device, pipe or socket.
  //   kDataLoss         It is shorter than 8 bytes or than its header claims,
  //                     or the header is longer than allowed.
  //   others            From the file system.
  static absl::StatusOr<SafetensorsFile> Open(FileSystem& files,
                                              const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<SafetensorsEntry>& entries() const {
    return header_.entries;
  }
  const std::map<std::string, std::string>& metadata() const {
    return header_.metadata;
  }
  // The offset in the file where the data begins, and the size of the file.
  int64_t data_begin() const { return data_begin_; }
  int64_t size() const { return data_begin_ + header_.data_bytes(); }

  //   kNotFound  No tensor has that name; the message lists some that exist.
  absl::StatusOr<const SafetensorsEntry*> Find(absl::string_view name) const;

  // A tensor in newly allocated memory.
  absl::StatusOr<Tensor> ReadTensor(absl::string_view name) const;

  // Reads into `destination`, with any strides, in host memory or on a device,
  // where the data is complete on return.
  //   kInvalidArgument  Its dtype or sizes differ from those in the file, or
  //                     its elements overlap.
  absl::Status ReadTensorInto(absl::string_view name, Tensor destination) const;

  // The box of `sizes` at `offsets` of a tensor; reads only the rows that
  // contain it.
  //   kOutOfRange  The box is not inside the tensor.
  absl::StatusOr<Tensor> ReadSlice(absl::string_view name,
                                   absl::Span<const int64_t> offsets,
                                   absl::Span<const int64_t> sizes) const;

  // A read-only tensor on the mapped file: pages are read when they are
  // accessed. See Storage::MapFile about files that others may truncate. The
  // file is opened again by its path, in the machine's own file system.
  //   kInvalidArgument  The data is not aligned for its dtype: use ReadTensor.
  absl::StatusOr<Tensor> MapTensor(absl::string_view name) const;

 private:
  SafetensorsFile(std::string path, std::shared_ptr<File> file,
                  SafetensorsHeader header, int64_t data_begin);

  std::string path_;
  std::shared_ptr<File> file_;
  SafetensorsHeader header_;
  int64_t data_begin_ = 0;
  absl::flat_hash_map<std::string, size_t> index_;
};

// Writes a file whose names, dtypes and shapes are known beforehand.
//
//     SHERD_ASSIGN_OR_RETURN(auto writer, SafetensorsWriter::Create(
//         files, path, {{"weight", kFloat32, {3, 4}}}));
//     SHERD_RETURN_IF_ERROR(writer->Write("weight", tensor));
//     SHERD_RETURN_IF_ERROR(writer->Finish());
//
// Until Finish() the data is in a temporary file beside `path`, which the
// destructor removes if it is unfinished.
//
// Threads. Write and WriteAt may be called by several threads at once.
class SafetensorsWriter {
 public:
  // Creates the file, reserves its space and writes the header.
  //   kInvalidArgument    As PlanSafetensors.
  //   kNotFound           The directory does not exist.
  //   kResourceExhausted  There is not enough space; the message has both
  //                       numbers. Or the header exceeds
  //                       kMaxSafetensorsHeaderBytes.
  //   others              From the file system.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      FileSystem& files, const std::string& path,
      std::vector<SafetensorsTensorInfo> tensors,
      std::map<std::string, std::string> metadata = {});

  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The position of every tensor.
  const SafetensorsHeader& header() const { return header_; }

  // Writes a whole tensor, with any strides, from host memory or a device.
  //   kNotFound         The name was not given to Create.
  //   kInvalidArgument  dtype or sizes differ from those given to Create.
  absl::Status Write(absl::string_view name, const Tensor& tensor);

  // Writes `bytes` of a tensor from `byte_offset` in its row-major data on.
  //   kOutOfRange  They would end beyond the tensor.
  absl::Status WriteAt(absl::string_view name, int64_t byte_offset,
                       absl::Span<const std::byte> bytes);

  // Renames the file to its final name, after making the data durable if
  // `sync`.
  //   kFailedPrecondition  Fewer or more bytes were written than the tensors
  //                        have. The file does not appear.
  //   kUnknown             The file appeared, but could not be made durable
  //                        (SyncRenamed of file.h).
  absl::Status Finish(bool sync = true);

 private:
  struct State;
  SafetensorsWriter(SafetensorsHeader header, std::unique_ptr<State> state);

  const SafetensorsHeader header_;
  const std::unique_ptr<State> state_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_SAFETENSORS_H_
