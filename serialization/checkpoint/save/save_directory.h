#ifndef SHERD_SERIALIZATION_CHECKPOINT_SAVE_SAVE_DIRECTORY_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SAVE_SAVE_DIRECTORY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/checkpoint/lease.h"
#include "sherd/serialization/checkpoint/series/manifest_index.h"
#include "sherd/serialization/checkpoint/series/retention.h"
#include "sherd/serialization/manifest/manifest.h"

namespace sherd {

// The manifest that a save writes, and what goes when it is there.
struct SaveTarget {
  // Of a series, whose steps share the directory; nullopt: manifest.sherd.
  std::optional<int64_t> step;
  RetentionRule retention;
  // What rank 0 remembers of the directory from one save to the next; null:
  // nothing.
  std::shared_ptr<ManifestIndex> index;
  // Nanoseconds since 1970, by which a save gets its number; null: the clock of
  // the host.
  std::function<uint64_t()> clock;
};

// The directory of a checkpoint as one rank of a save changes it: who may
// write, which files go, and the switch to the new checkpoint. A file is in use
// as long as any manifest of the directory names it. Not thread-safe.
class SaveDirectory {
 public:
  // Called after each operation that may take a while; its error ends the work.
  using Progress = std::function<absl::Status()>;

  // `files` is borrowed.
  SaveDirectory(FileSystem& files, std::string path, bool sync,
                Progress progress, SaveTarget target = {});

  // Rank 0, before anything is written: creates the directory, takes the lease
  // for a new save, removes what earlier saves left, and checks that there is
  // space for `tensor_bytes`. Returns the number of the save: nanoseconds since
  // 1970, and more than that of the checkpoint that is there, so that of
  // several saves the newest is known.
  //   kAborted  Also if another save ended in between and has a later number;
  //             or if another job has placed a step since the index remembers
  //             that this one did.
  absl::StatusOr<uint64_t> Take(absl::Duration lease_duration,
                                int64_t tensor_bytes);

  // That there is space for so many bytes of `what`.
  //   kResourceExhausted  The message has both numbers.
  absl::Status CheckSpace(int64_t bytes, absl::string_view what);

  // Of Take the lease alone, for what writes a manifest without data files:
  // removes only manifests that were not switched to.
  absl::StatusOr<uint64_t> TakeLease(absl::Duration lease_duration);

  // From here on the save has this number.
  void SetSaveId(uint64_t id);
  // As in the names of files.
  const std::string& save_id() const { return save_id_; }

  // Each rank, before the switch: notes the files that the switch may leave
  // without use. None is then of a save that takes the lease over once this one
  // has switched. If the manifest is the only one, each notes its share;
  // otherwise rank 0, which knows them all, notes every one.
  void ListReplaced(int rank, int world_size);

  // After that: whether there are, or may be, other manifests, as this rank's
  // host sees the directory. The answer of rank 0 counts.
  bool is_shared() const { return shared_; }

  // Makes the names that this rank created durable, if the save is.
  absl::Status SyncNames();

  // Rank 0: makes `manifest` the checkpoint, by the steps of CheckpointLease:
  // it is staged under a name of its own, the lease is checked, and then the
  // name given. `bytes` are its encoding. Then the directory is marked as one
  // with a checkpoint (kCommittedFileName), if it is not yet.
  absl::Status Switch(const Manifest& manifest, const std::string& bytes);

  // Rank 0, after the switch, with the lease: where there are other manifests,
  // removes those of the steps that are over by the retention, and then, once
  // that is durable, those of the files from ListReplaced() that no manifest
  // names. What cannot be removed stays, with a warning; so does all the rest
  // once the lease is lost, which is checked before each manifest and each
  // batch of files.
  void RemoveExpired();

  // Rank 0, after the switch or an error.
  void Release() { lease_.reset(); }

  // While rank 0 has the lease: see CheckpointLease::IsIn.
  absl::StatusOr<bool> HasLeaseOf(const std::string& directory) const {
    return lease_->IsIn(directory);
  }

  // Rank 0, instead of a save: takes the lease, removes the manifests of all
  // steps above `step`, the largest first, and then, once that is durable, the
  // files that no manifest names. A directory that is not there has none.
  //   kFailedPrecondition  One of them is pinned; nothing was removed.
  //   kAborted             Also if the lease was lost; some may be removed.
  absl::Status RemoveStepsAfter(int64_t step, absl::Duration lease_duration);

  // Each rank, after the switch, if by rank 0 the manifest is the only one:
  // removes its share but for files of earlier saves that it names, if there
  // may be any.
  void RemoveReplaced(bool shares_files);

  // Rank 0, after an error, with or without the lease: removes what this save
  // has written, unless the manifest names it. A switch whose outcome is
  // unknown takes effect before this or not at all; if that cannot be ensured,
  // all stays for the next save.
  void RemoveOwnFiles();

 private:
  void MarkCommitted();
  absl::Status Unmark();
  absl::Status RemoveStaged();
  absl::Status RemoveLeftovers(uint64_t id);
  absl::Status CheckNoOtherJob() const;
  absl::Status RemoveUnused(const std::vector<std::string>& names);
  absl::StatusOr<std::vector<std::string>> Refresh();
  absl::Status Place(const std::string& staged, const std::string& bytes);
  absl::Status RemoveExpiredAndUnused();
  absl::StatusOr<bool> RemoveExpiredSteps();
  absl::Status RemoveStep(int64_t step);
  bool ManifestWillLast();
  void RemoveOldFile(const std::string& name);
  absl::Status Stage(const std::string& staged, const std::string& bytes);

  FileSystem& files_;
  const std::string path_;
  const bool sync_;
  const Progress progress_;
  const SaveTarget target_;
  const std::string manifest_name_;
  const std::shared_ptr<ManifestIndex> index_;
  std::string save_id_;
  std::unique_ptr<CheckpointLease> lease_;
  std::vector<std::string> replaced_;
  // Whether the directory has kCommittedFileName, as far as rank 0 knows.
  bool is_marked_ = false;
  // As is_shared().
  bool shared_ = false;
  // Whether the switch has taken effect, or may do so as long as the staged
  // manifest is there.
  bool may_switch_ = false;
};

// That no step above `step` that is in the directory is pinned. Of one that is
// not there, none is.
//   kFailedPrecondition  The message names the pin.
//   others               From the file system.
absl::Status CheckNoPinAfter(FileSystem& files, const std::string& path,
                             int64_t step);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SAVE_SAVE_DIRECTORY_H_
