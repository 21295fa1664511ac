#ifndef SHERD_SERIALIZATION_CHECKPOINT_VERIFY_H_
#define SHERD_SERIALIZATION_CHECKPOINT_VERIFY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/file.h"

namespace sherd {

// The chunks of data files that calls which share it have found sound: of
// checkpoints that share files, as the steps of a series, such a call does not
// read them again, unless they are of a shard that is not contiguous in its
// tensor. 16 bytes per chunk of 256 KiB.
//
// Threads. Safe.
class SoundChunks {
 public:
  // Whether chunk number `chunk` of `file`, whatever distinguishes that from
  // all others, was added as the same bytes: `bytes` > 0 of them from `offset`
  // in the data of the file on.
  bool Contains(const std::string& file, int64_t chunk, int64_t offset,
                int64_t bytes) const;
  void Add(const std::string& file, int64_t chunk, int64_t offset,
           int64_t bytes);

 private:
  struct Place {
    int64_t offset = 0;
    // 0: not known to be sound.
    int64_t bytes = 0;

    friend bool operator==(const Place&, const Place&) = default;
  };

  mutable absl::Mutex mutex_;
  // By number of the chunk.
  absl::flat_hash_map<std::string, std::vector<Place>> chunks_
      ABSL_GUARDED_BY(mutex_);
};

struct VerifyOptions {
  // Null: CheckpointFiles().
  FileSystem* files = nullptr;
  // Null: all is read.
  SoundChunks* known = nullptr;
  // The number of threads that read files.
  int threads = 2;
  // Called on this thread as reading goes on; its error ends the call, and is
  // returned. Not by VerifyDataFile.
  std::function<absl::Status()> progress = nullptr;
};

struct VerifyReport {
  int64_t tensors = 0;
  int64_t files = 0;
  // Bytes of data files that were read and checked: all of them, but for what
  // was known.
  int64_t bytes = 0;
};

// Reads a whole checkpoint of either version and checks manifest, headers,
// sizes, the positions of shards in the headers, every CRC, and the fingerprint
// of each tensor, if there are any; of files of earlier saves that the manifest
// refers to, headers and what it refers to. One process, no group.
//   kDataLoss  The message has the first damage, with file, tensor and offset,
//              and the number of further ones.
absl::StatusOr<VerifyReport> VerifyCheckpoint(
    const std::string& path, const VerifyOptions& options = {});

// Reads one data file, which need not be in a checkpoint, and checks it by its
// own checksums.
//   kDataLoss  It is damaged, the message has tensor and offset; or it is not a
//              data file of version 2, and has no checksums.
absl::StatusOr<VerifyReport> VerifyDataFile(const std::string& path,
                                            const VerifyOptions& options = {});

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_VERIFY_H_
