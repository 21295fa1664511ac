#ifndef SHERD_SERIALIZATION_CHECKPOINT_SHARDED_LAYOUT_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SHARDED_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/manifest/manifest.h"

namespace sherd {

struct ShardToSave : Box {
  // Of the group.
  int rank = 0;
  // Index in the tensor's metadata of the shard that this is, or is part of.
  size_t held = 0;

  friend bool operator==(const ShardToSave&, const ShardToSave&) = default;
};

struct TensorToSave {
  std::string name;
  DType dtype = kFloat32;
  Dims sizes;
  bool requires_grad = false;
  SavedLayoutKind layout = SavedLayoutKind::kEnumerable;
  int32_t chunk_dim = 0;
  // Of sizes, boxes and placements.
  uint64_t layout_fingerprint = 0;
  // The shards of all ranks.
  std::vector<ShardToSave> shards;

  std::vector<PlacedBox> Boxes() const;
};

// The properties of a ShardedTensor that checkpoints use, with the checks that
// save and load share.

// How a tensor was cut, for display.
struct DisplayLayout {
  SavedLayoutKind kind = SavedLayoutKind::kEnumerable;
  // For kChunk.
  int32_t chunk_dim = 0;
};
DisplayLayout DisplayLayoutOf(const ShardedTensor& tensor);

// Whether a checkpoint may have a tensor of that name.
//   kInvalidArgument  It is empty, too long or not UTF-8.
absl::Status CheckTensorName(absl::string_view name);

// Checks that `tensor` is one that a save or load of `group` may have, with the
// errors of DescribeTensor. Cost. O(local shards).
absl::Status CheckTensor(absl::string_view name, const ShardedTensor& tensor,
                         const ProcessGroup& group);

// The layout of `tensor` on all ranks, replicas too.
//
// Errors. All name the tensor.
//   kInvalidArgument     The name is empty, too long or not UTF-8; the tensor
//                        belongs to another group, or to none.
//   kFailedPrecondition  It is not defined, a local shard has no data, or this
//                        process is not a member of the group.
absl::StatusOr<TensorToSave> DescribeTensor(absl::string_view name,
                                            const ShardedTensor& tensor,
                                            const ProcessGroup& group);

// The same tensor with local shards that are not defined, for what needs its
// layout alone: it does not keep the elements alive.
ShardedTensor WithoutElements(const ShardedTensor& tensor);

// LayoutFingerprintOf(t) is equal for tensors that have equal sizes, and shards
// with equal boxes and placements.
uint64_t LayoutFingerprintOf(const ShardedTensor& tensor);

// Adds what ranks of a save or load must agree on about a layout: not how a
// tensor is displayed, nor its placements.
void AddToFingerprint(const TensorToSave& layout, Fingerprint& fingerprint);
// Of the same, for ranks of a load, without name and dtype. One for all tensors
// of one LayoutFingerprintOf.
uint64_t BoxesFingerprintOf(const ShardedTensor& tensor);

// The layouts in the form of AgreedValue::describe; `with_properties`: also
// what a save agrees on beyond AddToFingerprint.
std::string DescribeForAgreement(absl::Span<const TensorToSave> layouts,
                                 bool with_properties = false);

// The tensor of the local shard at position `shard` of the metadata, which is
// on this rank.
Tensor LocalShard(const ShardedTensor& tensor, size_t shard);

// The elements of `box` of the global tensor, which are all in that shard; a
// view.
absl::StatusOr<Tensor> LocalPart(const ShardedTensor& tensor, size_t shard,
                                 BoxView box);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SHARDED_LAYOUT_H_
