#ifndef SHERD_TESTING_POWER_LOSS_FILES_H_
#define SHERD_TESTING_POWER_LOSS_FILES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/file.h"

namespace sherd::testing {

// The files below a directory, and what a loss of power would leave of them:
//
//   PowerLossFiles files(FileSystem::Posix(), directory);
//   files.CutPowerAt(17);
//   ... code under test, with `files` ...
//   for (uint64_t seed = 0; seed < 10; ++seed) {
//     ASSERT_THAT(files.WriteSurvivors(seed, other_directory), IsOk());
//     ... whether the code finds in `other_directory` what it promised ...
//   }
//
// Every operation is done on the wrapped file system too. Beside that this
// records what no sync has covered yet; a loss of power keeps any part of it:
//   - Contents (a write, or the truncation by Create) last once File::Sync of
//     the file returned OK. Of others, each is lost, kept, or torn at blocks of
//     4 KiB of the file; of two that overlap the earlier may be kept alone. A
//     write that failed stays in doubt for ever.
//   - Names (of created files and directories, renames, removals) last once
//     SyncDirectory of their directory returned OK. Each of the others is lost
//     or kept, whatever becomes of those before it; a rename that is kept may
//     leave the former name beside the new one.
// A sync covers nothing else: not the name of the file, nor files of the
// directory, nor the directory's own name. This is less than ext4 and XFS keep,
// and what POSIX promises.
//
// What exists in `directory` at first counts as durable. Links are not known,
// and a directory cannot be renamed (kUnimplemented). Outside of `directory`
// operations are passed on and not recorded, but counted.
//
// Threads. Any, as FileSystem; a test with several ranks gives all the same.
//
// Cost. Holds all contents in memory, written data twice.
class PowerLossFiles final : public FileSystem {
 public:
  // `files` is borrowed, and outlives this. Reads the directory, which must
  // exist; an error ends the program.
  PowerLossFiles(FileSystem& files, const std::string& directory);
  ~PowerLossFiles() override;

  // From operation number `operation` on, counted from 1, each fails with
  // kUnavailable and does nothing.
  void CutPowerAt(int64_t operation);

  // Operations so far, of this and its files, after the cut too.
  int64_t operations() const;

  // Makes `directory`, in the file system of the process, hold one of the
  // outcomes of a loss of power now: that of number 0 has all that was not
  // synced, 1 nothing of it, 2 its names alone, 3 its contents alone; greater
  // numbers are random. Call it once all operations have returned.
  absl::Status WriteSurvivors(uint64_t seed,
                              const std::string& directory) const;

  absl::StatusOr<std::unique_ptr<File>> OpenForRead(
      const std::string& path) override;
  absl::StatusOr<std::unique_ptr<File>> Create(
      const std::string& path) override;
  absl::Status CreateDirectories(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status RenameNew(const std::string& from,
                         const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status RemoveAll(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::StatusOr<FileKind> KindOf(const std::string& path) override;
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override;

 private:
  class RecordedFile;
  struct Node;
  using NodePtr = std::shared_ptr<Node>;

  // `name` is given to `node`, or taken away if that is null.
  struct NameChange {
    std::string name;
    NodePtr node;
    // The name that a rename takes away, or "".
    std::string former;
  };

  // Counts an operation.
  //   kUnavailable  The power is off.
  absl::Status Begin(absl::string_view what, const std::string& path);
  // The path below the directory; "" is the directory, nullopt is outside.
  std::optional<std::string> NameOf(const std::string& path) const;
  size_t CountChanges() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Change(NameChange change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status RecordRename(const std::string& from, const std::string& to,
                            const absl::Status& renamed);
  void ReadTree(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  FileSystem& files_;
  const std::string root_;
  // Held while a name is changed and that is recorded: in one order.
  absl::Mutex names_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  mutable absl::Mutex mutex_;
  int64_t operations_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t cut_at_ ABSL_GUARDED_BY(mutex_);
  // By name. What is there, and what a sync has covered.
  std::map<std::string, NodePtr> names_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, NodePtr> durable_names_ ABSL_GUARDED_BY(mutex_);
  // In order.
  std::vector<NameChange> changes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_POWER_LOSS_FILES_H_
