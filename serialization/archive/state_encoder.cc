#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/archive/state_codec.h"
#include "sherd/serialization/archive/state_memory.h"
#include "sherd/serialization/archive/tensor_strides.h"
#include "sherd/serialization/metadata.h"
#include "sherd/serialization/proto/sharding.pb.h"
#include "sherd/serialization/proto/state.pb.h"

namespace sherd::internal {
namespace {

namespace proto = state::v1;

void WriteTensor(const SavedTensor& tensor, proto::Tensor& message) {
  const MemoryFormat format = FormatOf(tensor.size, tensor.strides);
  sharding::v1::TensorProperties& properties = *message.mutable_properties();
  properties.set_dtype(static_cast<sharding::v1::DType>(tensor.dtype));
  properties.set_layout(sharding::v1::LAYOUT_STRIDED);
  properties.set_requires_grad(false);
  properties.set_memory_format(static_cast<sharding::v1::MemoryFormat>(format));
  properties.set_pin_memory(tensor.pinned);
  message.mutable_size()->Add(tensor.size.begin(), tensor.size.end());
  if (format == MemoryFormat::kPreserve) {
    message.mutable_stride()->Add(tensor.strides.begin(), tensor.strides.end());
  }
  message.set_device(tensor.device.ToString());
  message.set_block(static_cast<uint64_t>(tensor.block + 1));
  message.set_offset(static_cast<uint64_t>(tensor.offset));
}

absl::Status WriteSharded(const SavedShardedTensor& tensor,
                          proto::ShardedTensor& message) {
  SHERD_ASSIGN_OR_RETURN(*message.mutable_metadata(),
                         SerializeMetadata(tensor.metadata));
  if (tensor.spec != nullptr) {
    SHERD_ASSIGN_OR_RETURN(*message.mutable_spec(), SerializeSpec(tensor.spec));
  }
  if (tensor.group) {
    proto::GroupState& group = *message.mutable_group();
    group.set_rank(tensor.group->rank);
    group.set_global_rank(tensor.group->global_rank);
    group.set_size(tensor.group->size);
    group.set_world_size(tensor.group->world_size);
  }
  message.set_init_rrefs(tensor.init_rrefs);
  for (size_t i = 0; i < tensor.shards.size(); ++i) {
    message.add_shard_index(static_cast<uint32_t>(tensor.shard_indices[i]));
    WriteTensor(tensor.shards[i], *message.add_shard());
  }
  return absl::OkStatus();
}

void WriteScalar(const StateValue& value, proto::Value& message) {
  if (const auto* boolean = value.get_if<bool>()) {
    message.set_boolean(*boolean);
  } else if (const auto* integer = value.get_if<int64_t>()) {
    message.set_integer(*integer);
  } else if (const auto* number = value.get_if<double>()) {
    message.set_float_(*number);
  } else if (const auto* text = value.get_if<std::string>()) {
    message.set_text(*text);
  } else if (const auto* bytes = value.get_if<StateBytes>()) {
    message.set_data(bytes->data);
  } else {
    message.mutable_none();
  }
}

absl::Status WriteValue(const SavedValue& value, proto::Value& message) {
  // No key of a map is empty.
  if (!value.key.empty()) message.set_key(value.key);
  if (const SavedItems* const items = value.items()) {
    const auto count = static_cast<uint64_t>(items->count);
    items->is_map ? message.set_map(count) : message.set_list(count);
  } else if (const SavedTensor* const tensor = value.tensor()) {
    WriteTensor(*tensor, *message.mutable_tensor());
  } else if (const SavedShardedTensor* const sharded = value.sharded()) {
    return WriteSharded(*sharded, *message.mutable_sharded_tensor());
  } else if (std::holds_alternative<StoredTensor>(value.value)) {
    message.mutable_stored_tensor();
  } else {
    WriteScalar(std::get<StateValue>(value.value), message);
  }
  return absl::OkStatus();
}

// `message` has all but the version and the values.
absl::StatusOr<std::string> Encode(const std::vector<SavedValue>& values,
                                   int64_t max_memory, proto::State& message) {
  message.set_version(kStateVersion);
  for (size_t i = 0; i < values.size(); ++i) {
    if (absl::Status status = WriteValue(values[i], *message.add_value());
        !status.ok()) {
      return Annotate(std::move(status), NameOf(values, i));
    }
  }
  std::string bytes;
  const size_t length = message.ByteSizeLong();
  if (length > static_cast<size_t>(kMaxStateBytes) ||
      !message.AppendToString(&bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the state without elements would have ", length,
                     " bytes, expected at most ", kMaxStateBytes));
  }
  // A larger one could not be loaded.
  SHERD_ASSIGN_OR_RETURN(const int64_t memory, StateMemory(bytes));
  if (memory > max_memory) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the state without elements may take ", memory,
        " bytes in memory when it is loaded, expected at most ", max_memory,
        "; save parts of it, or many numbers as a tensor"));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::string> EncodeState(const SavedState& state,
                                        int64_t max_memory) {
  proto::State message;
  proto::Blocks& blocks = *message.mutable_blocks();
  blocks.set_writer(state.writer);
  blocks.set_chunk_bytes(static_cast<uint64_t>(state.chunk_bytes));
  for (const int64_t bytes : state.blocks) {
    blocks.add_block_bytes(static_cast<uint64_t>(bytes));
  }
  return Encode(state.values, max_memory, message);
}

absl::StatusOr<std::string> EncodeTree(const std::vector<SavedValue>& values,
                                       int64_t max_memory) {
  proto::State message;
  return Encode(values, max_memory, message);
}

}  // namespace sherd::internal
