#ifndef SHERD_TOOLS_BENCH_CASES_CHECKPOINT_REFERENCE_H_
#define SHERD_TOOLS_BENCH_CASES_CHECKPOINT_REFERENCE_H_

#include <any>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/tools/bench/harness/bench_case.h"
#include "sherd/tools/bench/harness/rank_context.h"
#include "sherd/tools/bench/peers/box_layout.h"

namespace sherd {

// Where rows are in a checkpoint: no file if there are none.
struct SavedRows {
  const ManifestFile* file = nullptr;
  // From the start of the file.
  int64_t offset = 0;
};

// Of the one tensor of the manifest.
SavedRows FindRows(const Manifest& manifest, const WordBox& rows);

// A checkpoint that Sherd wrote, spread by rows, and what a plain program has
// to know to read it or to write the same.
class CheckpointReference {
 public:
  static constexpr char kTensorName[] = "weight";

  // The one that the peers of this rank share. Collective: the first call saves
  // the checkpoint.
  static absl::StatusOr<std::shared_ptr<const CheckpointReference>> Get(
      RankContext& context);

  const WordTensor& matrix() const { return matrix_; }
  // The rows that `rank` saved; a box without words if none.
  WordBox RowsOf(int rank) const {
    return rows_[rank].empty() ? WordBox() : rows_[rank].front();
  }
  int world() const { return static_cast<int>(rows_.size()); }
  const std::string& path() const { return path_; }
  const ShardedTensor& tensor() const { return tensor_; }
  // The bytes of the manifest's file.
  const std::string& manifest_bytes() const { return manifest_bytes_; }

  absl::Status Save(const std::string& path) const;

  // Whether the checkpoint `path` has the rows of `rank`.
  //   kDataLoss  It has others, or none.
  absl::Status CheckSaved(const std::string& path, int rank) const;

  // Where the rows of `rank` are.
  SavedRows SavedRowsOf(int rank) const {
    return FindRows(manifest_, RowsOf(rank));
  }

 private:
  absl::Status Init(RankContext& context);

  WordTensor matrix_;
  BoxLayout rows_;
  std::string path_;
  ShardedTensor tensor_;
  Manifest manifest_;
  std::string manifest_bytes_;
};

using CheckpointReferencePtr = std::shared_ptr<const CheckpointReference>;

// In blocks of 8 MiB, as plain programs read and write.
absl::Status ReadBlocks(File& file, int64_t offset, absl::Span<std::byte> to);
absl::Status WriteBlocks(File& file, int64_t offset,
                         absl::Span<const std::byte> from);

// As BenchCase::check: there is space for twice what is saved, beside the
// reference, with room for headers.
absl::Status CheckCheckpointSpace(int world, int64_t bytes,
                                  const std::string& directory);

// PyTorch, which does the work that `work_of` says (see torch_checkpoint.py) of
// a matrix of the task's bytes, over its Gloo.
BenchPeer TorchCheckpointPeer(const char* name, const char* help,
                              std::function<std::string(int world)> work_of);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_CHECKPOINT_REFERENCE_H_
