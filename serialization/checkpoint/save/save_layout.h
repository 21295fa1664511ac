#ifndef SHERD_SERIALIZATION_CHECKPOINT_SAVE_SAVE_LAYOUT_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SAVE_SAVE_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/box.h"
#include "sherd/serialization/checkpoint/save/save_plan.h"
#include "sherd/serialization/checkpoint/sharded_layout.h"

namespace sherd {

// Assigns each element of a shard that several ranks hold to one owner; large
// shards in parts, so that all of them write. `load` counts the bytes of each
// rank, from tensor to tensor; with `host_of_rank`, hosts are balanced first,
// as each has one way to the disk. Without replicas the layout is unchanged.
void AssignReplicaOwners(TensorToSave& tensor, absl::Span<int64_t> load,
                         absl::Span<const int> host_of_rank = {});

// A shard that this rank writes, and the one of its own that it is part of.
struct OwnShard {
  // As in FileShard.
  int32_t tensor = 0;
  int64_t shard = 0;
  // Index in the tensor's metadata.
  size_t held = 0;
};

// A box of a tensor that several ranks hold, this one among them.
struct ReplicaSet {
  // Index into SaveLayout::tensors.
  int32_t tensor = 0;
  Box box;
  // The ranks that hold it, ascending. Sets share equal lists.
  std::shared_ptr<const std::vector<int>> holders;
  // The one of them that compares: another one from set to set.
  int comparer = 0;
  // Indices in the tensor's metadata of this rank's own, which may be several,
  // on different devices.
  std::vector<size_t> held;
};

// Makes the layout of a save from tensors.
//
// Memory. The boxes of one tensor at a time, besides what SaveLayout takes, and
// what is this rank's own.
class SaveLayoutBuilder {
 public:
  // Without `find_replicas`, replicas() stays empty.
  SaveLayoutBuilder(const ProcessGroup& group, bool find_replicas);

  // Adds a tensor. Names ascend. `fingerprint` receives what the ranks must
  // agree on.
  //   kInvalidArgument  The name is reserved, or that of the values of a state,
  //                     but the tensor is not of rows of bytes; the tensors
  //                     together have 2^63 bytes or more; a tensor of
  //                     complex128 or complex32 has kMaxRank dimensions.
  //                     Otherwise as DescribeTensor.
  absl::Status Add(const std::string& name, const ShardedTensor& tensor,
                   Fingerprint& fingerprint);

  // After the last Add: numbers placements by the ranks of the group, so that
  // those of consecutive ranks follow one another.
  void Finish();

  const SaveLayout& layout() const { return layout_; }
  // By tensor and number.
  const std::vector<OwnShard>& own() const { return own_; }
  // By tensor, then by the first shard that is that box: in the same order on
  // all ranks.
  std::vector<ReplicaSet> TakeReplicas() { return std::move(replicas_); }
  // Of all tensors.
  int64_t tensor_bytes() const { return tensor_bytes_; }

 private:
  template <typename Item>
  using SharedList = std::shared_ptr<const std::vector<Item>>;
  using Owners = SharedList<OwnerRun>;

  struct KnownPlacement {
    int rank = 0;
    std::string text;
  };

  int32_t PlacementOf(const ShardedTensor& tensor, const ShardToSave& shard);
  void FindReplicas(const TensorToSave& tensor);
  // The list that is equal to `items`, of those in `known`.
  template <typename Item>
  static SharedList<Item> Share(
      std::vector<Item> items,
      absl::flat_hash_map<std::string, SharedList<Item>>& known);

  const ProcessGroup& group_;
  const bool find_replicas_;
  SaveLayout layout_;
  std::vector<OwnShard> own_;
  std::vector<ReplicaSet> replicas_;
  int64_t tensor_bytes_ = 0;
  std::vector<int64_t> bytes_of_rank_;
  // By the numbers that owners have until Finish.
  std::vector<KnownPlacement> known_;
  absl::flat_hash_map<Placement, int32_t> placements_;
  // By the bytes of the lists.
  absl::flat_hash_map<std::string, Owners> owners_;
  absl::flat_hash_map<std::string, SharedList<int>> holders_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SAVE_SAVE_LAYOUT_H_
