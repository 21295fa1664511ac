#include "sherd/serialization/safetensors.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/kernels/strided_copy.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/serialization/safetensors/box_pieces.h"
#include "sherd/serialization/safetensors/device_blocks.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd {
namespace {

// Buffer for data that is not contiguous in memory: small enough to stay in
// the cache between the copy and the system call.
constexpr int64_t kStagingBytes = 256 << 10;

absl::StatusOr<int64_t> ReadHeaderLength(File& file, int64_t file_size) {
  std::byte bytes[8];
  if (file_size < 8) {
    return absl::DataLossError(
        absl::StrCat(file.path(), " has ", file_size,
                     " bytes, expected a safetensors file, which has at least "
                     "8 at offset 0"));
  }
  SHERD_RETURN_IF_ERROR(file.ReadAt(0, absl::MakeSpan(bytes)));
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) {
    length = length << 8 | static_cast<uint64_t>(bytes[i]);
  }
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return absl::DataLossError(absl::StrCat(
        file.path(), " claims at offset 0 to have a header of ", length,
        " bytes, expected at most ", kMaxSafetensorsHeaderBytes));
  }
  if (static_cast<int64_t>(length) > file_size - 8) {
    return absl::DataLossError(absl::StrCat(
        file.path(), " claims at offset 0 to have a header of ", length,
        " bytes, but only ", file_size - 8, " follow: it is cut short"));
  }
  return static_cast<int64_t>(length);
}

absl::Status CheckFits(const std::string& path, const SafetensorsEntry& entry,
                       const Tensor& tensor) {
  const Dims sizes = SafetensorsShape(tensor.sizes(), tensor.dtype());
  if (SafetensorsDTypeName(tensor.dtype()) != entry.dtype_name ||
      absl::MakeConstSpan(sizes) != absl::MakeConstSpan(entry.shape)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": tensor ", Quoted(entry.name), " is ", entry.dtype_name, " ",
        FormatDims(entry.shape), " in the file, but the one in memory is ",
        SafetensorsDTypeName(tensor.dtype()), " ", FormatDims(sizes)));
  }
  if (tensor.numel() != 0 && tensor.data() == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": tensor ", Quoted(entry.name), " in memory has no data"));
  }
  return absl::OkStatus();
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::string path, std::shared_ptr<File> file,
                                 SafetensorsHeader header, int64_t data_begin)
    : path_(std::move(path)),
      file_(std::move(file)),
      header_(std::move(header)),
      data_begin_(data_begin) {
  index_.reserve(header_.entries.size());
  for (size_t i = 0; i < header_.entries.size(); ++i) {
    index_.emplace(header_.entries[i].name, i);
  }
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(FileSystem& files,
                                                      const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files.OpenForRead(path));
  SHERD_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  SHERD_ASSIGN_OR_RETURN(const int64_t length, ReadHeaderLength(*file, size));
  std::string json(length, '\0');
  SHERD_RETURN_IF_ERROR(file->ReadAt(
      8, absl::MakeSpan(reinterpret_cast<std::byte*>(json.data()), length)));
  SHERD_ASSIGN_OR_RETURN(SafetensorsHeader header,
                         ParseSafetensorsHeader(json, size - 8 - length, path));
  return SafetensorsFile(path, std::move(file), std::move(header), 8 + length);
}

absl::StatusOr<const SafetensorsEntry*> SafetensorsFile::Find(
    absl::string_view name) const {
  const auto it = index_.find(name);
  if (it != index_.end()) return &header_.entries[it->second];
  std::string known;
  for (size_t i = 0; i < std::min<size_t>(3, entries().size()); ++i) {
    absl::StrAppend(&known, i == 0 ? ", among them " : ", ",
                    entries()[i].name.substr(0, 200));
  }
  return absl::NotFoundError(absl::StrCat(path_, " has no tensor ",
                                          Quoted(name), "; it has ",
                                          entries().size(), known));
}

