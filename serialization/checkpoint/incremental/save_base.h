#ifndef SHERD_SERIALIZATION_CHECKPOINT_INCREMENTAL_SAVE_BASE_H_
#define SHERD_SERIALIZATION_CHECKPOINT_INCREMENTAL_SAVE_BASE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sherd/core/base/file.h"
#include "sherd/serialization/checkpoint/incremental/chunk_hash.h"
#include "sherd/serialization/checkpoint/save/kept_plans.h"
#include "sherd/serialization/manifest/manifest.h"

namespace sherd {

// Where a chunk of a shard is: the first byte, from the data_begin of the file;
// the position of its CRC there; and the file.
struct ChunkPlace {
  int64_t data_offset = 0;
  int32_t chunk = 0;
  // Index into SavedChunks::files.
  int32_t file = 0;
};

// The chunks of one rank's shards as a save has left them.
struct SavedChunks {
  // The directory, and whether the files in it are durable.
  std::string path;
  bool sync = false;
  std::shared_ptr<const SavePlan> plan;
  // Those that `places` refer to, all written by this rank: that of the save,
  // then those of earlier saves.
  std::vector<ManifestFile> files;
  // Chunk number i of a shard of the plan is number first_chunk - 1 + i here.
  std::vector<ChunkHash> hashes;
  std::vector<ChunkPlace> places;
  // What each adds to the fingerprint of its tensor (BoxFingerprint).
  std::vector<uint32_t> fingerprints;
};

// What one rank remembers of the last save to a directory, so that the next one
// writes only the chunks that have changed, and refers to the others where they
// are: see SaveJob::base. A chunk has changed unless its 128-bit hash is equal.
//
// Whose. Each rank has its own, and passes it to each save to the directory; an
// empty one makes a save remember. It is in memory only: after a restart the
// first save is whole.
//
// Fit. A save whose base does not fit writes all, and so does a rank whose base
// alone does not: if names, layouts, ranks or directory differ, a file is
// missing or has another size, or the files were saved without `sync` and the
// new save has it. So a base is never wrong, only of no use: files may be
// removed, other saves may come in between.
//
// After an error of a save the base is what it was.
//
// Memory. 36 bytes per 256 KiB of this rank's shards, and the plan. Copies
// share it.
//
// Cost. A save hashes this rank's shards in one pass, and makes a second one
// over what it writes. If any rank leaves something out, one more collective
// brings the lists of extents to rank 0: some ten bytes per extent, and per
// shard of such a rank. Each file that the base refers to is opened once.
//
// Damage. What a save refers to is not read again: a file that is damaged
// damages all steps that refer to it, as VerifyCheckpoint finds. Clear() makes
// the next save write all.
//
// Threads. Of one save at a time.
class SaveBase {
 public:
  // Of the last save; null if there was none.
  const SavedChunks* last() const { return last_.get(); }
  void Set(SavedChunks chunks) {
    last_ = std::make_shared<const SavedChunks>(std::move(chunks));
    used_ = true;
  }
  // A save has succeeded of which this rank wrote all without looking at it.
  void MarkUsed() { used_ = true; }
  // Whether a save has succeeded: as that is known to all ranks alike, until
  // then all write all.
  bool is_used() const { return used_; }
  // The next save is whole.
  void Clear() { last_.reset(); }

 private:
  std::shared_ptr<const SavedChunks> last_;
  bool used_ = false;
};

// What `base` has, if a save of `plan` to the directory `path` can refer to it;
// otherwise null.
//
// Cost. Opens each file.
const SavedChunks* FittingChunks(const SaveBase& base, const SavePlan& plan,
                                 const std::string& path, bool sync,
                                 FileSystem& files);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_INCREMENTAL_SAVE_BASE_H_
