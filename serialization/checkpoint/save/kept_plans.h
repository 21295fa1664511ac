#ifndef SHERD_SERIALIZATION_CHECKPOINT_SAVE_KEPT_PLANS_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SAVE_KEPT_PLANS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/box.h"
#include "sherd/serialization/checkpoint/save/last_of_groups.h"
#include "sherd/serialization/checkpoint/save/manifest_plan.h"
#include "sherd/serialization/checkpoint/save/save_layout.h"
#include "sherd/serialization/checkpoint/save/save_plan.h"
#include "sherd/serialization/manifest/data_file.h"

namespace sherd {

// A shard in this rank's file, and where its elements are.
struct PlannedShard {
  // Position among the tensors, and number in its layout.
  int32_t tensor = 0;
  int64_t shard = 0;
  // In the global tensor; inside the shard number `held` of its metadata.
  Box box;
  size_t held = 0;
  int64_t data_offset = 0;
  int64_t first_chunk = 0;
  int64_t chunks = 0;
};

// All that a rank needs to save tensors of the same names and layouts as often
// as it likes.
struct SavePlan {
  // Of what all ranks must have in common.
  uint64_t fingerprint = 0;
  int64_t tensor_bytes = 0;
  // In the order of the file; none: the rank has no file.
  std::vector<PlannedShard> shards;
  int64_t chunks = 0;
  // Without the save_id.
  DataFileContents contents;
  // If they are to be compared.
  std::vector<ReplicaSet> replicas;
  // On rank 0.
  ManifestPlan manifest;
};

// The part of a plan that needs only layouts: the file of `rank`, with neither
// `held` of its shards nor a manifest.
SavePlan PlanOwnFile(const SaveLayout& layout, int rank);

// The plans of the last saves of each group: a program that saves the same
// tensors again and again plans once.
//
// Memory. As LastOfGroups; each plan some 300 bytes per tensor and, if replicas
// are compared, per box that this rank holds with others. On rank 0 twice that,
// the boxes of tensors that are not chunked in a regular way, and what
// PlanManifest takes.
//
// Threads. Safe.
class KeptPlans {
 public:
  // Those of this process. Lives forever.
  static KeptPlans& Get();

  // The plan for tensors that have been checked, which are defined. Errors as
  // SaveLayoutBuilder, EncodeDataFileHeader and, on rank 0, EncodeManifest, of
  // which only the size of a manifest may differ when it is written; none is
  // kept.
  absl::StatusOr<std::shared_ptr<const SavePlan>> PlanFor(
      const std::shared_ptr<ProcessGroup>& group,
      const std::map<std::string, ShardedTensor>& tensors, bool find_replicas);

  // How many plans this process has made.
  int64_t plans_made() const { return plans_made_; }

 private:
  // What a plan depends on: names, and what identifies each tensor's layout,
  // its owners, and the properties that are saved.
  struct Key {
    bool find_replicas = false;
    std::vector<std::pair<std::string, uint64_t>> tensors;

    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Entry {
    Key key;
    std::shared_ptr<const SavePlan> plan;
  };

  static Key KeyOf(const std::map<std::string, ShardedTensor>& tensors,
                   bool find_replicas);

  LastOfGroups<std::shared_ptr<const Entry>> plans_;
  std::atomic<int64_t> plans_made_ = 0;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SAVE_KEPT_PLANS_H_