absl::Status SafetensorsFile::ReadTensorInto(absl::string_view name,
                                             Tensor destination) const {
  SHERD_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, Find(name));
  SHERD_RETURN_IF_ERROR(CheckFits(path_, *entry, destination));
  if (destination.numel() == 0) return absl::OkStatus();
  if (!destination.writable()) {
    return absl::FailedPreconditionError(absl::StrCat(
        path_, ": the destination of tensor ", Quoted(name), " is read-only"));
  }
  if (!IsNonOverlapping(destination.sizes(), destination.strides())) {
    return absl::InvalidArgumentError(absl::StrCat(
        path_, ": elements of the destination of tensor ", Quoted(name),
        " coincide: sizes ", FormatDims(destination.sizes()), ", strides ",
        FormatDims(destination.strides())));
  }
  const Dims zeros(destination.dim(), 0);
  std::vector<std::byte> staging;
  const BoxInArray box = BoxOf(destination.sizes(), zeros, destination);
  if (!destination.device().is_cpu()) {
    return WriteDeviceBox(box, destination.device(),
                          [&](int64_t offset, absl::Span<std::byte> block) {
                            return file_->ReadAt(
                                data_begin_ + entry->begin + offset, block);
                          });
  }
  return ForEachPiece(
      box, kStagingBytes, [&](const BoxPiece& piece) -> absl::Status {
        const int64_t offset = data_begin_ + entry->begin + piece.offset;
        if (piece.contiguous) {
          return file_->ReadAt(offset, absl::MakeSpan(piece.data, piece.bytes));
        }
        staging.resize(kStagingBytes);
        SHERD_RETURN_IF_ERROR(
            file_->ReadAt(offset, absl::MakeSpan(staging.data(), piece.bytes)));
        StridedCopy(piece.data, piece.strides, staging.data(),
                    ContiguousStrides(piece.sizes), piece.sizes,
                    box.element_size);
        return absl::OkStatus();
      });
}

absl::StatusOr<Tensor> SafetensorsFile::ReadTensor(
    absl::string_view name) const {
  SHERD_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, Find(name));
  SHERD_ASSIGN_OR_RETURN(Tensor tensor,
                         Tensor::Empty(entry->shape, {.dtype = entry->dtype}));
  SHERD_RETURN_IF_ERROR(ReadTensorInto(name, tensor));
  return tensor;
}

absl::StatusOr<Tensor> SafetensorsFile::ReadSlice(
    absl::string_view name, absl::Span<const int64_t> offsets,
    absl::Span<const int64_t> sizes) const {
  SHERD_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, Find(name));
  if (absl::Status status = CheckSlice(name, entry->shape, {offsets, sizes});
      !status.ok()) {
    return Annotate(std::move(status), path_);
  }
  SHERD_ASSIGN_OR_RETURN(Tensor tensor,
                         Tensor::Empty(sizes, {.dtype = entry->dtype}));
  SHERD_RETURN_IF_ERROR(ForEachPiece(
      BoxOf(entry->shape, offsets, tensor), kStagingBytes,
      [&](const BoxPiece& piece) {
        return file_->ReadAt(data_begin_ + entry->begin + piece.offset,
                             absl::MakeSpan(piece.data, piece.bytes));
      }));
  return tensor;
}

absl::StatusOr<Tensor> SafetensorsFile::MapTensor(
    absl::string_view name) const {
  SHERD_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, Find(name));
  if (entry->nbytes() == 0) {
    return Tensor::Empty(entry->shape, {.dtype = entry->dtype});
  }
  SHERD_ASSIGN_OR_RETURN(
      std::shared_ptr<Storage> storage,
      Storage::MapFile(path_, data_begin_ + entry->begin, entry->nbytes()));
  absl::StatusOr<Tensor> tensor =
      Tensor::FromStorage(std::move(storage), 0, entry->shape, entry->dtype);
  if (!tensor.ok()) {
    return Annotate(tensor.status(),
                    absl::StrCat(path_, ": tensor ", Quoted(name),
                                 " at offset ", data_begin_ + entry->begin));
  }
  return tensor;
}

struct SafetensorsWriter::State {
  FileSystem& files;
  const std::string path;
  const std::string temporary;
  std::unique_ptr<File> file;
  int64_t data_begin = 0;
  std::atomic<int64_t> written = 0;
  bool finished = false;
  absl::flat_hash_map<std::string, const SafetensorsEntry*> index;

  absl::StatusOr<const SafetensorsEntry*> Find(absl::string_view name) const {
    const auto it = index.find(name);
    if (it != index.end()) return it->second;
    return absl::NotFoundError(
        absl::StrCat(path, " was created without a tensor ", Quoted(name)));
  }

  absl::Status Write(const SafetensorsEntry& entry, int64_t offset,
                     absl::Span<const std::byte> bytes) {
    SHERD_RETURN_IF_ERROR(
        file->WriteAt(data_begin + entry.begin + offset, bytes));
    written += static_cast<int64_t>(bytes.size());
    return absl::OkStatus();
  }
};

