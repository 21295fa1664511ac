#ifndef SHERD_SERIALIZATION_ARCHIVE_H_
#define SHERD_SERIALIZATION_ARCHIVE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/device.h"

namespace sherd {

// An archive: one rank's state in one file, or in any other row of bytes.
// FORMAT.md specifies it.
//
//     SHERD_RETURN_IF_ERROR(Save(state, absl::StrCat("state.", rank)));
//     …
//     SHERD_ASSIGN_OR_RETURN(StateDict state,
//                            Load(absl::StrCat("state.", rank)));
//
// Of a sharded tensor it has this rank's shards only, so every rank saves an
// archive of its own, and loads it where it was saved: with the same rank and
// the same number of ranks. A checkpoint (checkpoint.h) is one for all ranks,
// and loads on any number of them.
//
// No code. An archive holds values; loading one executes nothing of it, and any
// bytes may be given to Load.

// Where an archive goes: bytes, from the first to the last.
class ArchiveSink {
 public:
  virtual ~ArchiveSink() = default;
  // Takes all of `bytes`, which are the caller's again on return. After an
  // error it is not called again.
  virtual absl::Status Append(absl::Span<const std::byte> bytes) = 0;
};

// Where an archive is. Safe from several threads.
class ArchiveSource {
 public:
  virtual ~ArchiveSource() = default;
  virtual absl::StatusOr<int64_t> Size() = 0;
  // Fills all of `buffer` from `offset` on.
  //   kDataLoss  The bytes end before that.
  virtual absl::Status ReadAt(int64_t offset, absl::Span<std::byte> buffer) = 0;
  // For messages.
  virtual std::string name() const = 0;
};

struct ArchiveSaveOptions {
  // Null: CheckpointFiles(). In any other one, the file is created beside
  // `path` and renamed, whatever the path begins with. So one that wraps
  // CheckpointFiles() takes archives in stores by names that end in ".sherd"
  // alone; others are kInvalidArgument.
  FileSystem* files = nullptr;
  // Makes the file durable. Without it a power failure may leave part of it
  // under its name.
  bool sync = true;
};

// Saves all of `state`. Elements are read once and in order; beside their
// tensors, a few hundred KiB of them are in memory at a time, or, of tensors on
// devices, 8 MiB.
//
// Tensors. Each keeps dtype, sizes, device and whether it is pinned. Tensors
// with elements in common share them again after a load, in a storage that has
// no more than their part of the former one, and up to 7 bytes. A tensor whose
// elements lie in its part of the storage without gaps, as in the memory format
// channels_last, keeps its strides; another is contiguous afterwards, unless it
// shares elements.
//
// Sharded tensors. With this rank's shards are saved the metadata, the spec
// (one of a class of your own is inferred at load), where this rank is in the
// group of the tensor and in the default group, and whether the tensor was
// created with init_rrefs. A shard of a group that is not contiguous, as of a
// view, is a copy afterwards. Not collective; non-members of the group save
// too.
//
// Files. `path` has its former contents or all of the new ones at any moment,
// also after a crash. The name of the file until then is `path`, the process
// id, a number and ".tmp", joined by dots; a crash leaves it. A path may lead
// to an object store (checkpoint_files.h).
//
// Errors. The message has the name of the value.
//   kInvalidArgument     A tensor or sharded tensor is undefined, or has
//                        metadata that SerializeMetadata refuses.
//   kFailedPrecondition  "Need to initialize default process group", for a
//                        sharded tensor with a group.
//   kResourceExhausted   There is not enough space; the tree without elements
//                        has more than 2^30 bytes, or would take more memory
//                        than a load allows.
//   kUnknown             The file is there, but could not be made durable.
//   others               Of files, devices, and ArchiveSink::Append.
//
// Devices. Waits for the work that is queued on the current streams.
absl::Status Save(const StateDict& state, const std::string& path,
                  const ArchiveSaveOptions& options = {});
absl::Status Save(const StateDict& state, ArchiveSink& sink);
absl::StatusOr<std::string> SaveToString(const StateDict& state);

struct ArchiveLoadOptions {
  // Null: CheckpointFiles().
  FileSystem* files = nullptr;
  // Tensors in host memory, unless pinned, are read-only views of the mapped
  // file: pages are read when they are accessed, and CRCs are not checked (see
  // Archive::Verify). Only for a path in the machine's own file system. See
  // Storage::MapFile about files that others truncate.
  bool map = false;
  // Where tensors that are not sharded go, instead of the device of each.
  std::optional<Device> device = std::nullopt;
};

// Loads the whole state into new memory. The CRC of every element is checked.
//
// Sharded tensors. They are over the group of the ScopedLoadGroup of this
// thread, or else over the default group, and must be where they were saved:
// see Errors. One that was created with init_rrefs publishes its shards again,
// in the order of the tree: that is collective over its group, an error of one
// member is an error of all of them, and non-members return at once. Otherwise
// nothing is collective. A rank whose archive does not open, or whose tree
// cannot be read, does not know of the others: they wait for it until the
// timeout of the group, and workers outside the group cannot read what the
// members publish later over it. So check first that each rank has its archive.
//
// Errors. The message has the source, and the name of the value.
//   kNotFound            There is no such file.
//   kDataLoss            Not an archive, cut short, or damaged: where, and what
//                        was expected.
//   kUnimplemented       A later version wrote it; or there is no driver for a
//                        device.
//   kFailedPrecondition  For sharded tensors with a group, in this order: "Need
//                        to initialize default process group"; "Local rank at
//                        save time was N, but at load time was M", "Global rank
//                        at save time was", "Local world size at save time
//                        was", "Global world size at save time was"; "RPC
//                        Framework needs to be initialized".
//                        Or options.device was made from malformed text.
//   kInvalidArgument     options.map without a path, or with one that begins
//                        with a scheme; or the path is that of a directory.
//   kResourceExhausted   No memory.
//   others               Of files, devices, and of
//                        ShardedTensor::FromLocalShardsAndMetadata.
//
// Memory. Checked before it is taken: the tree, by an upper bound, at most 2^33
// bytes; elements at most as large as the archive, in each of: the memory that
// tensors were in, pinned memory, and options.device.
absl::StatusOr<StateDict> Load(const std::string& path,
                               const ArchiveLoadOptions& options = {});
absl::StatusOr<StateDict> Load(std::shared_ptr<ArchiveSource> source,
                               const ArchiveLoadOptions& options = {});
absl::StatusOr<StateDict> LoadFromString(
    absl::string_view bytes, const ArchiveLoadOptions& options = {});

// An open archive, of which values are loaded by name when they are needed.
//
// Value. A handle; copies share the open file.
//
// Threads. Safe.
class Archive {
 public:
  // Reads the tree and checks it, without elements; neither default group nor
  // RPC are needed. Ranks that load with one whose archive did not open wait
  // for it.
  //   kNotFound            There is no such file.
  //   kInvalidArgument     The path is that of a directory, or begins with the
  //                        scheme of no store and "://"; or options.map without
  //                        a path, or with one that begins with a scheme.
  //   kFailedPrecondition  options.device was made from malformed text.
  //   kUnimplemented       A later version wrote it.
  //   kDataLoss            Not an archive, cut short, or damaged: where, and
  //                        what was expected.
  //   others               From the file system.
  static absl::StatusOr<Archive> Open(const std::string& path,
                                      const ArchiveLoadOptions& options = {});
  static absl::StatusOr<Archive> Open(std::shared_ptr<ArchiveSource> source,
                                      const ArchiveLoadOptions& options = {});

