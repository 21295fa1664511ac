#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"
#include "sherd/core/sharding/validated_metadata.h"
#include "sherd/core/tensor/types/byte_extent.h"
#include "sherd/serialization/archive/state_codec.h"
#include "sherd/serialization/archive/state_memory.h"
#include "sherd/serialization/archive/tensor_strides.h"
#include "sherd/serialization/metadata.h"
#include "sherd/serialization/proto/sharding.pb.h"
#include "sherd/serialization/proto/state.pb.h"

namespace sherd::internal {
namespace {

namespace proto = state::v1;

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Of Blocks: a length of one byte takes eight in memory, twice.
constexpr int64_t kMaxBlocksBytes = int64_t{1} << 26;
constexpr size_t kMaxWriterBytes = 1024;

absl::Status Lost(absl::string_view message) {
  return absl::DataLossError(message);
}

absl::Status Lacks(absl::string_view field) {
  return Lost(absl::StrCat("the field ", field,
                           " is missing: it was cut off, or is another "
                           "message"));
}

// The error of an argument, about bytes that are no argument's.
absl::Status OfBytes(const absl::Status& status) {
  if (absl::IsUnimplemented(status)) return status;
  return Lost(status.message());
}

// A map or list of which values are still to come.
struct Open {
  SavedItems items;
  // Of a map.
  absl::flat_hash_set<std::string> keys = {};
};

class Decoder {
 public:
  // `is_tree`: of a checkpoint, not of an archive.
  Decoder(bool is_tree, int64_t max_memory, int64_t& memory)
      : is_tree_(is_tree), max_memory_(max_memory), memory_(memory) {}

  absl::StatusOr<SavedState> Decode(absl::string_view bytes);

 private:
  // One field of State.
  absl::Status ReadField(uint32_t tag, CodedInputStream& input);
  absl::Status ReadVersion(uint64_t version);
  absl::Status ReadBlocks(absl::string_view bytes);
  absl::Status ReadValue(absl::string_view bytes);
  absl::Status CheckEnd() const;

  // Makes the key and the place of a value known.
  absl::Status PlaceValue(const proto::Value& message);
  absl::Status ReadContents(const proto::Value& message, SavedValue& value);
  absl::Status ReadItems(bool is_map, uint64_t count, SavedValue& value);
  absl::StatusOr<SavedTensor> ReadTensor(const proto::Tensor& message);
  absl::Status ReadProperties(const proto::Tensor& message,
                              SavedTensor& tensor);
  absl::Status ReadStrides(const proto::Tensor& message, MemoryFormat format,
                           SavedTensor& tensor);
  absl::Status ReadPlace(const proto::Tensor& message, SavedTensor& tensor);
  absl::StatusOr<SavedShardedTensor> ReadSharded(
      const proto::ShardedTensor& message);
  absl::Status ReadShards(const proto::ShardedTensor& message,
                          SavedShardedTensor& tensor);
  absl::Status Take(int64_t bytes);

