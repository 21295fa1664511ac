#include "sherd/tools/bench/cases/checkpoint_cases.h"

#include <any>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/manifest/manifest_reader.h"
#include "sherd/tools/bench/cases/settle_disk.h"
#include "sherd/tools/bench/peers/box_layout.h"
#include "sherd/tools/bench/peers/sharded_words.h"

namespace sherd {
namespace {

constexpr char kTensorName[] = "weight";
// The block that plain programs read and write at once.
constexpr int64_t kBlockBytes = int64_t{8} << 20;

using Bytes = absl::Span<std::byte>;
using ConstByteSpan = absl::Span<const std::byte>;

FileSystem& Files() { return FileSystem::Posix(); }

class Reference;
using ReferencePtr = std::shared_ptr<const Reference>;

// Where rows are in a checkpoint: no file if there are none.
struct SavedRows {
  const ManifestFile* file = nullptr;
  // From the start of the file.
  int64_t offset = 0;
};

SavedRows FindRows(const Manifest& manifest, const WordBox& rows) {
  const ManifestTensor& tensor = manifest.tensors[0];
  Box box;
  for (int64_t i = 0; rows.words() > 0 && i < tensor.num_shards(); ++i) {
    const SavedShardPlace place = tensor.PlaceOf(i, manifest.chunk_bytes);
    tensor.layout.BoxAt(i, box);
    if (place.extents.empty() || box.offsets[0] != rows.offsets[1]) continue;
    const ManifestFile& file = manifest.files[place.extents[0].file];
    return {&file, file.data_begin + place.extents[0].data_offset};
  }
  return {};
}

// A checkpoint that Sherd wrote, spread by rows, and what a plain program has
// to know to read it or to write the same.
class Reference {
 public:
  // The one that the peers of this rank share. Collective: the first call saves
  // the checkpoint.
  static absl::StatusOr<ReferencePtr> Get(RankContext& context) {
    std::any& common = context.common();
    if (!common.has_value()) {
      SHERD_ASSIGN_OR_RETURN(common, Make(context));
    }
    return std::any_cast<ReferencePtr>(common);
  }

  const WordTensor& matrix() const { return matrix_; }
  // The rows that `rank` saved; a box without words if none.
  WordBox RowsOf(int rank) const {
    return rows_[rank].empty() ? WordBox() : rows_[rank].front();
  }
  int world() const { return static_cast<int>(rows_.size()); }
  const std::string& path() const { return path_; }
  const ShardedTensor& tensor() const { return tensor_; }
  // The bytes of the manifest's file.
  const std::string& manifest_bytes() const { return manifest_bytes_; }

  absl::Status Save(const std::string& path) const {
    return SaveCheckpoint(path, {{kTensorName, tensor_}}, tensor_.group());
  }

  // Where the rows of `rank` are.
  SavedRows SavedRowsOf(int rank) const {
    return FindRows(manifest_, RowsOf(rank));
  }

 private:
  static absl::StatusOr<std::any> Make(RankContext& context) {
    auto reference = std::make_shared<Reference>();
    SHERD_RETURN_IF_ERROR(reference->Init(context));
    return std::any(ReferencePtr(std::move(reference)));
  }

  absl::Status Init(RankContext& context) {
    SHERD_ASSIGN_OR_RETURN(matrix_, MatrixOfBytes(context.bytes()));
    rows_ = BoxesOf(matrix_, RowsOver(matrix_, context.world()));
    path_ = JoinPath(context.directory(), "reference");
    SHERD_ASSIGN_OR_RETURN(const auto group, context.Group());
    SHERD_ASSIGN_OR_RETURN(tensor_, MakeShardedWords(matrix_, rows_, group));
    Fill(matrix_, StoredShards(tensor_));
    SHERD_RETURN_IF_ERROR(Save(path_));
    SHERD_ASSIGN_OR_RETURN(manifest_, ReadManifest(Files(), path_));
    SHERD_ASSIGN_OR_RETURN(manifest_bytes_,
                           ReadFile(Files(), JoinPath(path_, kManifestFileName),
                                    kMaxManifestBytes));
    return absl::OkStatus();
  }

