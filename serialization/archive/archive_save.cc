#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/version.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/kernels/strided_copy.h"
#include "sherd/serialization/archive.h"
#include "sherd/serialization/archive/archive_layout.h"
#include "sherd/serialization/archive/block_plan.h"
#include "sherd/serialization/archive/group_state.h"
#include "sherd/serialization/archive/saved_state.h"
#include "sherd/serialization/archive/state_codec.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/metadata.h"
#include "sherd/serialization/safetensors/box_pieces.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/safetensors/device_blocks.h"
#include "sherd/serialization/store/store_registry.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd {
namespace internal {
namespace {

using Bytes = absl::Span<const std::byte>;

// Turns a tree into a SavedState and the tensors that it has, in order.
class Flattener {
 public:
  absl::Status Flatten(const StateDict& state) {
    SHERD_ASSIGN_OR_RETURN(saved_.values,
                           FlattenState(state, [this](const StateValue& value) {
                             return AddContents(value);
                           }));
    SHERD_ASSIGN_OR_RETURN(plan_, PlanBlocks(tensors_, apart_));
    for (const Tensor& block : plan_.blocks) {
      saved_.blocks.push_back(block.nbytes());
    }
    size_t next = 0;
    for (SavedValue& value : saved_.values) {
      if (auto* tensor = std::get_if<SavedTensor>(&value.value)) {
        Place(next++, *tensor);
      } else if (auto* sharded =
                     std::get_if<std::shared_ptr<SavedShardedTensor>>(
                         &value.value)) {
        for (SavedTensor& shard : (*sharded)->shards) Place(next++, shard);
      }
    }
    return absl::OkStatus();
  }

  SavedState& saved() { return saved_; }
  std::vector<Tensor>& blocks() { return plan_.blocks; }

 private:
  absl::StatusOr<SavedContents> AddContents(const StateValue& value);
  absl::StatusOr<SavedTensor> AddTensor(const Tensor& tensor);
  absl::StatusOr<SavedShardedTensor> AddSharded(const ShardedTensor& tensor);

  void Place(size_t i, SavedTensor& tensor) const {
    const BlockPlan::Place& place = plan_.places[i];
    tensor.block = place.block;
    tensor.offset = place.offset;
    // Without elements, strides mean nothing.
    tensor.strides =
        place.block < 0 ? ContiguousStrides(tensor.size) : place.strides;
  }

  SavedState saved_ = {.writer = absl::StrCat("sherd ", kVersion),
                       .chunk_bytes = kArchiveChunkBytes};
  std::vector<Tensor> tensors_;
  // Indices of those that do not share a block.
  std::vector<size_t> apart_;
  BlockPlan plan_;
};

absl::StatusOr<bool> IsPinned(const Tensor& tensor) {
  if (DeviceRuntime::FindLoaded(DeviceType::kCuda) == nullptr) return false;
  if (!tensor.device().is_cpu() || tensor.numel() == 0) return false;
  return IsPinnedAsSaid({.pin_memory = true}, tensor);
}

absl::StatusOr<SavedTensor> Flattener::AddTensor(const Tensor& tensor) {
  if (!tensor.defined()) {
    return absl::InvalidArgumentError(
        "expected a tensor, found one that is undefined");
  }
  SavedTensor saved = {
      .dtype = tensor.dtype(),
      .size = Dims(tensor.sizes().begin(), tensor.sizes().end()),
      .device = tensor.device()};
  SHERD_ASSIGN_OR_RETURN(saved.pinned, IsPinned(tensor));
  tensors_.push_back(tensor);
  return saved;
}

// The spec, if an archive can have it; otherwise a load infers one.
absl::StatusOr<ShardingSpecPtr> SpecToSave(const ShardedTensor& tensor) {
  const auto bytes = SerializeSpec(tensor.spec());
  if (absl::IsUnimplemented(bytes.status())) return ShardingSpecPtr();
  SHERD_RETURN_IF_ERROR(bytes.status());
  const ShardedTensorMetadata& metadata = tensor.metadata();
  SHERD_ASSIGN_OR_RETURN(
      const ShardedTensorMetadata built,
      tensor.spec()->BuildMetadata(metadata.size, metadata.properties));
  return SameLayout(built, metadata) ? tensor.spec() : nullptr;
}

absl::StatusOr<SavedShardedTensor> Flattener::AddSharded(
    const ShardedTensor& tensor) {
  if (!tensor.defined()) {
    return absl::InvalidArgumentError(
        "expected a sharded tensor, found one that was not created");
  }
  SavedShardedTensor saved = {.metadata = tensor.metadata()};
  SHERD_ASSIGN_OR_RETURN(saved.spec, SpecToSave(tensor));
  if (tensor.group() != nullptr) {
    SHERD_ASSIGN_OR_RETURN(saved.group, GroupStateOf(*tensor.group()));
  }
  saved.init_rrefs =
      ShardedTensorAccess::StateOf(tensor)->publication != nullptr;
  saved.shard_indices.assign(tensor.local_shard_indices().begin(),
                             tensor.local_shard_indices().end());
  for (const Shard& shard : tensor.local_shards()) {
    // A group wants contiguous shards, so that a load would have to copy it.
    if (saved.group && !shard.tensor.is_contiguous()) {
      apart_.push_back(tensors_.size());
    }
    SHERD_ASSIGN_OR_RETURN(SavedTensor part, AddTensor(shard.tensor));
    saved.shards.push_back(std::move(part));
  }
  return saved;
}

absl::StatusOr<SavedContents> Flattener::AddContents(const StateValue& value) {
  if (const auto* tensor = value.get_if<Tensor>()) return AddTensor(*tensor);
  SHERD_ASSIGN_OR_RETURN(SavedShardedTensor sharded,
                         AddSharded(*value.get_if<ShardedTensor>()));
  return std::make_shared<SavedShardedTensor>(std::move(sharded));
}

// Writes an archive to a sink, with its CRCs, which it computes from bytes that
// are in a core's cache for the sink.
class Writer {
 public:
  Writer(int64_t chunk_bytes, ArchiveSink& sink)
      : chunk_bytes_(chunk_bytes), sink_(sink) {}

