#ifndef SHERD_SERIALIZATION_CHECKPOINT_LEASE_H_
#define SHERD_SERIALIZATION_CHECKPOINT_LEASE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sherd/core/base/file.h"
#include "sherd/core/process/process_identity.h"

namespace sherd {

// The encoding that this build writes, and the newest that it reads.
inline constexpr uint32_t kLeaseVersion = 1;

// The limit of a lease's length; longer files are damaged.
inline constexpr int64_t kMaxLeaseBytes = 4096;

// The limits of a lease's duration.
inline constexpr absl::Duration kMinLeaseDuration = absl::Milliseconds(1);
inline constexpr absl::Duration kMaxLeaseDuration = absl::Hours(24 * 365);

// The contents of the file: which process saves, and since when. Times count
// whole milliseconds.
struct LeaseRecord {
  std::string host;
  ProcessDescription holder;
  // As in the names of the save's files.
  std::string save_id;
  // One more than that of the lease that was taken over, or 1.
  uint64_t generation = 1;
  absl::Time since;
  absl::Time renewed;
  // 0: the save is over.
  absl::Duration duration;

  friend bool operator==(const LeaseRecord&, const LeaseRecord&) = default;
};

// The bytes of the file. Records that differ only in `renewed` and `duration`
// have the same length.
std::string EncodeLease(const LeaseRecord& record);

// Decodes untrusted bytes.
//
// Errors. All begin with `what`, the path.
//   kDataLoss       They are not a result of EncodeLease.
//   kUnimplemented  A later version wrote it; the message has both versions.
absl::StatusOr<LeaseRecord> DecodeLease(absl::string_view bytes,
                                        absl::string_view what);

// Whether the save that a lease belongs to is over, or counts as over: its
// process has ended, as far as this one can see; or is stopped, or out of
// sight, and has not renewed the lease for its duration by `now`.
bool LeaseIsOver(const LeaseRecord& record, absl::Time now);

struct LeaseOptions {
  absl::Duration duration = absl::Minutes(2);
  // Makes what is written visible at once on other hosts (of NFS).
  bool sync = true;
};

// The right to change a checkpoint's directory: of all processes that take the
// lease, at most one at a time switches the checkpoint. Renewed four times per
// duration, by a thread of its own, until it is released.
//
// What is guaranteed. A file system that orders the operations on a directory,
// and on which RenameNew replaces nothing, is all that is needed; clocks are
// not. Holders are ordered by the rename that placed their lease. A switch is
//   1. write the new manifest under a name of its own,
//   2. Check(),
//   3. rename it to its final name,
// and a save that takes a lease over first removes all such names, and only
// then reads the manifest. So if the former holder's Check() came before
// the takeover, either its rename did too, and the new holder finds its
// checkpoint, or the rename fails because the name is gone; and a Check() that
// comes later fails. Files of a checkpoint that may still be switched to are
// never removed.
//
// What is not. Whether a holder out of sight is alive is a guess, by the
// clocks of two hosts: if they differ by more than the duration less a renewal,
// or a renewal takes that long, a live save loses its lease. Two that take over
// the same lease at the same moment may both begin; so may one that begins
// while a lease is released late. In each case the earlier one ends with an
// error at its switch, and no checkpoint is lost.
//
// Threads. Check from any thread.
class CheckpointLease {
 public:
  // Takes the lease of `directory`, which exists, for the save `save_id`. A
  // lease whose save is over is taken over, and so is a damaged one: those of
  // running saves never are. `files` is borrowed.
  //   kAborted             Another save holds it; the message names its host
  //                        and process.
  //   kInvalidArgument     The duration is not between the limits above.
  //   kUnimplemented       A later version wrote it.
  //   others               From the file system.
  static absl::StatusOr<std::unique_ptr<CheckpointLease>> Take(
      FileSystem& files, const std::string& directory,
      const std::string& save_id, const LeaseOptions& options = {});

  CheckpointLease(const CheckpointLease&) = delete;
  CheckpointLease& operator=(const CheckpointLease&) = delete;
  // Releases it: the file is removed, if it is still this holder's.
  ~CheckpointLease();

  // OK if the file is still this holder's.
  //   kAborted  Another save has taken the lease over, or its file was removed;
  //             the message names the new holder.
  absl::Status Check();

  // Whether `directory` has this lease: it is the same directory then, however
  // its path is written. Errors from the file system.
  absl::StatusOr<bool> IsIn(const std::string& directory) const;

  uint64_t generation() const { return generation_; }

 private:
  CheckpointLease(FileSystem& files, std::string path, LeaseRecord record,
                  bool sync);

  // Writes the file under its final name; false if another process was faster,
  // and it is to be looked at again.
  absl::StatusOr<bool> Place(bool replace);
  absl::Status StartRenewing();
  void RenewUntilStopped();
  absl::Status Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release();

  FileSystem& files_;
  const std::string path_;
  const std::string save_id_;
  const uint64_t generation_;
  const bool sync_;
  std::thread thread_;
  absl::Mutex mutex_;
  LeaseRecord record_ ABSL_GUARDED_BY(mutex_);
  // The file itself, whatever has its name by now.
  std::unique_ptr<File> file_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_LEASE_H_
