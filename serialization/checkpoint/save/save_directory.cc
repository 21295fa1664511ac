#include "sherd/serialization/checkpoint/save/save_directory.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/checkpoint/save/shard_writer.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/manifest/manifest_reader.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd {
namespace {

// A manifest is written in blocks of this size.
constexpr size_t kStageBytes = size_t{1} << 20;
// One that was frozen, and whose lease another has taken over, removes at most
// so many files when it wakes.
constexpr size_t kFilesPerCheck = 16;

// The result of a sync of directories, with what to do where there is none.
absl::Status WithAdvice(const absl::Status& synced) {
  if (!absl::IsUnimplemented(synced)) return synced;
  return absl::UnimplementedError(absl::StrCat(
      synced.message(),
      ": expected a file system that syncs directories; use another one, or "
      "sync=false, with which a loss of power may damage the checkpoint"));
}

std::string SaveIdText(uint64_t id) { return absl::StrFormat("%016x", id); }

// The files that a manifest names; false if they cannot be read.
bool AddFileNames(const ManifestReader& manifest,
                  absl::flat_hash_set<std::string>& names) {
  for (int32_t i = 0; i < manifest.num_files(); ++i) {
    const auto file = manifest.FileAt(i);
    if (!file.ok()) return false;
    names.insert((*file)->name);
  }
  return true;
}

// Where the clock is behind the last save, the next ones are up to a second's
// nanoseconds ahead of that.
constexpr uint64_t kIdsAhead = uint64_t{1} << 30;

// That of a new save at the time `now`, above `last`. No two saves have the
// same, also if both begin after `last`, with clocks that are behind it: lease
// and names of files tell them apart by it.
uint64_t NewSaveNumber(uint64_t last, uint64_t now) {
  return now > last ? now : last + 1 + now % kIdsAhead;
}

}  // namespace

SaveDirectory::SaveDirectory(FileSystem& files, std::string path, bool sync,
                             Progress progress, SaveTarget target)
    : files_(files),
      path_(std::move(path)),
      sync_(sync),
      progress_(std::move(progress)),
      target_(std::move(target)),
      manifest_name_(target_.step.has_value() ? StepManifestName(*target_.step)
                                              : kManifestFileName),
      index_(target_.index != nullptr ? target_.index
                                      : std::make_shared<ManifestIndex>()) {}

absl::StatusOr<uint64_t> SaveDirectory::Take(absl::Duration lease_duration,
                                             int64_t tensor_bytes) {
  SHERD_RETURN_IF_ERROR(
      sync_ ? WithAdvice(CreateDurableDirectories(files_, path_))
            : files_.CreateDirectories(path_));
  SHERD_ASSIGN_OR_RETURN(const uint64_t id, TakeLease(lease_duration));
  SHERD_RETURN_IF_ERROR(RemoveLeftovers(id));
  // Someone has removed all else: this save is a first one.
  if (index_->entries().empty()) SHERD_RETURN_IF_ERROR(Unmark());
  SHERD_RETURN_IF_ERROR(CheckNoOtherJob());
  SHERD_RETURN_IF_ERROR(CheckSpace(tensor_bytes, "the checkpoint"));
  return id;
}

absl::Status SaveDirectory::CheckSpace(int64_t bytes, absl::string_view what) {
  SHERD_ASSIGN_OR_RETURN(const int64_t free_bytes, files_.FreeBytes(path_));
  if (bytes <= free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      what, " ", path_, " needs ", bytes,
      " bytes and those of its headers, but only ", free_bytes, " are free"));
}

absl::StatusOr<uint64_t> SaveDirectory::TakeLease(
    absl::Duration lease_duration) {
  SHERD_RETURN_IF_ERROR(Refresh().status());
  std::string last;
  const uint64_t number = index_->last_number(&last);
  if (number > std::numeric_limits<uint64_t>::max() - kIdsAhead) {
    return absl::FailedPreconditionError(absl::StrCat(
        JoinPath(path_, last), " has the save id ", SaveIdText(number),
        ", expected one that a later save can exceed; "
        "load the checkpoint and save it to another directory"));
  }
  const uint64_t id = NewSaveNumber(
      number, target_.clock != nullptr
                  ? target_.clock()
                  : static_cast<uint64_t>(absl::ToUnixNanos(absl::Now())));
  SHERD_ASSIGN_OR_RETURN(lease_,
                         CheckpointLease::Take(files_, path_, SaveIdText(id),
                                               {lease_duration, sync_}));
  SHERD_RETURN_IF_ERROR(RemoveStaged());
  return id;
}