  // Bytes of no block.
  absl::Status AppendPlain(Bytes bytes) {
    position_ += static_cast<int64_t>(bytes.size());
    return sink_.Append(bytes);
  }
  absl::Status AppendBlock(int64_t offset, const Tensor& block);
  absl::Status AppendTable();

 private:
  // More bytes of a block.
  absl::Status Append(Bytes bytes);
  absl::Status AppendHostBlock(const BoxInArray& box);
  void EndChunk();

  const int64_t chunk_bytes_;
  ArchiveSink& sink_;
  int64_t position_ = 0;
  // Of the chunk that is being written.
  uint32_t crc_ = 0;
  int64_t in_chunk_ = 0;
  std::string table_;
};

void Writer::EndChunk() {
  if (in_chunk_ == 0) return;
  AppendLittleEndian(crc_, table_);
  crc_ = 0;
  in_chunk_ = 0;
}

absl::Status Writer::Append(Bytes bytes) {
  while (!bytes.empty()) {
    const Bytes part = bytes.first(
        std::min(bytes.size(), static_cast<size_t>(chunk_bytes_ - in_chunk_)));
    crc_ = Crc32c(part, crc_);
    in_chunk_ += static_cast<int64_t>(part.size());
    SHERD_RETURN_IF_ERROR(AppendPlain(part));
    if (in_chunk_ == chunk_bytes_) EndChunk();
    bytes.remove_prefix(part.size());
  }
  return absl::OkStatus();
}

absl::Status Writer::AppendHostBlock(const BoxInArray& box) {
  std::vector<std::byte> staging;
  return ForEachPiece(
      box, kArchiveChunkBytes, [&](const BoxPiece& piece) -> absl::Status {
        if (piece.contiguous) {
          return Append(absl::MakeSpan(piece.data, piece.bytes));
        }
        staging.resize(kArchiveChunkBytes);
        StridedCopy(staging.data(), ContiguousStrides(piece.sizes), piece.data,
                    piece.strides, piece.sizes, box.element_size);
        return Append(absl::MakeSpan(staging.data(), piece.bytes));
      });
}

absl::Status Writer::AppendBlock(int64_t offset, const Tensor& block) {
  const std::string padding(static_cast<size_t>(offset - position_), '\0');
  SHERD_RETURN_IF_ERROR(AppendPlain(AsBytes(padding)));
  const Dims zeros(block.sizes().size(), 0);
  const BoxInArray box = BoxOf(block.sizes(), zeros, block);
  SHERD_RETURN_IF_ERROR(
      block.device().is_cpu()
          ? AppendHostBlock(box)
          : ReadDeviceBox(box, block.device(),
                          [&](int64_t, Bytes bytes) { return Append(bytes); }));
  EndChunk();
  return absl::OkStatus();
}

absl::Status Writer::AppendTable() {
  AppendLittleEndian(Crc32c(AsBytes(table_)), table_);
  return AppendPlain(AsBytes(table_));
}

// Calls `open` with the size of the archive for the sink to which it then goes.
absl::Status WriteArchive(
    const StateDict& state,
    absl::FunctionRef<absl::StatusOr<ArchiveSink*>(int64_t size)> open) {
  Flattener flat;
  SHERD_RETURN_IF_ERROR(flat.Flatten(state));
  SHERD_ASSIGN_OR_RETURN(const std::string message, EncodeState(flat.saved()));
  const std::string front = EncodeArchiveFront(message);
  const std::optional<ArchiveLayout> layout =
      LayOutArchive(static_cast<int64_t>(front.size()), flat.saved().blocks,
                    flat.saved().chunk_bytes);
  if (!layout) {
    return absl::ResourceExhaustedError(
        "the archive would have 2^63 bytes or more");
  }
  SHERD_ASSIGN_OR_RETURN(ArchiveSink* const sink, open(layout->size));
  Writer writer(flat.saved().chunk_bytes, *sink);
  SHERD_RETURN_IF_ERROR(writer.AppendPlain(AsBytes(front)));
  for (size_t i = 0; i < flat.blocks().size(); ++i) {
    SHERD_RETURN_IF_ERROR(
        writer.AppendBlock(layout->offsets[i], flat.blocks()[i]));
  }
  return writer.AppendTable();
}

class StringSink final : public ArchiveSink {
 public:
  absl::Status Append(Bytes bytes) override {
    bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return absl::OkStatus();
  }

  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;
};

// A file that gets its name when it is complete. Otherwise it is removed.
class FileSink final : public ArchiveSink {
 public:
  FileSink(FileSystem& files, const std::string& path)
      : files_(files),
        path_(path),
        is_renamed_(!IsAnObject(files, path) || absl::EndsWith(path, ".sherd")),
        temporary_(is_renamed_ ? absl::StrCat(path, ".", getpid(), ".",
                                              NextNumber(), ".tmp")
                               : path) {}
  ~FileSink() override {
    if (file_ == nullptr) return;
    file_.reset();
    if (is_renamed_) files_.Remove(temporary_).IgnoreError();
  }

