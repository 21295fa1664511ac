#ifndef SHERD_SERIALIZATION_CHECKPOINT_SERIES_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SERIES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint_async.h"
#include "sherd/serialization/checkpoint_files.h"

namespace sherd {

// A series: checkpoints of the steps of a job in one directory, each with a
// manifest of its own, "step-" and 20 digits and ".sherd". The path of such a
// manifest is that of a checkpoint for all that reads one (LoadCheckpoint,
// CheckpointReader, VerifyCheckpoint). See FORMAT.md.

struct SeriesOptions {
  // Of each save; `stats` are of the last one.
  SaveOptions save;
  // After a save the last so many steps stay, counted from the saved one down;
  // older ones go, except those that are pinned or multiples of keep_every. 0:
  // all stay. Steps with larger numbers than the saved one are not touched. A
  // step counts if its list of files can be read and these are there; their
  // sizes are not looked at.
  int keep_last = 0;
  // 0: none.
  int64_t keep_every = 0;
  // Of SaveAsync, as in AsyncSaveOptions.
  int64_t staging_budget = 0;
  // Saves write only what has changed; see "Increments".
  bool incremental = false;
  // A second directory, to which each step is copied after it was saved, as
  // from a fast file system to one that lasts; see "Tiers". Empty: none.
  std::string copy_to;
};

// A step as a directory has it.
struct SeriesStep {
  int64_t step = 0;
  // Of its manifest.
  std::string path;
  // OK: it is whole, that is, its manifest is sound, and its files are there
  // and have their sizes; their contents are checked by a load. Otherwise the
  // reason, and save_id, bytes and files may be unset:
  //   kDataLoss            Manifest or files are damaged or incomplete.
  //   kInvalidArgument, kUnimplemented, kResourceExhausted
  //                        The file is not a manifest, or of a later version,
  //                        or exceeds a limit.
  //   others               From the file system: it may well be whole.
  absl::Status status;
  bool pinned = false;
  std::string save_id;
  // Of its files, some of which other steps may name too; those that are
  // missing or have another size count for `files` alone.
  int64_t bytes = 0;
  int64_t files = 0;
};

// The steps in a directory, ascending; of one that is not there, none. Any
// process may call it at any time.
//
// Errors.
//   kDataLoss  All manifests were lost; the message has the command that
//              rebuilds them.
//   others     From the file system, if it does not list the directory.
//
// Cost. Reads the manifests, and opens all files.
absl::StatusOr<std::vector<SeriesStep>> ListSteps(
    const std::string& directory, FileSystem& files = CheckpointFiles());

// Keeps a step, whatever the retention says, until UnpinStep, by an empty file
// beside the manifest: so it survives the end of the job. Any process may call
// them at any time; a step that a running save removes anyway, since it is no
// longer kept, may be gone: pin one that is still kept.
//   kNotFound  PinStep: there is no such step.
//   others     From the file system.
absl::Status PinStep(const std::string& directory, int64_t step,
                     FileSystem& files = CheckpointFiles());
absl::Status UnpinStep(const std::string& directory, int64_t step,
                       FileSystem& files = CheckpointFiles());

// The newest step, as Latest found it.
struct LatestStep {
  int64_t step = 0;
  // Of its manifest, in the directory or the second one.
  std::string path;
  // On rank 0: why newer ones were passed over, the newest first.
  std::vector<std::string> passed_over;
};

struct LatestOptions {
  // True: a step counts as whole only if all that it has in files is sound, as
  // VerifyCheckpoint says. Rank 0 reads the data of the steps that it looks at.
  // The same on all ranks.
  bool read_data = false;
};

// The steps of one job, which each rank saves and loads together with the
// others.
//
// Order. One writer at a time saves to a directory, over all of its steps; each
// save takes the lease, as SaveCheckpoint does. So two jobs destroy nothing of
// one another in a save. Between saves, an object that has saved ends with
// kAborted at its next save if another has saved a step since: of a job that
// lives on beside its restart the restart goes on, and its steps do not fall to
// the retention of the former.
//
// After a rollback. A job may save smaller steps than are there. Those above
// stay, and Latest() goes by number: call RemoveAfter(step) first, where the
// job goes on from `step`, or the next restart finds the steps of the former
// run.
//
// Tiers. With copy_to, once a step is saved, a thread of each rank copies the
// step's files in the background, reads the copies back and checks them by
// their checksums; then the manifest is placed in the second directory by the
// same commit as in the first, with the same retention. So a step is in either
// directory whole or not at all. A save waits for the copy of the step before
// it; after SaveAsync the thread that saves copies, before it is done with the
// step. Both directories are seen by all ranks.
//
// Increments. With `incremental`, each rank writes only the chunks of its
// shards, of 256 KiB, that have changed since the last save of this object, and
// the manifest names the files of former saves that have the others. So a step
// is read as any other, and needs no other step; a file goes with the last step
// that names it. Of a file of which a step would use less than a quarter, that
// part is written again: so the files of a step have at most four times its
// bytes. Nor does a rank refer to more than 128 earlier files: where chunks
// change once and then stay, what is of use of the smallest one is written
// again, which is less than 1 % of the rank's bytes.
//   All is written by the first save of an object, and by one whose names,
//   dtypes, sizes or layouts are not those of the last save; and so does a rank
//   that misses one of its files, as after RemoveAfter. After an error, the
//   next save is compared with the last one that succeeded.
//   Chunks are compared by a hash of 128 bits, XXH3: chance does not deceive
//   it, but a choice of elements can. What is not written is not
//   checked either: a file that is damaged damages all steps that name it.
//   SaveAsync keeps its copies until the save has ended, and Copied() of the
//   next one waits for that. A rank whose copies do not all fit into
//   staging_budget writes all.
//   Memory. 36 bytes per 256 KiB of a rank's shards, and a plan.
//   Cost. One pass over the shards for the hashes; the passes of SaveCheckpoint
//   are over what is written. Unless all is, one more collective brings some
//   ten bytes per piece of a shard to rank 0. Each file that a rank refers to
//   is opened.
//
// Threads. One thread at a time. The background has a group of its own.
class CheckpointSeries {
 public:
  // Creates and changes no file. Collective: every rank of `group`, by default
  // the default group, calls it with the same directory and options but for
  // staging_budget and what SaveOptions does not ask for. One small collective;
  // with copy_to the creation of a group.
  //   kInvalidArgument     directory is empty, or copy_to is the same (where
  //                        that does not show in the paths, the copy says so);
  //                        keep_last or keep_every is negative; or directory,
  //                        copy_to, keep_last, keep_every or incremental differ
  //                        between ranks: the message has both values. On all
  //                        ranks.
  //   kFailedPrecondition  There is neither a `group` nor a default group: on
  //                        this rank alone.
  //   kUnavailable         A rank died or left; the message names it.
  //   kDeadlineExceeded    A rank did not call it within SaveOptions::timeout;
  //                        the message names it.
  //   others               With copy_to, from the creation of a group.
  static absl::StatusOr<CheckpointSeries> Open(
      std::string directory, std::shared_ptr<ProcessGroup> group = nullptr,
      SeriesOptions options = {});

