#ifndef SHERD_SERIALIZATION_CHECKPOINT_INCREMENTAL_INCREMENT_H_
#define SHERD_SERIALIZATION_CHECKPOINT_INCREMENTAL_INCREMENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/serialization/checkpoint/incremental/chunk_hash.h"
#include "sherd/serialization/checkpoint/incremental/extent_list.h"
#include "sherd/serialization/checkpoint/incremental/save_base.h"
#include "sherd/serialization/checkpoint/save/kept_plans.h"
#include "sherd/serialization/checkpoint/save/rank_file.h"

namespace sherd {

// A file of which less than this part is of use is given up: what is of use is
// written again. So a checkpoint's files have at most four times its bytes, and
// each byte that is written causes at most a quarter of one to be written
// again.
inline constexpr int64_t kMinLivePart = 4;
// A rank refers to at most so many files of earlier saves; of the others, those
// with the fewest bytes of use, what is of use is written again: less than one
// part in so many of the rank's bytes per save that has one too many. A smaller
// number would cost much where 1 % of the chunks change at random per save:
// after 138 saves a file falls below 1 / kMinLivePart anyway (0.99^138).
inline constexpr size_t kMaxEarlierFiles = 128;
// A shard that would have more extents than one per so many of its chunks is
// written whole, so that a reader's reads have two chunks on average; unless
// they are few.
inline constexpr int64_t kMinChunksPerExtent = 2;
inline constexpr int64_t kFewExtents = 64;

// One rank's part of an incremental save: which chunks of a plan's shards are
// written, and where the others are. An extent names the file that has the
// bytes, whichever save that is from: there are no chains to follow.
class Increment {
 public:
  // Hashes all shards and compares them with `base`, or writes all if that is
  // null. `ahead`: as in RankFileOptions. `progress` is called as HashChunks
  // does.
  // Errors. Of `elements` and `progress`.
  //
  // Cost. One pass over the shards. Memory as SaveBase.
  static absl::StatusOr<Increment> Make(
      std::shared_ptr<const SavePlan> plan, const SavedChunks* base,
      ShardElementsFn elements, bool ahead,
      absl::FunctionRef<absl::Status()> progress);

  // What is written. Parts lie by falling alignment class, in a class by shard
  // and place: where nothing is left out, as in the plan.
  const FileParts& file() const { return file_; }

  // What is not written adds this to the fingerprints of the tensors.
  void AddFingerprints(absl::Span<uint32_t> sums) const;

  // The encoding of its ExtentList; empty if all is written as planned.
  std::string EncodedExtents() const;

  // The base of the next save, once this one has succeeded. `own` is the file
  // that was written, and `fingerprints` are those of WriteRankFile.
  SavedChunks Finish(std::string path, bool sync, ManifestFile own,
                     absl::Span<const uint32_t> fingerprints) &&;

 private:
  explicit Increment(std::shared_ptr<const SavePlan> plan);

  // Of the shard: its bytes, and the index of its first chunk.
  int64_t BytesOf(size_t shard) const { return ShardBytes(*plan_, shard); }
  size_t FirstOf(size_t shard) const {
    return static_cast<size_t>(plan_->shards[shard].first_chunk - 1);
  }
  int64_t ChunkLength(size_t shard, int64_t chunk) const;
  // Whether chunk number `chunk` and the one before it are in one extent.
  bool Continues(size_t chunk) const;
  // Calls visit(first, end) for the chunks of each extent of a shard, counted
  // from its first one.
  void ForEachExtent(size_t shard,
                     absl::FunctionRef<void(int64_t, int64_t)> visit) const;

  void KeepUnchanged(const SavedChunks& base);
  void GiveUpFiles(const SavedChunks& base);
  // Of each file of the base, the bytes that this save does not write.
  std::vector<int64_t> LiveBytes(const SavedChunks& base) const;
  void WriteScatteredShards();
  void PlaceParts();
  void NumberFiles(const SavedChunks& base);
  void DescribeParts();
  SavedExtents ExtentsOf(size_t shard) const;

  std::shared_ptr<const SavePlan> plan_;
  // By chunk. Until they are numbered anew, files are those of the base.
  std::vector<ChunkHash> hashes_;
  std::vector<ChunkPlace> places_;
  std::vector<uint32_t> fingerprints_;
  std::vector<bool> written_;
  // As SavedChunks has them; the first is not known yet.
  std::vector<ManifestFile> files_;
  FileParts file_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_INCREMENTAL_INCREMENT_H_
