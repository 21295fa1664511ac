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
  // Files are read by this many threads.
  int threads = 2;
};

struct VerifyReport {
  int64_t tensors = 0;
  int64_t files = 0;
  // Bytes of the data files that were read and checked, all of them.
  int64_t bytes = 0;
};

// Reads all of a checkpoint and checks everything there is to check: manifest,
// headers, sizes, that the shards are where the headers say, every CRC. One
// process, no group.
//   kDataLoss  The first damage, by file, tensor and offset, and how many more
//              there are.
absl::StatusOr<VerifyReport> VerifyCheckpoint(
    const std::string& path, const VerifyOptions& options = {});

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_VERIFY_H_