  CheckpointSeries(CheckpointSeries&&) noexcept;
  CheckpointSeries& operator=(CheckpointSeries&&) noexcept;
  // Waits for a copy that runs, unless SaveAsync has begun it; its error is
  // lost.
  ~CheckpointSeries();

  // Saves a step, 0 or more, and then removes the steps that the retention no
  // longer keeps, and the files that no step names. A step that is there
  // already is replaced: at every instant a reader finds the complete old one
  // or the complete new one.
  //
  // Collective, as SaveCheckpoint, whose contract applies: tensors, replicas,
  // buffers, errors, cost. Also:
  //   kInvalidArgument  `step` is negative, or differs between ranks.
  //   any               From the last SaveAsync, once: nothing was saved.
  //   kAborted          Also if another job has saved a step since the first
  //                     save of this object; the message has the manifest's
  //                     path. Nothing was saved, nor will be by this object.
  //   kUnknown          The step is there, and a load finds it, but may not
  //                     outlast a loss of power; or an object store gave no
  //                     answer, and it is there or not. Nothing was removed.
  //   any               From the copy of an earlier step, whose message then
  //                     begins with `copy "`: this step has been saved.
  //
  // Cost. Beside SaveCheckpoint's: the manifests of other steps are read once,
  // by the first save, and again only if another process has saved.
  absl::Status Save(int64_t step,
                    const std::map<std::string, ShardedTensor>& tensors);