  absl::Status Create(int64_t size) {
    SHERD_ASSIGN_OR_RETURN(file_, files_.Create(temporary_));
    return file_->Reserve(size);
  }

  absl::Status Append(Bytes bytes) override {
    SHERD_RETURN_IF_ERROR(file_->WriteAt(position_, bytes));
    position_ += static_cast<int64_t>(bytes.size());
    return absl::OkStatus();
  }

  absl::Status Finish(bool sync) {
    if (sync) SHERD_RETURN_IF_ERROR(file_->Sync());
    SHERD_RETURN_IF_ERROR(file_->Close());
    if (is_renamed_) SHERD_RETURN_IF_ERROR(files_.Rename(temporary_, path_));
    file_ = nullptr;
    return sync ? SyncRenamed(files_, path_) : absl::OkStatus();
  }

 private:
  // Schemes are those of CheckpointFiles(): to another FileSystem they mean
  // nothing, or something else.
  static bool IsAnObject(const FileSystem& files, const std::string& path) {
    return &files == &CheckpointFiles() && IsInObjectStore(path);
  }
  // Saves of one process do not disturb each other.
  static int64_t NextNumber() {
    static std::atomic<int64_t> next = 0;
    return next++;
  }

  FileSystem& files_;
  const std::string path_;
  // Otherwise it is an object, which appears when it is complete anyway.
  const bool is_renamed_;
  const std::string temporary_;
  std::unique_ptr<File> file_;
  int64_t position_ = 0;
};

absl::Status SaveToFile(const StateDict& state, const std::string& path,
                        const ArchiveSaveOptions& options) {
  FileSystem& files =
      options.files == nullptr ? CheckpointFiles() : *options.files;
  FileSink sink(files, path);
  SHERD_RETURN_IF_ERROR(
      WriteArchive(state, [&](int64_t size) -> absl::StatusOr<ArchiveSink*> {
        SHERD_RETURN_IF_ERROR(sink.Create(size));
        return &sink;
      }));
  return sink.Finish(options.sync);
}

}  // namespace
}  // namespace internal

absl::Status Save(const StateDict& state, const std::string& path,
                  const ArchiveSaveOptions& options) {
  return Annotate(internal::SaveToFile(state, path, options),
                  absl::StrCat("saving ", Quoted(path)));
}

absl::Status Save(const StateDict& state, ArchiveSink& sink) {
  return internal::WriteArchive(
      state, [&](int64_t) -> absl::StatusOr<ArchiveSink*> { return &sink; });
}

absl::StatusOr<std::string> SaveToString(const StateDict& state) {
  internal::StringSink sink;
  SHERD_RETURN_IF_ERROR(internal::WriteArchive(
      state, [&](int64_t size) -> absl::StatusOr<ArchiveSink*> {
        sink.bytes().reserve(static_cast<size_t>(size));
        return &sink;
      }));
  return std::move(sink.bytes());
}

}  // namespace sherd
