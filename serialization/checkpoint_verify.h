#ifndef SHERD_SERIALIZATION_CHECKPOINT_VERIFY_H_
#define SHERD_SERIALIZATION_CHECKPOINT_VERIFY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "sherd/core/base/file.h"

namespace sherd {

struct VerifyOptions {
  // Null: FileSystem::Posix().
  FileSystem* files = nullptr;
  // The number of threads that read files.
  int threads = 2;
};

struct VerifyReport {
  int64_t tensors = 0;
  int64_t files = 0;
  // Bytes of all data files, which were read and checked.
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