  // The same for a state, as the SaveCheckpoint of one.
  absl::Status Save(int64_t step, const StateDict& state);

  // Save beside the program, as SaveCheckpointAsync, whose contract applies:
  // what is copied when, errors of the call and of the handle. Errors of copies
  // to the second directory are those of Flush and of the next Save. That of a
  // state has the one small collective of its overload.
  absl::StatusOr<SaveHandle> SaveAsync(
      int64_t step, const std::map<std::string, ShardedTensor>& tensors);
  absl::StatusOr<SaveHandle> SaveAsync(int64_t step, const StateDict& state);

  // The newest whole step, by number, of either directory; all ranks get what
  // rank 0 finds. Newer ones that are not whole are passed over, with a warning
  // in the log. Collective.
  //   kNotFound            There is no step, and nothing else is meant.
  //   kFailedPrecondition  The path of a directory is that of a file.
  //   kDataLoss            There are steps, and none is whole; the message has
  //                        the reason for the newest. Or the manifests of all
  //                        were lost: `sherd recover` rebuilds them.
  //   others               From the file system: it is not known what a newer
  //                        step is.
  //
  // Cost. On rank 0 the manifest of the newest step, all of whose files are
  // opened, and with `read_data` read; one small collective, and one per second
  // of that.
  absl::StatusOr<LatestStep> Latest(const LatestOptions& options = {});

  // Loads a step as the functions LoadCheckpointInto and LoadCheckpoint do,
  // from the directory if it is whole there, otherwise from the second one; and
  // from that also if data in the first one proves to be damaged, with a
  // warning in the log. Collective.
  //   kNotFound   There is no such step.
  //   kDataLoss   It is damaged, also in the second directory.
  absl::Status LoadInto(int64_t step,
                        const std::map<std::string, ShardedTensor*>& tensors,
                        const LoadOptions& options = {});
  absl::Status LoadInto(int64_t step, StateDict& state,
                        const LoadOptions& options = {});
  absl::StatusOr<std::map<std::string, ShardedTensor>> Load(
      int64_t step, const std::map<std::string, ShardingSpecPtr>& specs,
      const LoadOptions& options = {});

  // Removes all steps above `step`, which may be -1, from both directories, as
  // one writer, then the files that no step names. Collective.
  //   any                  From the last SaveAsync, once: nothing was removed.
  //   kInvalidArgument     `step` differs between ranks; nothing was removed.
  //   kFailedPrecondition  One of them is pinned, in either directory; nothing
  //                        was removed.
  //   kAborted             Another save holds the lease, or has taken it
  //                        meanwhile: then some may be removed.
  //   others               From the file system: some may be removed.
  absl::Status RemoveAfter(int64_t step);

  // Waits for all saves and copies, and returns the error of the last SaveAsync
  // if there is one, otherwise the first of a copy that no Save has returned.
  // Collective.
  absl::Status Flush();

  // As the functions above, in the first directory and, if it is there, the
  // second. Not collective: one rank calls them.
  absl::Status Pin(int64_t step);
  absl::Status Unpin(int64_t step);
  absl::StatusOr<std::vector<SeriesStep>> List() const;

 private:
  struct State;
  explicit CheckpointSeries(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SERIES_H_