  WordTensor matrix_;
  BoxLayout rows_;
  std::string path_;
  ShardedTensor tensor_;
  Manifest manifest_;
  std::string manifest_bytes_;
};

absl::Status ReadBlocks(File& file, int64_t offset, Bytes to) {
  for (size_t done = 0; done < to.size(); done += kBlockBytes) {
    SHERD_RETURN_IF_ERROR(
        file.ReadAt(offset + static_cast<int64_t>(done),
                    to.subspan(done, static_cast<size_t>(kBlockBytes))));
  }
  return absl::OkStatus();
}

absl::Status WriteBlocks(File& file, int64_t offset, ConstByteSpan from) {
  for (size_t done = 0; done < from.size(); done += kBlockBytes) {
    SHERD_RETURN_IF_ERROR(
        file.WriteAt(offset + static_cast<int64_t>(done),
                     from.subspan(done, static_cast<size_t>(kBlockBytes))));
  }
  return absl::OkStatus();
}

// Saving

// Shared by both peers of a save: an empty directory before each call, and a
// check of every byte of the files after it.
class Save : public RankWork {
 public:
  Save(RankContext& context, ReferencePtr reference, const char* directory)
      : context_(context),
        reference_(std::move(reference)),
        path_(JoinPath(context.directory(), directory)) {}

  absl::Status Prepare() override {
    if (context_.rank() != 0) return absl::OkStatus();
    SHERD_RETURN_IF_ERROR(Files().RemoveAll(path_));
    SHERD_RETURN_IF_ERROR(Files().CreateDirectories(path_));
    return SettleDisk(path_);
  }

  absl::Status Check() override {
    SHERD_ASSIGN_OR_RETURN(const Manifest saved, ReadManifest(Files(), path_));
    const WordBox own = reference_->RowsOf(context_.rank());
    const SavedRows rows = FindRows(saved, own);
    if (rows.file != nullptr) return CheckRows(rows, own);
    if (own.words() == 0) return absl::OkStatus();
    return absl::DataLossError("wrong result: the manifest has no such shard");
  }

 protected:
  int rank() const { return context_.rank(); }
  RankContext& context() { return context_; }
  const Reference& reference() const { return *reference_; }
  const std::string& path() const { return path_; }

 private:
  absl::Status CheckRows(const SavedRows& rows, const WordBox& box) {
    SHERD_ASSIGN_OR_RETURN(const auto storage, Storage::Allocate(box.bytes()));
    SHERD_ASSIGN_OR_RETURN(const auto opened, Files().OpenForRead(JoinPath(
                                                  path_, rows.file->name)));
    SHERD_RETURN_IF_ERROR(ReadBlocks(
        *opened, rows.offset,
        Bytes(static_cast<std::byte*>(storage->data()), box.bytes())));
    return sherd::Check(
        reference_->matrix(),
        {DenseBox(box, static_cast<uint32_t*>(storage->data()))});
  }

  RankContext& context_;
  const ReferencePtr reference_;
  const std::string path_;
};

class SherdSave final : public Save {
 public:
  SherdSave(RankContext& context, ReferencePtr reference)
      : Save(context, std::move(reference), "sherd") {}

  absl::Status Run() override { return reference().Save(path()); }
};

// Each rank writes its file, and rank 0 then the manifest, with the system
// calls of a save that survives a loss of power, and no others.
class LimitSave final : public Save {
 public:
  static absl::StatusOr<std::unique_ptr<RankWork>> Make(RankContext& context) {
    SHERD_ASSIGN_OR_RETURN(auto reference, Reference::Get(context));
    const SavedRows rows = reference->SavedRowsOf(context.rank());
    std::string header, checksums;
    if (rows.file != nullptr) {
      SHERD_ASSIGN_OR_RETURN(
          const auto opened,
          Files().OpenForRead(JoinPath(reference->path(), rows.file->name)));
      header.resize(static_cast<size_t>(rows.offset));
      SHERD_RETURN_IF_ERROR(opened->ReadAt(0, BytesOf(header)));
      checksums.resize(static_cast<size_t>(CrcTableBytes(rows.file->chunks)));
      SHERD_RETURN_IF_ERROR(
          opened->ReadAt(rows.file->size - CrcTableBytes(rows.file->chunks),
                         BytesOf(checksums)));
    }
    return std::make_unique<LimitSave>(context, std::move(reference), rows,
                                       std::move(header), std::move(checksums));
  }

  LimitSave(RankContext& context, ReferencePtr reference, const SavedRows& rows,
            std::string header, std::string checksums)
      : Save(context, std::move(reference), "limit"),
        rows_(rows),
        header_(std::move(header)),
        checksums_(std::move(checksums)) {}