  // The state without elements: tensors are on meta, and sharded tensors have
  // no group and no shards.
  const StateDict& contents() const;

  // All of it; as Load above.
  absl::StatusOr<StateDict> Load() const;

  // The value of that name (see StateDict) with all that is in it; nothing else
  // is read. Tensors of one call share elements as those that were saved.
  //   kNotFound, kOutOfRange, kInvalidArgument  As StateDict::Find.
  //   others                                    As Load above.
  absl::StatusOr<StateValue> Load(absl::string_view name) const;

  // Reads everything and checks all CRCs.
  //   kDataLoss  The archive is damaged: where.
  absl::Status Verify() const;

 private:
  struct State;
  explicit Archive(std::shared_ptr<const State> state);

  std::shared_ptr<const State> state_;
};

// While it exists, sharded tensors that this thread loads are over `group`
// instead of the default group:
//
//     SHERD_ASSIGN_OR_RETURN(const auto scope, ScopedLoadGroup::Create(group));
//     SHERD_ASSIGN_OR_RETURN(const StateDict state, Load(path));
//
// Threads. Destroyed on the thread that created it. Other threads are not
// affected.
class ScopedLoadGroup {
 public:
  // This process need not be a member of `group`.
  //   kFailedPrecondition  "ProcessGroup already set by previous
  //                        ScopedLoadGroup": there is one on this thread.
  //   kInvalidArgument     `group` is null.
  static absl::StatusOr<ScopedLoadGroup> Create(
      std::shared_ptr<ProcessGroup> group);

  ScopedLoadGroup(ScopedLoadGroup&& other) noexcept;
  ScopedLoadGroup& operator=(ScopedLoadGroup&&) = delete;
  ~ScopedLoadGroup();

 private:
  ScopedLoadGroup() = default;

  // False after a move.
  bool active_ = true;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_ARCHIVE_H_
