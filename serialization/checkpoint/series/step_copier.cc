#include "sherd/serialization/checkpoint/series/step_copier.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/named_thread.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/collective/operation_label.h"
#include "sherd/serialization/checkpoint/data_file_check.h"
#include "sherd/serialization/checkpoint/save/save_directory.h"
#include "sherd/serialization/checkpoint/series/step_list.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/checkpoint_series.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/manifest/manifest_reader.h"
#include "sherd/serialization/store/store_registry.h"

namespace sherd {
namespace {

constexpr char kOperation[] = "copy_checkpoint";
constexpr int64_t kBlockBytes = int64_t{4} << 20;

// One rank's part of the copy of one step.
class StepCopy {
 public:
  StepCopy(const StepCopierOptions& options, int64_t step, ProcessGroup& group,
           std::shared_ptr<ManifestIndex> index)
      : options_(options),
        step_number_(step),
        label_(absl::StrCat("copy \"", PrintableLine(options.to), "\" step ",
                            step)),
        operation_(kOperation, label_),
        group_(group),
        files_(options.save.files != nullptr ? *options.save.files
                                             : CheckpointFiles()),
        index_(std::move(index)),
        directory_(
            files_, options.to, options.save.sync,
            [this] { return step_->MadeProgress(); },
            {step, options.retention, group.rank() == 0 ? index_ : nullptr}) {}

  absl::Status Run() {
    BeginStep();
    const absl::StatusOr<uint64_t> prepared = Prepare();
    SHERD_ASSIGN_OR_RETURN(
        const uint64_t id,
        step_->AgreeOnMaximum(
            prepared.status(),
            {Fingerprint().Add(manifest_.save_id).value(),
             [this] { return absl::StrCat("save ", manifest_.save_id, "\n"); }},
            prepared.value_or(0)));
    directory_.SetSaveId(id);
    const absl::Status status = CopyAndCommit();
    // Also after an error.
    directory_.Release();
    return status;
  }

  const OperationLabel& operation() const { return operation_; }

 private:
  void BeginStep() {
    step_.emplace(group_, operation_,
                  LongStepOptions{.timeout = options_.save.timeout});
  }

  // On rank 0 takes the second directory, and returns the number under which it
  // holds the lease.
  absl::StatusOr<uint64_t> Prepare() {
    SHERD_ASSIGN_OR_RETURN(
        manifest_,
        ReadManifest(files_,
                     JoinPath(options_.from, StepManifestName(step_number_))));
    if (group_.rank() != 0) return 0;
    SHERD_ASSIGN_OR_RETURN(const int64_t bytes, MissingBytes());
    SHERD_ASSIGN_OR_RETURN(
        const uint64_t id,
        directory_.Take(options_.save.lease_duration, bytes));
    SHERD_RETURN_IF_ERROR(CheckApart());
    return id;
  }

  // Of the files that the second directory does not have.
  absl::StatusOr<int64_t> MissingBytes() {
    absl::StatusOr<std::vector<std::string>> names = files_.List(options_.to);
    if (absl::IsNotFound(names.status())) names = std::vector<std::string>();
    SHERD_RETURN_IF_ERROR(names.status());
    int64_t bytes = 0;
    for (const ManifestFile& file : manifest_.files) {
      if (std::binary_search(names->begin(), names->end(), file.name)) continue;
      bytes = CheckedAdd(bytes, file.size).value_or(bytes);
    }
    return bytes;
  }

  // Two paths of one directory, as over a link, may look different.
  absl::Status CheckApart() const {
    SHERD_ASSIGN_OR_RETURN(const bool is_same,
                           directory_.HasLeaseOf(options_.from));
    if (!is_same) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(options_.to, " is the same directory as ", options_.from,
                     ", expected another one: nothing is copied"));
  }