// Returns the names in the directory.
absl::StatusOr<std::vector<std::string>> SaveDirectory::Refresh() {
  absl::StatusOr<std::vector<std::string>> names = files_.List(path_);
  if (!names.ok()) return names;
  is_marked_ =
      std::binary_search(names->begin(), names->end(), kCommittedFileName);
  index_->Refresh(files_, path_, *names, progress_);
  return names;
}

void SaveDirectory::SetSaveId(uint64_t id) { save_id_ = SaveIdText(id); }

// Without them a save that has lost its lease cannot switch any more, and the
// manifest that is read from now on remains.
absl::Status SaveDirectory::RemoveStaged() {
  SHERD_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                         files_.List(path_));
  for (const std::string& name : names) {
    if (!IsStagedManifestName(name)) continue;
    const absl::Status status = files_.Remove(JoinPath(path_, name));
    if (!status.ok() && !absl::IsNotFound(status)) return status;
  }
  return absl::OkStatus();
}

// Removes files of saves that are over: all that have the names of a save's
// files and that no manifest names. Data files that cannot be removed now are
// left to the next save.
absl::Status SaveDirectory::RemoveLeftovers(uint64_t id) {
  SHERD_ASSIGN_OR_RETURN(const std::vector<std::string> names, Refresh());
  if (index_->last_number() >= id) {
    return absl::AbortedError(absl::StrCat(
        "a save of ", path_, " has just ended that has a later number than ",
        SaveIdText(id), "; save again"));
  }
  // One that is there cannot be read now, or leads to a file that is away, or
  // only another build reads it.
  if (!index_->complete()) return absl::OkStatus();
  const absl::flat_hash_set<std::string> in_use = index_->in_use();
  std::vector<std::string> unused;
  for (const std::string& name : names) {
    if (IsSaveFileName(name) && !IsStagedManifestName(name) &&
        !in_use.contains(name)) {
      unused.push_back(name);
    }
  }
  if (unused.empty() || !ManifestWillLast()) return absl::OkStatus();
  return RemoveUnused(unused);
}

absl::Status SaveDirectory::CheckNoOtherJob() const {
  const std::string step = index_->StepOfAnotherJob();
  if (step.empty()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(
      JoinPath(path_, step), " (save ",
      SaveIdText(index_->entries().at(step).number),
      ") is of another job, which saved it since this one saved here; one job "
      "at a time saves to a directory: end this one if the other takes its "
      "place, otherwise end that one and open the series again"));
}

// Of another holder nothing may go, whatever this one knows.
absl::Status SaveDirectory::RemoveUnused(
    const std::vector<std::string>& names) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (i % kFilesPerCheck == 0) SHERD_RETURN_IF_ERROR(lease_->Check());
    RemoveOldFile(names[i]);
    SHERD_RETURN_IF_ERROR(progress_());
  }
  return absl::OkStatus();
}

void SaveDirectory::RemoveOwnFiles() {
  // A rename that returned an error may still take effect, but not once this
  // file is gone. Only then does the manifest say which files it names.
  const absl::Status unstaged =
      files_.Remove(JoinPath(path_, StagedManifestName(save_id_)));
  if (may_switch_ && !unstaged.ok() && !absl::IsNotFound(unstaged)) {
    SHERD_LOG(kWarning) << "the files of a failed save stay: "
                        << unstaged.ToString();
    return;
  }
  const std::string target = JoinPath(path_, manifest_name_);
  const absl::StatusOr<bool> exists = files_.Exists(target);
  if (!exists.ok()) return;
  if (*exists) {
    const auto manifest = ManifestReader::Open(files_, target);
    if (!manifest.ok() || manifest->summary().save_id == save_id_) return;
    // Another save may have replaced one that names them; until its manifest is
    // durable, a loss of power brings that one back.
    if (!ManifestWillLast()) return;
  }
  for (const std::string& name :
       files_.List(path_).value_or(std::vector<std::string>())) {
    if (IsSaveFileName(name) && absl::StrContains(name, save_id_)) {
      RemoveOldFile(name);
    }
  }
}

void SaveDirectory::ListReplaced(int rank, int world_size) {
  std::vector<std::string> names =
      files_.List(path_).value_or(std::vector<std::string>());
  shared_ =
      target_.step.has_value() ||
      std::any_of(names.begin(), names.end(), [this](const std::string& name) {
        return IsManifestName(name) && name != manifest_name_;
      });
  if (shared_ && rank != 0) return;
  for (std::string& name : names) {
    if (!IsSaveFileName(name) || absl::StrContains(name, save_id_)) continue;
    if (shared_ ||
        Fingerprint().Add(name).value() % static_cast<uint64_t>(world_size) ==
            static_cast<uint64_t>(rank)) {
      replaced_.push_back(std::move(name));
    }
  }
}

void SaveDirectory::RemoveExpired() {
  if (!shared_) return;
  if (const absl::Status status = RemoveExpiredAndUnused(); !status.ok()) {
    SHERD_LOG(kWarning) << "old files stay: " << status.ToString();
  }
}