  absl::Status Run() override {
    SHERD_RETURN_IF_ERROR(WriteOwnFile());
    context().Meet();
    return rank() == 0 ? Commit() : absl::OkStatus();
  }

 private:
  static Bytes BytesOf(std::string& text) {
    return Bytes(reinterpret_cast<std::byte*>(text.data()), text.size());
  }
  static ConstByteSpan AsBytes(const std::string& text) {
    return ConstByteSpan(reinterpret_cast<const std::byte*>(text.data()),
                         text.size());
  }

  absl::Status WriteOwnFile() {
    if (rows_.file == nullptr) return absl::OkStatus();
    const ManifestFile& info = *rows_.file;
    SHERD_ASSIGN_OR_RETURN(const auto file,
                           Files().Create(JoinPath(path(), info.name)));
    SHERD_RETURN_IF_ERROR(file->Reserve(info.size));
    SHERD_RETURN_IF_ERROR(file->WriteAt(0, AsBytes(header_)));
    const Tensor& tensor = reference().tensor().local_shards()[0].tensor;
    SHERD_RETURN_IF_ERROR(
        WriteBlocks(*file, rows_.offset,
                    ConstByteSpan(static_cast<const std::byte*>(tensor.data()),
                                  tensor.nbytes())));
    SHERD_RETURN_IF_ERROR(file->WriteAt(info.size - CrcTableBytes(info.chunks),
                                        AsBytes(checksums_)));
    return file->Sync();
  }

  absl::Status Commit() {
    const std::string target = JoinPath(path(), kManifestFileName);
    const std::string temporary = absl::StrCat(target, ".tmp");
    SHERD_ASSIGN_OR_RETURN(const auto file, Files().Create(temporary));
    SHERD_RETURN_IF_ERROR(
        file->WriteAt(0, AsBytes(reference().manifest_bytes())));
    SHERD_RETURN_IF_ERROR(file->Sync());
    SHERD_RETURN_IF_ERROR(Files().SyncDirectory(path()));
    SHERD_RETURN_IF_ERROR(Files().Rename(temporary, target));
    return Files().SyncDirectory(path());
  }

  const SavedRows rows_;
  const std::string header_;
  const std::string checksums_;
};

absl::StatusOr<std::unique_ptr<RankWork>> MakeSherdSave(RankContext& context) {
  SHERD_ASSIGN_OR_RETURN(auto reference, Reference::Get(context));
  return std::make_unique<SherdSave>(context, std::move(reference));
}

// Loading

class SherdLoad final : public RankWork {
 public:
  SherdLoad(ReferencePtr reference, ShardedTensor destination)
      : reference_(std::move(reference)),
        destination_(std::move(destination)) {}

  absl::Status Prepare() override {
    Spoil(reference_->matrix(), StoredShards(destination_));
    return absl::OkStatus();
  }
  absl::Status Run() override {
    return LoadCheckpointInto(reference_->path(),
                              {{kTensorName, &destination_}},
                              destination_.group());
  }
  absl::Status Check() override {
    return sherd::Check(reference_->matrix(), StoredShards(destination_));
  }

 private:
  const ReferencePtr reference_;
  ShardedTensor destination_;
};

// Each rank reads the manifest, then the bytes that it needs of each file,
// straight to where they belong.
class LimitLoad final : public RankWork {
 public:
  LimitLoad(ReferencePtr reference, const WordBox& box,
            std::shared_ptr<Storage> destination)
      : reference_(std::move(reference)),
        box_(box),
        destination_(std::move(destination)) {}

  absl::Status Prepare() override {
    Spoil(reference_->matrix(), {stored()});
    return absl::OkStatus();
  }

  absl::Status Run() override {
    SHERD_RETURN_IF_ERROR(
        ReadFile(Files(), JoinPath(reference_->path(), kManifestFileName),
                 kMaxManifestBytes)
            .status());
    for (int rank = 0; rank < reference_->world(); ++rank) {
      SHERD_RETURN_IF_ERROR(ReadFrom(rank));
    }
    return absl::OkStatus();
  }

  absl::Status Check() override {
    return sherd::Check(reference_->matrix(), {stored()});
  }

 private:
  StoredBox stored() const {
    return DenseBox(box_, static_cast<uint32_t*>(destination_->data()));
  }

