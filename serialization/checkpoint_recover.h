#ifndef SHERD_SERIALIZATION_CHECKPOINT_RECOVER_H_
#define SHERD_SERIALIZATION_CHECKPOINT_RECOVER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/core/base/file.h"

namespace sherd {

struct RecoverOptions {
  // Null: CheckpointFiles().
  FileSystem* files = nullptr;
};

struct RecoverReport {
  // Of the manifest.
  std::string path;
  std::string save_id;
  int64_t tensors = 0;
  int64_t files = 0;
  // Bytes of all data files, which were read and checked.
  int64_t bytes = 0;
  // Why newer saves were passed over, by file and tensor.
  std::vector<std::string> passed_over;
};

// Rebuilds the manifest of the checkpoint `path`, which was lost or damaged,
// from its data files: those of the newest save of which all files are there
// and sound. `path` is a directory, or the path of a manifest, also one that is
// not there: of a step of a series, whose number data files have. Not
// collective: one process calls it, and no save may run. The files and the
// manifest are made durable before it gets its name, so that one is there after
// a crash, or none.
//
// A save that wrote only what had changed (save_base.h) is rebuilt if the files
// of earlier saves that it refers to are there, too.
//
// What data files do not say is lost: the placements of shards without
// elements, and a save that has no element at all, since it writes no file.
//   kAlreadyExists  There is a manifest, and it can be read.
//   kNotFound       There are no data files of version 2.
//   kDataLoss       No save is complete: a file, also one of an earlier save
//                   that it refers to, is missing or damaged, or elements of a
//                   tensor are in none; the message names them, of the newest
//                   save.
//   kAborted        A save is running: see CheckpointLease.
//   kUnimplemented  The manifest, or a data file, is of a later version.
//   others          From the file system.
//
// Cost. Reads all data files of the save and those that it refers to, and of
// these what it refers to once more.
absl::StatusOr<RecoverReport> RecoverManifest(
    const std::string& path, const RecoverOptions& options = {});

// The paths of the manifests that are damaged, or that are not there although
// data files in the directory are of a save of them, in the order of names. A
// save all of whose files are named by manifests is not looked at: a step that
// was removed leaves those to which later steps refer. RecoverManifest takes
// the path of such a one, too.
//   kAlreadyExists  All manifests can be read.
//   others          As RecoverManifest.
//
// Cost. Reads the headers of all data files, and all manifests.
absl::StatusOr<std::vector<std::string>> FindLostManifests(
    const std::string& directory, const RecoverOptions& options = {});

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_RECOVER_H_