absl::Status SaveDirectory::RemoveExpiredAndUnused() {
  SHERD_ASSIGN_OR_RETURN(const bool removed, RemoveExpiredSteps());
  if (!index_->complete()) return absl::OkStatus();
  const absl::flat_hash_set<std::string> in_use = index_->in_use();
  std::vector<std::string> unused;
  for (const std::string& name : replaced_) {
    if (!in_use.contains(name)) unused.push_back(name);
  }
  // The switch itself has been made durable.
  if (unused.empty() || ((removed || !sync_) && !ManifestWillLast())) {
    return absl::OkStatus();
  }
  return RemoveUnused(unused);
}

// Returns whether there were any.
absl::StatusOr<bool> SaveDirectory::RemoveExpiredSteps() {
  if (!target_.step.has_value()) return false;
  bool removed = false;
  for (const int64_t step :
       ExpiredSteps(target_.retention, *target_.step, index_->steps())) {
    // Now, since it may have been pinned while data was written.
    const absl::StatusOr<FileKind> pin =
        files_.KindOf(JoinPath(path_, StepPinName(step)));
    if (!pin.ok() || *pin != FileKind::kNone) continue;
    SHERD_RETURN_IF_ERROR(lease_->Check());
    if (const absl::Status status = RemoveStep(step); !status.ok()) {
      SHERD_LOG(kWarning) << "an old step stays: " << status.ToString();
      continue;
    }
    removed = true;
    SHERD_RETURN_IF_ERROR(progress_());
  }
  return removed;
}

absl::Status SaveDirectory::RemoveStep(int64_t step) {
  const std::string name = StepManifestName(step);
  const absl::Status status = files_.Remove(JoinPath(path_, name));
  if (!status.ok() && !absl::IsNotFound(status)) return status;
  index_->Removed(name);
  return absl::OkStatus();
}

absl::Status SaveDirectory::RemoveStepsAfter(int64_t step,
                                             absl::Duration lease_duration) {
  SHERD_ASSIGN_OR_RETURN(const bool exists, files_.Exists(path_));
  if (!exists) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(const uint64_t id, TakeLease(lease_duration));
  SetSaveId(id);
  // Now that no save is at work.
  SHERD_RETURN_IF_ERROR(Refresh().status());
  SHERD_RETURN_IF_ERROR(CheckNoPinAfter(files_, path_, step));
  std::vector<int64_t> later;
  for (const StepState& state : index_->steps()) {
    if (state.step > step) later.push_back(state.step);
  }
  if (later.empty()) return absl::OkStatus();
  if (later.size() == index_->entries().size()) SHERD_RETURN_IF_ERROR(Unmark());
  std::reverse(later.begin(), later.end());
  for (const int64_t number : later) {
    SHERD_RETURN_IF_ERROR(lease_->Check());
    SHERD_RETURN_IF_ERROR(RemoveStep(number));
    SHERD_RETURN_IF_ERROR(progress_());
  }
  const absl::Status synced = files_.SyncDirectory(path_);
  // Where there is no such sync, nothing better can be had.
  if (!absl::IsUnimplemented(synced)) SHERD_RETURN_IF_ERROR(synced);
  return RemoveLeftovers(id);
}

void SaveDirectory::RemoveReplaced(bool shares_files) {
  if (shared_ || replaced_.empty()) return;
  if (!sync_ && !ManifestWillLast()) return;
  absl::flat_hash_set<std::string> in_use;
  if (shares_files) {
    // This host may still see the former one: then the next save removes them.
    const auto manifest = ManifestReader::Open(files_, path_);
    if (!manifest.ok() || manifest->summary().save_id != save_id_ ||
        !AddFileNames(*manifest, in_use)) {
      return;
    }
  }
  for (const std::string& name : replaced_) {
    if (!in_use.contains(name)) RemoveOldFile(name);
  }
}

// Makes the manifest that is there the one that a loss of power leaves: only
// then may files that it does not name be removed. A file system without such a
// sync keeps no promise that a save could wait for.
bool SaveDirectory::ManifestWillLast() {
  const absl::Status synced = files_.SyncDirectory(path_);
  if (synced.ok() || absl::IsUnimplemented(synced)) return true;
  SHERD_LOG(kWarning) << "old files stay: " << synced.ToString();
  return false;
}

void SaveDirectory::RemoveOldFile(const std::string& name) {
  const absl::Status status = files_.Remove(JoinPath(path_, name));
  if (status.ok() || absl::IsNotFound(status)) {
    index_->Removed(name);
  } else {
    SHERD_LOG(kWarning) << "an old file stays: " << status.ToString();
  }
}