  const bool is_tree_;
  const int64_t max_memory_;
  SavedState state_;
  bool has_version_ = false;
  bool has_blocks_ = false;
  std::vector<Open> open_;
  // That of the tensors of each block; none before the first.
  std::vector<std::optional<Device>> block_devices_;
  int64_t& memory_;
};

absl::Status Decoder::Take(int64_t bytes) {
  memory_ += bytes;
  if (memory_ <= max_memory_) return absl::OkStatus();
  return Lost(absl::StrCat("the state would take more than ", max_memory_,
                           " bytes in memory without its elements"));
}

absl::Status Decoder::ReadVersion(uint64_t version) {
  if (version > static_cast<uint64_t>(kStateVersion)) {
    return absl::UnimplementedError(
        absl::StrCat("version ", version, " wrote the state, this build reads ",
                     "1 to ", kStateVersion, "; use a later Sherd"));
  }
  if (version == 0) return Lost("the version is 0, expected 1 or more");
  has_version_ = true;
  return absl::OkStatus();
}

absl::Status Decoder::ReadBlocks(absl::string_view bytes) {
  proto::Blocks message;
  if (is_tree_) return Lost("it has blocks, so it is the tree of an archive");
  if (has_blocks_) return Lost("the list of blocks occurs twice");
  if (bytes.size() > static_cast<size_t>(kMaxBlocksBytes)) {
    return Lost(absl::StrCat("the list of blocks has ", bytes.size(),
                             " bytes, expected at most ", kMaxBlocksBytes));
  }
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Lost("the list of blocks is not a message sherd.state.v1.Blocks");
  }
  if (!message.has_chunk_bytes()) return Lacks("blocks.chunk_bytes");
  if (message.writer().size() > kMaxWriterBytes) {
    return Lost(absl::StrCat("the name of the writer has ",
                             message.writer().size(),
                             " bytes, expected at most ", kMaxWriterBytes));
  }
  if (message.chunk_bytes() < 1 ||
      message.chunk_bytes() > static_cast<uint64_t>(kMaxStateChunkBytes)) {
    return Lost(absl::StrCat("chunks have ", message.chunk_bytes(),
                             " bytes, expected 1 to ", kMaxStateChunkBytes));
  }
  state_.writer = message.writer();
  state_.chunk_bytes = static_cast<int64_t>(message.chunk_bytes());
  for (const uint64_t length : message.block_bytes()) {
    if (length == 0 || length > std::numeric_limits<int64_t>::max()) {
      return Lost(absl::StrCat("block ", state_.blocks.size(), " has ", length,
                               " bytes, expected 1 to 2^63 - 1"));
    }
    state_.blocks.push_back(static_cast<int64_t>(length));
  }
  block_devices_.resize(state_.blocks.size());
  has_blocks_ = true;
  return absl::OkStatus();
}

absl::Status Decoder::PlaceValue(const proto::Value& message) {
  const bool is_top = state_.values.empty();
  while (!open_.empty() && open_.back().items.count == 0) open_.pop_back();
  if (!is_top && open_.empty()) {
    return Lost("values follow the end of the map at the top");
  }
  const bool in_map = !is_top && open_.back().items.is_map;
  if (message.has_key() != in_map || (in_map && message.key().empty())) {
    return Lost(in_map ? "a value in a map has no key"
                       : "a value outside of a map has a key");
  }
  if (is_top) {
    if (message.value_case() == proto::Value::kMap) return absl::OkStatus();
    return Lost("the first value is not a map");
  }
  --open_.back().items.count;
  if (open_.size() > static_cast<size_t>(StateDict::kMaxDepth)) {
    return Lost(
        absl::StrCat("values are nested deeper than ", StateDict::kMaxDepth));
  }
  if (in_map && !open_.back().keys.insert(message.key()).second) {
    return Lost(absl::StrCat("the key ", Quoted(message.key()),
                             " occurs twice in one map"));
  }
  return absl::OkStatus();
}

absl::Status Decoder::ReadItems(bool is_map, uint64_t count,
                                SavedValue& value) {
  // A value takes two bytes or more, so no message has as many.
  if (count > static_cast<uint64_t>(kMaxStateBytes)) {
    return Lost(absl::StrCat("it has ", count, " values, expected at most ",
                             kMaxStateBytes));
  }
  const SavedItems items = {is_map, static_cast<int64_t>(count)};
  value.value = items;
  open_.push_back({items});
  return absl::OkStatus();
}

absl::Status Decoder::ReadProperties(const proto::Tensor& message,
                                     SavedTensor& tensor) {
  const sharding::v1::TensorProperties& properties = message.properties();
  if (!message.has_properties() || !properties.has_dtype() ||
      !properties.has_layout() || !properties.has_requires_grad() ||
      !properties.has_memory_format() || !properties.has_pin_memory()) {
    return Lacks("properties");
  }
  if (!IsValid(static_cast<int32_t>(properties.dtype()))) {
    return Lost(absl::StrCat("dtype has the number ",
                             static_cast<int>(properties.dtype()),
                             ", expected 0 to ", kNumDTypes - 1,
                             "; use a later Sherd if it is a newer one"));
  }
  if (properties.layout() != sharding::v1::LAYOUT_STRIDED ||
      properties.requires_grad()) {
    return Lost(
        "the layout is not strided, or requires_grad is set, which tensors "
        "that are not sharded do not have; use a later Sherd if it wrote this");
  }
  tensor.dtype = static_cast<DType>(properties.dtype());
  tensor.pinned = properties.pin_memory();
  absl::StatusOr<Device> device = Device::Parse(message.device());
  if (!device.ok()) return OfBytes(device.status());
  tensor.device = *device;
  if (tensor.pinned && !tensor.device.is_cpu()) {
    return Lost(absl::StrCat("a tensor on ", tensor.device.ToString(),
                             " is pinned, expected one in host memory"));
  }
  return absl::OkStatus();
}

absl::Status Decoder::ReadStrides(const proto::Tensor& message,
                                  MemoryFormat format, SavedTensor& tensor) {
  tensor.size.assign(message.size().begin(), message.size().end());
  if (const auto bytes = NumBytes(tensor.size, tensor.dtype); !bytes.ok()) {
    return OfBytes(bytes.status());
  }
  switch (format) {
    case MemoryFormat::kContiguous:
      tensor.strides = ContiguousStrides(tensor.size);
      break;
    case MemoryFormat::kChannelsLast:
      if (tensor.size.size() == 4) {
        tensor.strides = ChannelsLastStrides(tensor.size);
        break;
      }
      return Lost(absl::StrCat("the memory format is channels_last, which ",
                               FormatDims(tensor.size), " does not have"));
    case MemoryFormat::kPreserve:
      tensor.strides.assign(message.stride().begin(), message.stride().end());
      break;
    default:
      return Lost(absl::StrCat("memory_format has the number ",
                               static_cast<int>(format), ", expected 0 to 2"));
  }
  const bool listed = format == MemoryFormat::kPreserve;
  if (message.stride_size() != (listed ? message.size_size() : 0) ||
      std::any_of(tensor.strides.begin(), tensor.strides.end(),
                  [](int64_t stride) { return stride < 0; })) {
    return Lost(absl::StrCat("a tensor of ", FormatDims(tensor.size), " has ",
                             message.stride_size(), " strides, or a negative ",
                             "one"));
  }
  return absl::OkStatus();
}

absl::Status Decoder::ReadPlace(const proto::Tensor& message,
                                SavedTensor& tensor) {
  if (!message.has_block()) return Lacks("block");
  if (!message.has_offset()) return Lacks("offset");
  const bool has_block = Volume(tensor.size) > 0 && !tensor.device.is_meta();
  if ((message.block() != 0) != has_block ||
      (!has_block && message.offset() != 0)) {
    return Lost(absl::StrCat("a tensor of ", FormatDims(tensor.size), " on ",
                             tensor.device.ToString(), " has block ",
                             message.block(), " and offset ",
                             message.offset()));
  }
  if (!has_block) return absl::OkStatus();
  if (message.block() > state_.blocks.size()) {
    return Lost(absl::StrCat("a tensor is in block ", message.block(), " of ",
                             state_.blocks.size()));
  }
  const size_t block = static_cast<size_t>(message.block() - 1);
  const int64_t length = state_.blocks[block];
  const auto extent = ByteExtent(tensor.size, tensor.strides, tensor.dtype);
  if (!extent || *extent > length ||
      message.offset() > static_cast<uint64_t>(length - *extent) ||
      message.offset() % AlignmentOf(tensor.dtype) != 0) {
    return Lost(absl::StrCat("a ", Name(tensor.dtype), " tensor of ",
                             FormatDims(tensor.size), " with strides ",
                             FormatDims(tensor.strides), " at byte ",
                             message.offset(), " is not inside its block of ",
                             length, " bytes, or is not aligned"));
  }
  tensor.block = static_cast<int64_t>(block);
  tensor.offset = static_cast<int64_t>(message.offset());
  std::optional<Device>& device = block_devices_[block];
  if (device && *device != tensor.device) {
    return Lost(absl::StrCat("block ", block, " has tensors on ",
                             device->ToString(), " and on ",
                             tensor.device.ToString()));
  }
  device = tensor.device;
  return absl::OkStatus();
}

absl::StatusOr<SavedTensor> Decoder::ReadTensor(const proto::Tensor& message) {
  SavedTensor tensor;
  SHERD_RETURN_IF_ERROR(ReadProperties(message, tensor));
  SHERD_RETURN_IF_ERROR(ReadStrides(
      message, static_cast<MemoryFormat>(message.properties().memory_format()),
      tensor));
  SHERD_RETURN_IF_ERROR(ReadPlace(message, tensor));
  return tensor;
}

absl::Status Decoder::ReadShards(const proto::ShardedTensor& message,
                                 SavedShardedTensor& tensor) {
  if (message.shard_index_size() != message.shard_size()) {
    return Lost(absl::StrCat("there are ", message.shard_size(),
                             " shards, expected ", message.shard_index_size(),
                             " as in shard_index"));
  }
  for (int i = 0; i < message.shard_size(); ++i) {
    const uint32_t index = message.shard_index(i);
    if (index >= tensor.metadata.shards.size() ||
        (i > 0 && index <= message.shard_index(i - 1))) {
      return Lost(absl::StrCat("shard ", i, " is number ", index, " of ",
                               tensor.metadata.shards.size(),
                               " in the metadata, expected ascending numbers"));
    }
    SHERD_ASSIGN_OR_RETURN(SavedTensor shard, ReadTensor(message.shard(i)));
    const Dims& sizes = tensor.metadata.shards[index].sizes;
    if (shard.size != sizes ||
        shard.dtype != tensor.metadata.properties.dtype) {
      return Lost(absl::StrCat("shard ", i, " is ", Name(shard.dtype), " ",
                               FormatDims(shard.size), ", but ",
                               Name(tensor.metadata.properties.dtype), " ",
                               FormatDims(sizes), " in the metadata"));
    }
    // A group wants them to be, and copies could be larger than the file.
    if (tensor.group && !IsContiguous(shard.size, shard.strides)) {
      return Lost(absl::StrCat("shard ", i, " of a tensor with a group is not ",
                               "contiguous: sizes ", FormatDims(shard.size),
                               ", strides ", FormatDims(shard.strides)));
    }
    tensor.shard_indices.push_back(static_cast<int>(index));
    tensor.shards.push_back(std::move(shard));
  }
  return absl::OkStatus();
}

// Ranks and sizes that a group can have.
absl::StatusOr<GroupState> ReadGroup(const proto::GroupState& message) {
  if (!message.has_rank() || !message.has_global_rank() ||
      !message.has_size() || !message.has_world_size()) {
    return Lacks("group");
  }
  return GroupState{message.rank(), message.global_rank(), message.size(),
                    message.world_size()};
}

absl::StatusOr<SavedShardedTensor> Decoder::ReadSharded(
    const proto::ShardedTensor& message) {
  if (!message.has_metadata()) return Lacks("metadata");
  if (!message.has_init_rrefs()) return Lacks("init_rrefs");
  SavedShardedTensor tensor;
  SHERD_ASSIGN_OR_RETURN(tensor.metadata, ParseMetadata(message.metadata()));
  if (message.has_spec()) {
    SHERD_ASSIGN_OR_RETURN(tensor.spec, ParseSpec(message.spec()));
    const auto built = BuildValidatedMetadata(tensor.spec, tensor.metadata.size,
                                              tensor.metadata.properties);
    if (!built.ok()) return OfBytes(built.status());
    if (!SameLayout(*built, tensor.metadata)) {
      return Lost(absl::StrCat("the spec ", tensor.spec->ToString(),
                               " builds other shards than the metadata has"));
    }
  }
  if (message.has_group()) {
    SHERD_ASSIGN_OR_RETURN(tensor.group, ReadGroup(message.group()));
  }
  tensor.init_rrefs = message.init_rrefs();
  if (tensor.init_rrefs && !tensor.group) {
    return Lost("a tensor without a group has init_rrefs");
  }
  SHERD_RETURN_IF_ERROR(ReadShards(message, tensor));
  return tensor;
}

absl::Status Decoder::ReadContents(const proto::Value& message,
                                   SavedValue& value) {
  const auto kind = message.value_case();
  const bool is_tensor =
      kind == proto::Value::kTensor || kind == proto::Value::kShardedTensor;
  if (is_tree_ ? is_tensor : kind == proto::Value::kStoredTensor) {
    return Lost(is_tree_ ? "it is a tensor of an archive, in a checkpoint"
                         : "it is a tensor of a checkpoint, in an archive");
  }
  switch (kind) {
    case proto::Value::kNone:
      value.value = StateValue();
      return absl::OkStatus();
    case proto::Value::kBoolean:
      value.value = StateValue(message.boolean());
      return absl::OkStatus();
    case proto::Value::kInteger:
      value.value = StateValue(int64_t{message.integer()});
      return absl::OkStatus();
    case proto::Value::kFloat:
      value.value = StateValue(message.float_());
      return absl::OkStatus();
    case proto::Value::kText:
      value.value = StateValue(message.text());
      return absl::OkStatus();
    case proto::Value::kData:
      value.value = StateValue(StateBytes{message.data()});
      return absl::OkStatus();
    case proto::Value::kTensor: {
      SHERD_ASSIGN_OR_RETURN(value.value, ReadTensor(message.tensor()));
      return absl::OkStatus();
    }
    case proto::Value::kShardedTensor: {
      SHERD_ASSIGN_OR_RETURN(SavedShardedTensor tensor,
                             ReadSharded(message.sharded_tensor()));
      value.value = std::make_shared<SavedShardedTensor>(std::move(tensor));
      return absl::OkStatus();
    }
    case proto::Value::kStoredTensor:
      value.value = StoredTensor();
      return absl::OkStatus();
    case proto::Value::kList:
      return ReadItems(false, message.list(), value);
    case proto::Value::kMap:
      return ReadItems(true, message.map(), value);
    case proto::Value::VALUE_NOT_SET:
      break;
  }
  return Lost(
      "it is of no kind that this build knows; use a later Sherd if it "
      "is a newer one");
}

absl::Status Decoder::ReadValue(absl::string_view bytes) {
  if (!is_tree_ && !has_blocks_) return Lacks("blocks");
  const absl::StatusOr<int64_t> memory = ValueMemory(bytes);
  if (memory.ok()) SHERD_RETURN_IF_ERROR(Take(*memory));
  proto::Value message;
  if (!memory.ok() ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Lost(absl::StrCat("value ", state_.values.size(),
                             " is not a message sherd.state.v1.Value"));
  }
  SHERD_RETURN_IF_ERROR(PlaceValue(message));
  SavedValue& value = state_.values.emplace_back();
  value.key = message.key();
  if (absl::Status status = ReadContents(message, value); !status.ok()) {
    return Annotate(std::move(status),
                    NameOf(state_.values, state_.values.size() - 1));
  }
  return absl::OkStatus();
}

absl::Status Decoder::ReadField(uint32_t tag, CodedInputStream& input) {
  const int field = WireFormatLite::GetTagFieldNumber(tag);
  const auto type = WireFormatLite::GetTagWireType(tag);
  const absl::Status malformed =
      Lost(absl::StrCat("it is not a message sherd.state.v1.State at byte ",
                        input.CurrentPosition()));
  if (field == proto::State::kVersionFieldNumber &&
      type == WireFormatLite::WIRETYPE_VARINT) {
    uint64_t version = 0;
    if (!input.ReadVarint64(&version)) return malformed;
    return ReadVersion(version);
  }
  if ((field != proto::State::kBlocksFieldNumber &&
       field != proto::State::kValueFieldNumber) ||
      type != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
    return WireFormatLite::SkipField(&input, tag) ? absl::OkStatus()
                                                  : malformed;
  }
  uint32_t length = 0;
  const void* data = nullptr;
  int available = 0;
  if (!input.ReadVarint32(&length)) return malformed;
  // Of a flat array, all that is left.
  input.GetDirectBufferPointerInline(&data, &available);
  if (length > static_cast<uint32_t>(available)) return malformed;
  input.Skip(static_cast<int>(length));
  const absl::string_view bytes(static_cast<const char*>(data), length);
  return field == proto::State::kBlocksFieldNumber ? ReadBlocks(bytes)
                                                   : ReadValue(bytes);
}

absl::Status Decoder::CheckEnd() const {
  if (!has_version_) return Lacks("version");
  if (state_.values.empty()) return Lacks("value");
  for (const Open& open : open_) {
    if (open.items.count == 0) continue;
    return Lost(absl::StrCat("a map or list lacks ", open.items.count,
                             " values: the message was cut off"));
  }
  const auto unused =
      std::find(block_devices_.begin(), block_devices_.end(), std::nullopt);
  if (unused == block_devices_.end()) return absl::OkStatus();
  return Lost(absl::StrCat("block ", unused - block_devices_.begin(),
                           " is of no tensor"));
}

absl::StatusOr<SavedState> Decoder::Decode(absl::string_view bytes) {
  if (bytes.size() > static_cast<size_t>(kMaxStateBytes)) {
    return Lost(absl::StrCat("the state has ", bytes.size(),
                             " bytes, expected at most ", kMaxStateBytes));
  }
  CodedInputStream input(reinterpret_cast<const uint8_t*>(bytes.data()),
                         static_cast<int>(bytes.size()));
  while (input.CurrentPosition() < static_cast<int>(bytes.size())) {
    const uint32_t tag = input.ReadTag();
    if (tag == 0) {
      return Lost(
          absl::StrCat("it is not a message sherd.state.v1.State at byte ",
                       input.CurrentPosition()));
    }
    SHERD_RETURN_IF_ERROR(ReadField(tag, input));
  }
  SHERD_RETURN_IF_ERROR(CheckEnd());
  return std::move(state_);
}

}  // namespace

absl::StatusOr<SavedState> DecodeState(absl::string_view bytes,
                                       int64_t max_memory) {
  int64_t memory = 0;
  return Decoder(/*is_tree=*/false, max_memory, memory).Decode(bytes);
}

absl::StatusOr<SavedState> DecodeTree(absl::string_view bytes,
                                      int64_t& memory) {
  return Decoder(/*is_tree=*/true, kMaxStateMemory, memory).Decode(bytes);
}

}  // namespace sherd::internal