  absl::Status CopyAndCommit() {
    BeginStep();
    directory_.ListReplaced(group_.rank(), group_.size());
    SHERD_RETURN_IF_ERROR(step_->Agree(CopyFiles()));
    BeginStep();
    absl::Status committed;
    if (group_.rank() == 0) {
      committed = Commit();
      if (committed.ok()) committed = CopyPin();
      if (committed.ok()) directory_.RemoveExpired();
      directory_.Release();
    }
    return step_->Agree(committed);
  }

  absl::Status Commit() {
    SHERD_ASSIGN_OR_RETURN(const std::string bytes, EncodeManifest(manifest_));
    return directory_.Switch(manifest_, bytes);
  }

  // Who pins the step looks for it in the second directory afterwards.
  absl::Status CopyPin() {
    SHERD_ASSIGN_OR_RETURN(
        const bool is_pinned,
        files_.Exists(JoinPath(options_.from, StepPinName(step_number_))));
    if (!is_pinned) return absl::OkStatus();
    return PinStep(options_.to, step_number_, files_);
  }

  // This rank's share, of which its own file of the save is one where every
  // rank has a file.
  absl::Status CopyFiles() {
    SHERD_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           files_.List(options_.to));
    std::optional<absl::flat_hash_set<std::string>> in_use;
    bool copied = false;
    for (size_t i = static_cast<size_t>(group_.rank());
         i < manifest_.files.size(); i += static_cast<size_t>(group_.size())) {
      const ManifestFile& file = manifest_.files[i];
      bool is_sound = false;
      if (std::binary_search(names.begin(), names.end(), file.name)) {
        if (!in_use.has_value()) {
          index_->Refresh(files_, options_.to, names,
                          [this] { return step_->MadeProgress(); });
          in_use = index_->in_use();
        }
        // Of an earlier step.
        if (in_use->contains(file.name) && !HasOtherSize(file)) continue;
        SHERD_ASSIGN_OR_RETURN(is_sound, FinishCopy(file));
      }
      copied = true;
      // After an error what was copied stays, for the next holder of the lease
      // to use or remove.
      if (!is_sound) SHERD_RETURN_IF_ERROR(CopyFile(file));
    }
    return copied ? directory_.SyncNames() : absl::OkStatus();
  }

  // Whether it is known that the copy has not the size that it should have.
  bool HasOtherSize(const ManifestFile& expected) const {
    const auto file = files_.OpenForRead(JoinPath(options_.to, expected.name));
    if (!file.ok()) return false;
    const absl::StatusOr<int64_t> size = (*file)->Size();
    return size.ok() && *size != expected.size;
  }

  // Whether a file that is there is the copy, as one that is left of a copy
  // that failed, or of a step whose manifest cannot be read now, may be.
  // Makes it durable, as its writer may have ended before.
  absl::StatusOr<bool> FinishCopy(const ManifestFile& expected) {
    const absl::Status status =
        CheckCopy(expected, JoinPath(options_.to, expected.name));
    if (IsUnsound(status) || absl::IsNotFound(status)) return false;
    SHERD_RETURN_IF_ERROR(status);
    if (!options_.save.sync) return true;
    SHERD_ASSIGN_OR_RETURN(
        const std::unique_ptr<File> file,
        files_.OpenForRead(JoinPath(options_.to, expected.name)));
    SHERD_RETURN_IF_ERROR(file->Sync());
    return true;
  }

  // Under a name of this copy alone, and once it has been checked under its
  // own: this rank may have been stopped for so long that another holder of the
  // lease has copied the same file, which then is replaced by the same bytes.
  // An object is replaced as a whole anyway.
  absl::Status CopyFile(const ManifestFile& expected) {
    const std::string to = JoinPath(options_.to, expected.name);
    if (IsInObjectStore(options_.to)) {
      SHERD_RETURN_IF_ERROR(WriteCopy(expected, to));
      return CheckCopy(expected, to);
    }
    const std::string own = JoinPath(
        options_.to, UnfinishedCopyName(expected.name, directory_.save_id()));
    absl::Status status = WriteCopy(expected, own);
    if (status.ok()) status = CheckCopy(expected, own);
    if (status.ok()) status = files_.Rename(own, to);
    if (!status.ok()) files_.Remove(own).IgnoreError();
    return status;
  }