// A name must be durable before the manifest is, and the host of another rank
// may know nothing of it yet.
absl::Status SaveDirectory::SyncNames() {
  return sync_ ? WithAdvice(files_.SyncDirectory(path_)) : absl::OkStatus();
}

absl::Status SaveDirectory::Switch(const Manifest& manifest,
                                   const std::string& bytes) {
  const std::string staged = JoinPath(path_, StagedManifestName(save_id_));
  SHERD_RETURN_IF_ERROR(Stage(staged, bytes));
  SHERD_RETURN_IF_ERROR(lease_->Check());
  index_->Placing(manifest);
  SHERD_RETURN_IF_ERROR(Place(staged, bytes));
  const bool is_new = !index_->entries().contains(manifest_name_);
  index_->Placed(manifest_name_, manifest);
  if (sync_) {
    SHERD_RETURN_IF_ERROR(
        Annotate(SyncRenamed(files_, JoinPath(path_, manifest_name_)),
                 target_.step.has_value() && is_new
                     ? "the step is there"
                     : "the new checkpoint has replaced the old one"));
  }
  MarkCommitted();
  return absl::OkStatus();
}

// Only now, so that no crash leaves the mark without the manifest that it is
// for. A save that fails to leave it has succeeded, and the next one tries
// again; nor does it wait until the mark is durable.
void SaveDirectory::MarkCommitted() {
  if (is_marked_) return;
  const absl::Status status = [this]() -> absl::Status {
    // Another holder may have removed all since.
    SHERD_RETURN_IF_ERROR(lease_->Check());
    SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                           files_.Create(JoinPath(path_, kCommittedFileName)));
    return file->Close();
  }();
  is_marked_ = status.ok();
  if (!status.ok()) {
    SHERD_LOG(kWarning) << "a checkpoint without a mark: " << status.ToString();
  }
}

// Before the last manifest goes.
absl::Status SaveDirectory::Unmark() {
  if (!is_marked_) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(lease_->Check());
  const absl::Status removed =
      files_.Remove(JoinPath(path_, kCommittedFileName));
  if (!absl::IsNotFound(removed)) SHERD_RETURN_IF_ERROR(removed);
  is_marked_ = false;
  const absl::Status synced = files_.SyncDirectory(path_);
  return absl::IsUnimplemented(synced) ? absl::OkStatus() : synced;
}

// Gives the staged manifest its name: that of a step that was not there must
// still be free.
absl::Status SaveDirectory::Place(const std::string& staged,
                                  const std::string& bytes) {
  const std::string target = JoinPath(path_, manifest_name_);
  const bool replaces =
      !target_.step.has_value() || index_->entries().contains(manifest_name_);
  may_switch_ = true;
  const absl::Status renamed = replaces ? files_.Rename(staged, target)
                                        : files_.RenameNew(staged, target);
  // The medium is full, and so knows that nothing was done. A store that is
  // full cannot remove the staged manifest either; the data files make room.
  if (absl::IsResourceExhausted(renamed)) may_switch_ = false;
  if (!absl::IsNotFound(renamed) && !absl::IsAlreadyExists(renamed)) {
    return renamed;
  }
  // Another save has taken the lease over and removed the staged manifest, or
  // has saved the same step; or a server that was asked twice has renamed it
  // the first time.
  const auto current = ReadFile(files_, target, kMaxManifestBytes);
  if (current.ok() && *current == bytes) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(lease_->Check());
  return renamed;
}

absl::Status SaveDirectory::Stage(const std::string& staged,
                                  const std::string& bytes) {
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files_.Create(staged));
  SequentialWriter writer(*file, [this](int64_t) { return progress_(); });
  auto rest = AsBytes(bytes);
  while (!rest.empty()) {
    const auto block = rest.first(std::min(rest.size(), kStageBytes));
    SHERD_RETURN_IF_ERROR(writer.Append(block));
    rest.remove_prefix(block.size());
  }
  SHERD_RETURN_IF_ERROR(writer.Flush());
  if (sync_) SHERD_RETURN_IF_ERROR(file->Sync());
  SHERD_RETURN_IF_ERROR(file->Close());
  return progress_();
}

absl::Status CheckNoPinAfter(FileSystem& files, const std::string& path,
                             int64_t step) {
  const absl::StatusOr<std::vector<std::string>> names = files.List(path);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    const std::optional<int64_t> later = StepOfManifestName(name);
    if (!later.has_value() || *later <= step) continue;
    const std::string pin = StepPinName(*later);
    if (std::binary_search(names->begin(), names->end(), pin)) {
      return absl::FailedPreconditionError(
          absl::StrCat("step ", *later, " is pinned by ", JoinPath(path, pin),
                       "; unpin it first"));
    }
  }
  return absl::OkStatus();
}

}  // namespace sherd
