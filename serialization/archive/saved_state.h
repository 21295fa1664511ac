#ifndef SHERD_SERIALIZATION_ARCHIVE_SAVED_STATE_H_
#define SHERD_SERIALIZATION_ARCHIVE_SAVED_STATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"

// A state as an archive or a checkpoint has it: without elements, and flat.
namespace sherd::internal {

// A tensor, or a shard, whose elements are in a block of the archive.
struct SavedTensor {
  DType dtype = kFloat32;
  Dims size;
  // In elements, as many as sizes.
  Dims strides;
  Device device;
  bool pinned = false;
  // -1: no elements, or on meta.
  int64_t block = -1;
  // Of the element 0, …, 0, in bytes from the beginning of the block.
  int64_t offset = 0;
};

// Where a rank is in a group, and in the job. The rank of a process that is not
// a member is -1.
struct GroupState {
  int rank = 0;
  int global_rank = 0;
  int size = 1;
  int world_size = 1;

  friend bool operator==(const GroupState&, const GroupState&) = default;
};

struct SavedShardedTensor {
  ShardedTensorMetadata metadata;
  // Builds `metadata`. Null: to be inferred.
  ShardingSpecPtr spec;
  // Unset: no group.
  std::optional<GroupState> group;
  bool init_rrefs = false;
  // Positions in metadata.shards, ascending, and a tensor for each.
  std::vector<int> shard_indices;
  std::vector<SavedTensor> shards;
};

// A list or map of the next `count` values, each with all that is in it.
struct SavedItems {
  bool is_map = false;
  int64_t count = 0;
};

// A tensor or sharded tensor of a checkpoint, which has it under its name.
struct StoredTensor {};

// A StateValue is none of the other kinds.
using SavedContents =
    std::variant<StateValue, SavedItems, SavedTensor,
                 std::shared_ptr<SavedShardedTensor>, StoredTensor>;

struct SavedValue {
  // Of a value in a map.
  std::string key;
  SavedContents value;

  const SavedItems* items() const { return std::get_if<SavedItems>(&value); }
  const SavedTensor* tensor() const { return std::get_if<SavedTensor>(&value); }
  const SavedShardedTensor* sharded() const {
    const auto* sharded =
        std::get_if<std::shared_ptr<SavedShardedTensor>>(&value);
    return sharded == nullptr ? nullptr : sharded->get();
  }
};

struct SavedState {
  // Of an archive: for display.
  std::string writer;
  int64_t chunk_bytes = 0;
  // Lengths, all positive.
  std::vector<int64_t> blocks;
  // Each before those that are in it; the first is the map at the top.
  std::vector<SavedValue> values;
};

// The index after the last value that is in the value at `index`, or its own.
size_t EndOf(const SavedState& state, size_t index);

// The name, as StateDict has it, in quotes; for messages. Cost: O(index).
std::string NameOf(absl::Span<const SavedValue> values, size_t index);

// The values of `state`. `save` is called for each tensor and sharded tensor,
// in order.
//
// Errors. Those of `save`, with the name of the value.
absl::StatusOr<std::vector<SavedValue>> FlattenState(
    const StateDict& state,
    absl::FunctionRef<absl::StatusOr<SavedContents>(const StateValue& value)>
        save);

// The value at `index`, with all that is in it. `load` is called for each
// tensor and sharded tensor, in order.
absl::StatusOr<StateValue> BuildValue(
    const SavedState& state, size_t index,
    absl::FunctionRef<absl::StatusOr<StateValue>(size_t index)> load);

}  // namespace sherd::internal

#endif  // SHERD_SERIALIZATION_ARCHIVE_SAVED_STATE_H_
