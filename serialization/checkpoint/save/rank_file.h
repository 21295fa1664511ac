#ifndef SHERD_SERIALIZATION_CHECKPOINT_SAVE_RANK_FILE_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SAVE_RANK_FILE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint/save/kept_plans.h"
#include "sherd/serialization/checkpoint/save/replica_check.h"

namespace sherd {

// What rank 0 must know about the file of a rank; sent as it is in memory. All
// 0: it has none.
struct FileReport {
  int64_t size = 0;
  int64_t data_begin = 0;
  int64_t chunks = 0;
  uint32_t crc32c = 0;
  uint32_t reserved = 0;
};

struct RankFileOptions {
  // As in SaveOptions.
  bool sync = true;
  int64_t max_unsynced_bytes = int64_t{256} << 20;
};

// Finds the elements of a shard of the plan.
using ShardElementsFn =
    absl::FunctionRef<absl::StatusOr<Tensor>(const PlannedShard&)>;

// Writes the data file of one rank: creates `path`, and makes its contents, not
// its name, durable if `options` say so. `tensors` are those of the plan, and
// `sums` has an entry for each, to which the linear CRC of what is written of
// it is added by XOR. `progress` is called after each write; its error ends the
// work.
//
// Errors. Of `elements`, of the file system, and as EncodeDataFileHeader; those
// of a shard name its tensor. An incomplete file remains.
//
// Cost. As AppendTensor for each shard. With `sync`, the disk is given the data
// while the next is written.
absl::StatusOr<FileReport> WriteRankFile(
    FileSystem& files, const std::string& path, const SavePlan& plan,
    const std::string& save_id, absl::Span<const NamedTensor> tensors,
    ShardElementsFn elements, const RankFileOptions& options,
    const std::function<absl::Status()>& progress, absl::Span<uint32_t> sums);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SAVE_RANK_FILE_H_
