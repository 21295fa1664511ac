#include "sherd/tools/bench/cases/checkpoint_save_cases.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/tools/bench/cases/checkpoint_reference.h"
#include "sherd/tools/bench/cases/direct_io.h"
#include "sherd/tools/bench/cases/settle_disk.h"

namespace sherd {
namespace {

using Bytes = absl::Span<std::byte>;
using ConstByteSpan = absl::Span<const std::byte>;

FileSystem& Files() { return FileSystem::Posix(); }

// Shared by the peers of a save: an empty directory before each call, and a
// check of every byte of the files after it.
class Save : public RankWork {
 public:
  Save(RankContext& context, CheckpointReferencePtr reference,
       const char* directory)
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
    return reference_->CheckSaved(path_, context_.rank());
  }

 protected:
  int rank() const { return context_.rank(); }
  RankContext& context() { return context_; }
  const CheckpointReference& reference() const { return *reference_; }
  const std::string& path() const { return path_; }

 private:
  RankContext& context_;
  const CheckpointReferencePtr reference_;
  const std::string path_;
};

class SherdSave final : public Save {
 public:
  SherdSave(RankContext& context, CheckpointReferencePtr reference)
      : Save(context, std::move(reference), "sherd") {}

  absl::Status Run() override { return reference().Save(path()); }
};

// Each rank writes its file, and rank 0 then the manifest, with the system
// calls of a save that survives a loss of power, and no others: through the
// page cache, or, given `direct`, past it.
class LimitSave final : public Save {
 public:
  static absl::StatusOr<std::unique_ptr<RankWork>> MakePlain(
      RankContext& context) {
    return Make(context, "limit", nullptr);
  }
  static absl::StatusOr<std::unique_ptr<RankWork>> MakeDirect(
      RankContext& context) {
    SHERD_ASSIGN_OR_RETURN(auto direct, DirectIo::Create());
    return Make(context, "limit-direct", std::move(direct));
  }

  static absl::StatusOr<std::unique_ptr<RankWork>> Make(
      RankContext& context, const char* directory,
      std::unique_ptr<DirectIo> direct) {
    SHERD_ASSIGN_OR_RETURN(auto reference, CheckpointReference::Get(context));
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
    return std::make_unique<LimitSave>(context, std::move(reference), directory,
                                       std::move(direct), rows,
                                       std::move(header), std::move(checksums));
  }

  LimitSave(RankContext& context, CheckpointReferencePtr reference,
            const char* directory, std::unique_ptr<DirectIo> direct,
            const SavedRows& rows, std::string header, std::string checksums)
      : Save(context, std::move(reference), directory),
        direct_(std::move(direct)),
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
    const std::string name = JoinPath(path(), info.name);
    const Tensor& tensor = reference().tensor().local_shards()[0].tensor;
    const ConstByteSpan data(static_cast<const std::byte*>(tensor.data()),
                             static_cast<size_t>(tensor.nbytes()));
    if (direct_ != nullptr) {
      return direct_->Write(name,
                            {AsBytes(header_), data, AsBytes(checksums_)});
    }
    SHERD_ASSIGN_OR_RETURN(const auto file, Files().Create(name));
    SHERD_RETURN_IF_ERROR(file->Reserve(info.size));
    SHERD_RETURN_IF_ERROR(file->WriteAt(0, AsBytes(header_)));
    SHERD_RETURN_IF_ERROR(WriteBlocks(*file, rows_.offset, data));
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

  const std::unique_ptr<DirectIo> direct_;
  const SavedRows rows_;
  const std::string header_;
  const std::string checksums_;
};

absl::StatusOr<std::unique_ptr<RankWork>> MakeSherdSave(RankContext& context) {
  SHERD_ASSIGN_OR_RETURN(auto reference, CheckpointReference::Get(context));
  return std::make_unique<SherdSave>(context, std::move(reference));
}

}  // namespace

std::vector<BenchCase> CheckpointSaveCases() {
  return {{.name = "checkpoint_save",
           .help = "rows to files, durable when it returns",
           .peers = {{.name = "sherd",
                      .help = "SaveCheckpoint",
                      .make = MakeSherdSave},
                     TorchCheckpointPeer("torch-dcp",
                                         "torch.distributed.checkpoint.save",
                                         [](int) { return "dcp:save"; }),
                     TorchCheckpointPeer("torch-save",
                                         "torch.save and fsync by each rank",
                                         [](int) { return "torch:save"; }),
                     {.name = "limit",
                      .help = "plain writes of the same files, same fsyncs",
                      .make = LimitSave::MakePlain},
                     {.name = "limit-direct",
                      .help = "the same past the page cache, 16 MiB in flight",
                      .make = LimitSave::MakeDirect,
                      .check =
                          [](int, int64_t, const std::string& directory) {
                            return DirectIo::Check(directory);
                          }}},
           .check = CheckCheckpointSpace}};
}

}  // namespace sherd