  absl::Status WriteCopy(const ManifestFile& expected, const std::string& to) {
    SHERD_ASSIGN_OR_RETURN(
        const std::unique_ptr<File> source,
        files_.OpenForRead(JoinPath(options_.from, expected.name)));
    SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_.Create(to));
    SHERD_RETURN_IF_ERROR(file->Reserve(expected.size));
    std::vector<std::byte> buffer(
        static_cast<size_t>(std::min(expected.size, kBlockBytes)));
    int64_t synced = 0;
    for (int64_t at = 0; at < expected.size; at += kBlockBytes) {
      const auto block = absl::MakeSpan(buffer).first(
          static_cast<size_t>(std::min(kBlockBytes, expected.size - at)));
      SHERD_RETURN_IF_ERROR(source->ReadAt(at, block));
      SHERD_RETURN_IF_ERROR(file->WriteAt(at, block));
      if (options_.save.sync &&
          at - synced >= options_.save.max_unsynced_bytes) {
        SHERD_RETURN_IF_ERROR(file->Sync());
        synced = at;
      }
      SHERD_RETURN_IF_ERROR(step_->MadeProgress());
    }
    if (options_.save.sync) SHERD_RETURN_IF_ERROR(file->Sync());
    return file->Close();
  }

  // That the file at `path`, whose name may be another, is the one expected.
  absl::Status CheckCopy(const ManifestFile& expected,
                         const std::string& path) {
    SHERD_ASSIGN_OR_RETURN(
        CheckedDataFile checked,
        CheckDataFile(files_, path, [this] { return step_->MadeProgress(); }));
    checked.file.name = expected.name;
    if (checked.file == expected) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(path, ", a copy, has ", checked.file.size,
                     " bytes and is sound, but not the file that the manifest "
                     "describes, which has ",
                     expected.size));
  }

  const StepCopierOptions& options_;
  const int64_t step_number_;
  const std::string label_;
  const OperationLabel operation_;
  ProcessGroup& group_;
  FileSystem& files_;
  const std::shared_ptr<ManifestIndex> index_;
  SaveDirectory directory_;
  std::optional<LongStep> step_;
  // What is copied.
  Manifest manifest_;
};

}  // namespace

StepCopier::StepCopier(BackgroundGroup group, StepCopierOptions options)
    : group_(std::move(group)),
      options_(std::move(options)),
      index_(std::make_shared<ManifestIndex>()) {}

absl::StatusOr<std::unique_ptr<StepCopier>> StepCopier::Create(
    ProcessGroup& group, StepCopierOptions options) {
  SHERD_ASSIGN_OR_RETURN(BackgroundGroup own, BackgroundGroup::Create(group));
  return std::unique_ptr<StepCopier>(
      new StepCopier(std::move(own), std::move(options)));
}

StepCopier::~StepCopier() {
  Wait();
  group_->Destroy().IgnoreError();
}

void StepCopier::Start(int64_t step) {
  Wait();
  const auto copy = [this, step, rank = LogRank()] {
    SetThreadLogRank(rank);
    error_.Update(Copy(step));
  };
  absl::StatusOr<std::thread> thread = StartNamedThread("sherd-copy", copy);
  if (thread.ok()) {
    thread_ = *std::move(thread);
  } else {
    // The other ranks wait for this one.
    Run(step);
  }
}

void StepCopier::Run(int64_t step) {
  Wait();
  error_.Update(Copy(step));
}

void StepCopier::Wait() {
  if (thread_.joinable()) thread_.join();
}

absl::Status StepCopier::TakeError() {
  return std::exchange(error_, absl::OkStatus());
}

absl::Status StepCopier::Copy(int64_t step) {
  StepCopy copy(options_, step, *group_, index_);
  return group_.ForProgram(
      InOperation(copy.operation(), copy.Run(), group_->name()));
}

}  // namespace sherd