SafetensorsWriter::SafetensorsWriter(SafetensorsHeader header,
                                     std::unique_ptr<State> state)
    : header_(std::move(header)), state_(std::move(state)) {
  for (const SafetensorsEntry& entry : header_.entries) {
    state_->index.emplace(entry.name, &entry);
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (!state_->finished) state_->files.Remove(state_->temporary).IgnoreError();
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    FileSystem& files, const std::string& path,
    std::vector<SafetensorsTensorInfo> tensors,
    std::map<std::string, std::string> metadata) {
  absl::StatusOr<SafetensorsHeader> header =
      PlanSafetensors(std::move(tensors), std::move(metadata));
  if (!header.ok()) return Annotate(header.status(), path);
  absl::StatusOr<std::string> front = EncodeSafetensorsHeader(*header);
  if (!front.ok()) return Annotate(front.status(), path);
  const int64_t data_begin = static_cast<int64_t>(front->size());
  const std::optional<int64_t> size =
      CheckedAdd(data_begin, header->data_bytes());
  SHERD_ASSIGN_OR_RETURN(const int64_t free_bytes,
                         files.FreeBytes(ParentDirectory(path)));
  if (!size.has_value() || *size > free_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, " needs ", header->data_bytes(), " + ", data_begin,
                     " bytes, but only ", free_bytes, " are free"));
  }
  std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files.Create(temporary));
  auto state = std::unique_ptr<State>(new State{
      files, path, std::move(temporary), std::move(file), data_begin});
  // From here on the destructor cleans up.
  std::unique_ptr<SafetensorsWriter> writer(
      new SafetensorsWriter(*std::move(header), std::move(state)));
  File& out = *writer->state_->file;
  SHERD_RETURN_IF_ERROR(out.Reserve(*size));
  SHERD_RETURN_IF_ERROR(out.WriteAt(0, AsBytes(*front)));
  return writer;
}

absl::Status SafetensorsWriter::Write(absl::string_view name,
                                      const Tensor& tensor) {
  SHERD_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, state_->Find(name));
  SHERD_RETURN_IF_ERROR(CheckFits(state_->path, *entry, tensor));
  const Dims zeros(tensor.dim(), 0);
  std::vector<std::byte> staging;
  const BoxInArray box = BoxOf(tensor.sizes(), zeros, tensor);
  if (!tensor.device().is_cpu()) {
    return ReadDeviceBox(box, tensor.device(),
                         [&](int64_t offset, absl::Span<const std::byte> data) {
                           return state_->Write(*entry, offset, data);
                         });
  }
  return ForEachPiece(
      box, kStagingBytes, [&](const BoxPiece& piece) -> absl::Status {
        if (piece.contiguous) {
          return state_->Write(*entry, piece.offset,
                               absl::MakeSpan(piece.data, piece.bytes));
        }
        staging.resize(kStagingBytes);
        StridedCopy(staging.data(), ContiguousStrides(piece.sizes), piece.data,
                    piece.strides, piece.sizes, box.element_size);
        return state_->Write(*entry, piece.offset,
                             absl::MakeSpan(staging.data(), piece.bytes));
      });
}

absl::Status SafetensorsWriter::WriteAt(absl::string_view name,
                                        int64_t byte_offset,
                                        absl::Span<const std::byte> bytes) {
  SHERD_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, state_->Find(name));
  if (byte_offset < 0 || byte_offset > entry->nbytes() ||
      static_cast<int64_t>(bytes.size()) > entry->nbytes() - byte_offset) {
    return absl::OutOfRangeError(absl::StrCat(
        state_->path, ": ", bytes.size(), " bytes at offset ", byte_offset,
        " end past tensor ", Quoted(name), ", which has ", entry->nbytes()));
  }
  return state_->Write(*entry, byte_offset, bytes);
}

absl::Status SafetensorsWriter::Finish(bool sync) {
  if (state_->finished) {
    return absl::FailedPreconditionError(
        absl::StrCat(state_->path, " was finished before"));
  }
  if (state_->written != header_.data_bytes()) {
    return absl::FailedPreconditionError(absl::StrCat(
        state_->path, ": ", state_->written.load(),
        " bytes of tensors were written, expected ", header_.data_bytes()));
  }
  if (sync) SHERD_RETURN_IF_ERROR(state_->file->Sync());
  SHERD_RETURN_IF_ERROR(state_->file->Close());
  SHERD_RETURN_IF_ERROR(state_->files.Rename(state_->temporary, state_->path));
  state_->finished = true;
  return sync ? SyncRenamed(state_->files, state_->path) : absl::OkStatus();
}

}  // namespace sherd
