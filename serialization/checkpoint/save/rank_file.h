#ifndef SHERD_SERIALIZATION_CHECKPOINT_SAVE_RANK_FILE_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SAVE_RANK_FILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint/host_share.h"
#include "sherd/serialization/checkpoint/save/kept_plans.h"
#include "sherd/serialization/checkpoint/save/replica_check.h"
#include "sherd/serialization/checkpoint/save/tensor_runs.h"
#include "sherd/serialization/manifest/data_file.h"

namespace sherd {

// What rank 0 must know about the file of a rank; sent as it is in memory. All
// 0: it has none.
struct RankFileReport {
  int64_t size = 0;
  int64_t data_begin = 0;
  int64_t chunks = 0;
  uint32_t crc32c = 0;
  // Of the rank's extents, if they are not those of the plan (extent_list.h).
  uint32_t extent_bytes = 0;
  // Of rank 0: 1 if the directory has other manifests.
  int64_t is_shared = 0;
  // After the last write, until the medium had all.
  absl::Duration sync = absl::ZeroDuration();
};

// Bytes of a shard of a plan, in a file.
struct FilePart {
  // Index in SavePlan::shards.
  size_t shard = 0;
  // Begins at a chunk of the shard, and ends at one or with it.
  ByteRange range;
  // As in SavedExtent.
  int64_t data_offset = 0;
  int64_t first_chunk = 0;
  int64_t chunks = 0;
};

// What a data file holds, in its order.
struct FileParts {
  // Without the save_id.
  DataFileContents contents;
  std::vector<FilePart> parts;
  int64_t data_bytes = 0;
  int64_t chunks = 0;
};

// All shards of a plan.
FileParts AllParts(const SavePlan& plan);

// The bytes of a shard, by its index.
int64_t ShardBytes(const SavePlan& plan, size_t shard);

struct RankFileOptions {
  // As in DataFileContents.
  std::string save_id;
  std::optional<int64_t> step;
  // As in SaveOptions.
  bool sync = true;
  int64_t max_unsynced_bytes = int64_t{256} << 20;
  // That write at the same time, each at least kMinThreadBytes.
  int threads = 1;
  // Whether elements may be asked for while those before them are written.
  bool ahead = false;
};

// Finds the elements of a shard of the plan. Thread-safe, if several threads
// write.
using ShardElementsFn =
    absl::FunctionRef<absl::StatusOr<Tensor>(const PlannedShard&)>;

// Writes the data file of one rank: creates `path`, and makes its contents, not
// its name, durable if `options` say so. A rank without shards gets none.
// `tensors` are those of the plan, and `sums` has an entry for each, to which
// what is written of it adds to its fingerprint, by XOR. `fingerprints`, unless
// null, receives that of each chunk, in the order of the file. `progress` is
// called on this thread after writes; its error ends the work.
//
// Errors. Of `elements`, of the file system, and as EncodeDataFileHeader; those
// of a shard name its tensor. An incomplete file remains.
//
// Cost. As AppendTensor for each shard, divided among the threads. With `sync`,
// the disk is given the data while the next is written.
absl::StatusOr<RankFileReport> WriteRankFile(
    FileSystem& files, const std::string& path, const SavePlan& plan,
    FileParts parts, absl::Span<const NamedTensor> tensors,
    ShardElementsFn elements, const RankFileOptions& options,
    const std::function<absl::Status()>& progress, absl::Span<uint32_t> sums,
    std::vector<uint32_t>* fingerprints = nullptr);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SAVE_RANK_FILE_H_