  // Reads what this rank needs of the file that `rank` wrote.
  absl::Status ReadFrom(int rank) {
    const StoredBox saved = DenseBox(reference_->RowsOf(rank), nullptr);
    const WordBox piece = Intersect(saved.box, box_);
    if (IsEmpty(piece)) return absl::OkStatus();
    const SavedRows rows = reference_->SavedRowsOf(rank);
    SHERD_ASSIGN_OR_RETURN(
        const auto file,
        Files().OpenForRead(JoinPath(reference_->path(), rows.file->name)));
    const bool run = saved.IsRun(piece) && stored().IsRun(piece);
    const int64_t pieces = run ? 1 : piece.sizes[1];
    const int64_t bytes = piece.bytes() / pieces;
    int64_t from =
        rows.offset + saved.OffsetOf(piece) * int64_t{sizeof(uint32_t)};
    uint32_t* to = stored().At(piece);
    for (int64_t i = 0; i < pieces; ++i) {
      SHERD_RETURN_IF_ERROR(ReadBlocks(
          *file, from, Bytes(reinterpret_cast<std::byte*>(to), bytes)));
      from += saved.row_stride * int64_t{sizeof(uint32_t)};
      to += stored().row_stride;
    }
    return absl::OkStatus();
  }

  const ReferencePtr reference_;
  const WordBox box_;
  const std::shared_ptr<Storage> destination_;
};

using LayoutOf = CyclicLayout (*)(const WordTensor& matrix, int ranks);

BoxLayout LayOut(LayoutOf layout_of, const WordTensor& matrix, int ranks) {
  return BoxesOf(matrix, layout_of(matrix, ranks));
}

BenchPeer SherdLoadPeer(LayoutOf layout_of) {
  return {.name = "sherd",
          .help = "LoadCheckpointInto a tensor",
          .make = [layout_of](RankContext& context)
              -> absl::StatusOr<std::unique_ptr<RankWork>> {
            SHERD_ASSIGN_OR_RETURN(auto reference, Reference::Get(context));
            SHERD_ASSIGN_OR_RETURN(
                ShardedTensor destination,
                MakeShardedWords(
                    reference->matrix(),
                    LayOut(layout_of, reference->matrix(), context.world()),
                    reference->tensor().group()));
            return std::make_unique<SherdLoad>(std::move(reference),
                                               std::move(destination));
          }};
}

BenchPeer LimitLoadPeer(LayoutOf layout_of) {
  return {.name = "limit",
          .help = "plain reads of the same bytes",
          .make = [layout_of](RankContext& context)
              -> absl::StatusOr<std::unique_ptr<RankWork>> {
            SHERD_ASSIGN_OR_RETURN(auto reference, Reference::Get(context));
            const RankBoxes boxes = LayOut(layout_of, reference->matrix(),
                                           context.world())[context.rank()];
            const WordBox box = boxes.empty() ? WordBox() : boxes.front();
            SHERD_ASSIGN_OR_RETURN(auto destination,
                                   Storage::Allocate(box.bytes()));
            return std::make_unique<LimitLoad>(std::move(reference), box,
                                               std::move(destination));
          }};
}

// Twice what is saved, beside the reference, with room for headers.
absl::Status CheckSpace(int, int64_t bytes, const std::string& directory) {
  SHERD_RETURN_IF_ERROR(MatrixOfBytes(bytes).status());
  SHERD_ASSIGN_OR_RETURN(const int64_t free_bytes,
                         Files().FreeBytes(directory));
  if (free_bytes / 4 >= bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("needs four times as much space in ", directory, ", where ",
                   free_bytes, " bytes are free"));
}

}  // namespace

std::vector<BenchCase> CheckpointCases() {
  return {
      {.name = "checkpoint_save",
       .help = "rows to files, durable when it returns",
       .peers = {{.name = "sherd",
                  .help = "SaveCheckpoint",
                  .make = MakeSherdSave},
                 {.name = "limit",
                  .help = "plain writes of the same files, same fsyncs",
                  .make = LimitSave::Make}},
       .check = CheckSpace},
      {.name = "checkpoint_load_same",
       .help = "rows to rows, from cached files",
       .peers = {SherdLoadPeer(RowsOver), LimitLoadPeer(RowsOver)},
       .check = CheckSpace},
      {.name = "checkpoint_load_resharded",
       .help = "rows to columns, from cached files",
       .peers = {SherdLoadPeer(ColumnsOver), LimitLoadPeer(ColumnsOver)},
       .check = CheckSpace},
  };
}

}  // namespace sherd
