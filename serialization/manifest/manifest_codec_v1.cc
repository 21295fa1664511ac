#include "sherd/serialization/manifest/manifest_codec_v1.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/limit_error.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/manifest/manifest_memory.h"
#include "sherd/serialization/proto/checkpoint.pb.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd {
namespace {

using Proto = checkpoint::v1::Manifest;

// The frame: magic, version, length of the message, message, CRC-32C of all
// before. Numbers are little-endian.
constexpr size_t kFrontBytes = 20;
constexpr size_t kFrameBytes = kFrontBytes + 4;

// Checks the frame and returns the message in it.
absl::StatusOr<absl::string_view> OpenFrame(absl::string_view bytes) {
  SHERD_ASSIGN_OR_RETURN(
      const uint32_t version,
      ReadManifestVersion(bytes, static_cast<int64_t>(bytes.size())));
  if (version != 1 || bytes.size() < kFrameBytes) {
    return absl::DataLossError(
        absl::StrCat("the manifest of version ", version, " has ", bytes.size(),
                     " bytes, expected version 1 and at least ", kFrameBytes));
  }
  const uint64_t length = ReadLittleEndian<uint64_t>(bytes.substr(12));
  if (length != bytes.size() - kFrameBytes) {
    return absl::DataLossError(
        absl::StrCat("the manifest claims at offset 12 to have ", length,
                     " bytes, but ", bytes.size() - kFrameBytes, " are there"));
  }
  const uint32_t stored =
      ReadLittleEndian<uint32_t>(bytes.substr(bytes.size() - 4));
  const uint32_t actual = Crc32c(AsBytes(bytes.substr(0, bytes.size() - 4)));
  if (stored != actual) {
    return absl::DataLossError(absl::StrCat(
        "the manifest is damaged: its CRC-32C at offset ", bytes.size() - 4,
        " is ", absl::Hex(stored, absl::kZeroPad8), ", its contents have ",
        absl::Hex(actual, absl::kZeroPad8)));
  }
  return bytes.substr(kFrontBytes, length);
}

absl::Status Expect(absl::string_view column, int64_t length,
                    int64_t expected) {
  if (length == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the manifest has ", length,
                                          " entries in ", column, ", expected ",
                                          expected));
}

// Numbers come as uint64 and are kept as int64.
absl::StatusOr<int64_t> Signed(uint64_t value, absl::string_view column) {
  if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return static_cast<int64_t>(value);
  }
  return absl::DataLossError(absl::StrCat("the manifest has ", value, " in ",
                                          column, ", expected less than 2^63"));
}

// Hands out the entries of flattened columns in order.
class Column {
 public:
  Column(const google::protobuf::RepeatedField<uint64_t>& values,
         absl::string_view name)
      : values_(values), name_(name) {}

  absl::Status Take(int64_t count, Dims& out) {
    if (count > values_.size() - position_) {
      return Expect(name_, values_.size(), position_ + count);
    }
    out.clear();
    out.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      SHERD_ASSIGN_OR_RETURN(const int64_t value,
                             Signed(values_.Get(position_++), name_));
      out.push_back(value);
    }
    return absl::OkStatus();
  }

  absl::Status ExpectEmpty() const {
    return Expect(name_, values_.size(), position_);
  }

 private:
  const google::protobuf::RepeatedField<uint64_t>& values_;
  const absl::string_view name_;
  int position_ = 0;
};

absl::Status CheckColumns(const Proto& proto) {
  const int files = proto.file_name_size();
  SHERD_RETURN_IF_ERROR(Expect("file_size", proto.file_size_size(), files));
  SHERD_RETURN_IF_ERROR(
      Expect("file_data_begin", proto.file_data_begin_size(), files));
  SHERD_RETURN_IF_ERROR(
      Expect("file_header_crc32c", proto.file_header_crc32c_size(), files));
  const int tensors = proto.tensor_name_size();
  SHERD_RETURN_IF_ERROR(
      Expect("tensor_dtype", proto.tensor_dtype_size(), tensors));
  SHERD_RETURN_IF_ERROR(
      Expect("tensor_rank", proto.tensor_rank_size(), tensors));
  SHERD_RETURN_IF_ERROR(
      Expect("tensor_flags", proto.tensor_flags_size(), tensors));
  SHERD_RETURN_IF_ERROR(
      Expect("tensor_layout", proto.tensor_layout_size(), tensors));
  SHERD_RETURN_IF_ERROR(
      Expect("tensor_shards", proto.tensor_shards_size(), tensors));
  const int shards = proto.shard_file_size();
  SHERD_RETURN_IF_ERROR(
      Expect("shard_file_offset", proto.shard_file_offset_size(), shards));
  SHERD_RETURN_IF_ERROR(
      Expect("shard_placement", proto.shard_placement_size(), shards));
  int64_t expected = 0;
  for (const uint32_t count : proto.tensor_shards()) expected += count;
  return Expect("shard_file", shards, expected);
}

absl::Status ReadFiles(const Proto& proto, ManifestV1& manifest) {
  manifest.files.reserve(static_cast<size_t>(proto.file_name_size()));
  for (int i = 0; i < proto.file_name_size(); ++i) {
    ManifestFileV1 file;
    file.name = proto.file_name(i);
    SHERD_ASSIGN_OR_RETURN(file.size, Signed(proto.file_size(i), "file_size"));
    SHERD_ASSIGN_OR_RETURN(file.data_begin,
                           Signed(proto.file_data_begin(i), "file_data_begin"));
    file.header_crc32c = proto.file_header_crc32c(i);
    manifest.files.push_back(std::move(file));
  }
  return absl::OkStatus();
}

absl::Status ReadTensor(const Proto& proto, int i, Column& sizes,
                        ManifestTensorV1& tensor) {
  tensor.name = proto.tensor_name(i);
  const uint32_t dtype = proto.tensor_dtype(i);
  if (!IsValid(static_cast<int32_t>(dtype))) {
    return absl::DataLossError(
        absl::StrCat("the manifest has the number ", dtype,
                     " in tensor_dtype, which is not a dtype"));
  }
  tensor.dtype = static_cast<DType>(dtype);
  const uint32_t rank = proto.tensor_rank(i);
  if (rank > static_cast<uint32_t>(kMaxRank)) {
    return absl::DataLossError(
        absl::StrCat("the manifest has ", rank,
                     " in tensor_rank, expected at most ", kMaxRank));
  }
  SHERD_RETURN_IF_ERROR(sizes.Take(rank, tensor.sizes));
  const uint32_t flags = proto.tensor_flags(i);
  const uint32_t layout = proto.tensor_layout(i);
  if (flags > 1 || layout > rank) {
    return absl::DataLossError(absl::StrCat(
        "the manifest has ", flags, " in tensor_flags and ", layout,
        " in tensor_layout, expected at most 1 and ", rank));
  }
  tensor.requires_grad = flags == 1;
  tensor.layout =
      layout == 0 ? SavedLayoutKind::kEnumerable : SavedLayoutKind::kChunk;
  tensor.chunk_dim = layout == 0 ? 0 : static_cast<int32_t>(layout - 1);
  return absl::OkStatus();
}

absl::Status ReadShard(const Proto& proto, int i, int64_t rank, Column& offsets,
                       Column& sizes, ManifestShardV1& shard) {
  SHERD_RETURN_IF_ERROR(offsets.Take(rank, shard.offsets));
  SHERD_RETURN_IF_ERROR(sizes.Take(rank, shard.sizes));
  const uint32_t file = proto.shard_file(i);
  const uint32_t placement = proto.shard_placement(i);
  if (file > static_cast<uint32_t>(proto.file_name_size()) ||
      placement >= static_cast<uint32_t>(proto.placement_size())) {
    return absl::DataLossError(
        absl::StrCat("shard ", i, " of the manifest names file ", file, " of ",
                     proto.file_name_size(), " and placement ", placement,
                     " of ", proto.placement_size()));
  }
  shard.file = static_cast<int32_t>(file) - 1;
  shard.placement = static_cast<int32_t>(placement);
  SHERD_ASSIGN_OR_RETURN(shard.file_offset, Signed(proto.shard_file_offset(i),
                                                   "shard_file_offset"));
  return absl::OkStatus();
}

// Counts the chunks of each shard, which the message does not repeat.
absl::Status PlaceChunks(ManifestV1& manifest) {
  SHERD_RETURN_IF_ERROR(ValidateShapesV1(manifest));
  int64_t next = 0;
  for (ManifestTensorV1& tensor : manifest.tensors) {
    for (ManifestShardV1& shard : tensor.shards) {
      shard.first_chunk = next;
      next += manifest.NumChunks(tensor, shard);
      if (next > static_cast<int64_t>(manifest.chunk_crc32c.size())) break;
    }
  }
  return Expect("chunk_crc32c",
                static_cast<int64_t>(manifest.chunk_crc32c.size()), next);
}

absl::StatusOr<ManifestV1> FromProto(const Proto& proto) {
  SHERD_RETURN_IF_ERROR(CheckColumns(proto));
  ManifestV1 manifest;
  manifest.writer = proto.writer();
  manifest.save_id = proto.save_id();
  if (proto.world_size() > static_cast<uint32_t>(INT32_MAX)) {
    return absl::DataLossError(
        absl::StrCat("the manifest has a world size of ", proto.world_size()));
  }
  manifest.world_size = static_cast<int32_t>(proto.world_size());
  SHERD_ASSIGN_OR_RETURN(manifest.chunk_bytes,
                         Signed(proto.chunk_bytes(), "chunk_bytes"));
  SHERD_RETURN_IF_ERROR(ReadFiles(proto, manifest));
  manifest.placements.assign(proto.placement().begin(),
                             proto.placement().end());
  manifest.chunk_crc32c.assign(proto.chunk_crc32c().begin(),
                               proto.chunk_crc32c().end());
  Column tensor_sizes(proto.tensor_size(), "tensor_size");
  Column offsets(proto.shard_offset(), "shard_offset");
  Column sizes(proto.shard_size(), "shard_size");
  int next_shard = 0;
  manifest.tensors.reserve(static_cast<size_t>(proto.tensor_name_size()));
  for (int i = 0; i < proto.tensor_name_size(); ++i) {
    ManifestTensorV1 tensor;
    SHERD_RETURN_IF_ERROR(ReadTensor(proto, i, tensor_sizes, tensor));
    // CheckColumns has compared the number with the columns of shards.
    tensor.shards.reserve(proto.tensor_shards(i));
    for (uint32_t k = 0; k < proto.tensor_shards(i); ++k) {
      ManifestShardV1 shard;
      SHERD_RETURN_IF_ERROR(ReadShard(proto, next_shard++,
                                      static_cast<int64_t>(tensor.sizes.size()),
                                      offsets, sizes, shard));
      tensor.shards.push_back(std::move(shard));
    }
    manifest.tensors.push_back(std::move(tensor));
  }
  SHERD_RETURN_IF_ERROR(tensor_sizes.ExpectEmpty());
  SHERD_RETURN_IF_ERROR(offsets.ExpectEmpty());
  SHERD_RETURN_IF_ERROR(sizes.ExpectEmpty());
  SHERD_RETURN_IF_ERROR(PlaceChunks(manifest));
  SHERD_RETURN_IF_ERROR(ValidateManifestV1(manifest));
  return manifest;
}

absl::Status CheckMemory(absl::string_view message, int64_t max_memory) {
  SHERD_ASSIGN_OR_RETURN(const int64_t memory, ManifestMemory(message));
  if (memory <= max_memory) return absl::OkStatus();
  return LimitError(absl::StrCat("the manifest has ", message.size(),
                                 " bytes and would take ", memory,
                                 " in memory, expected at most ", max_memory));
}

Proto ToProto(const ManifestV1& manifest) {
  Proto proto;
  proto.set_writer(manifest.writer);
  proto.set_save_id(manifest.save_id);
  proto.set_world_size(manifest.world_size);
  proto.set_chunk_bytes(manifest.chunk_bytes);
  for (const ManifestFileV1& file : manifest.files) {
    proto.add_file_name(file.name);
    proto.add_file_size(file.size);
    proto.add_file_data_begin(file.data_begin);
    proto.add_file_header_crc32c(file.header_crc32c);
  }
  for (const std::string& placement : manifest.placements) {
    proto.add_placement(placement);
  }
  for (const ManifestTensorV1& tensor : manifest.tensors) {
    proto.add_tensor_name(tensor.name);
    proto.add_tensor_dtype(static_cast<uint32_t>(tensor.dtype));
    proto.add_tensor_rank(tensor.sizes.size());
    for (const int64_t size : tensor.sizes) proto.add_tensor_size(size);
    proto.add_tensor_flags(tensor.requires_grad ? 1 : 0);
    proto.add_tensor_layout(
        tensor.layout == SavedLayoutKind::kChunk ? 1 + tensor.chunk_dim : 0);
    proto.add_tensor_shards(tensor.shards.size());
    for (const ManifestShardV1& shard : tensor.shards) {
      proto.add_shard_file(shard.file + 1);
      proto.add_shard_file_offset(shard.file_offset);
      proto.add_shard_placement(shard.placement);
      for (const int64_t offset : shard.offsets) proto.add_shard_offset(offset);
      for (const int64_t size : shard.sizes) proto.add_shard_size(size);
    }
  }
  proto.mutable_chunk_crc32c()->Add(manifest.chunk_crc32c.begin(),
                                    manifest.chunk_crc32c.end());
  return proto;
}

}  // namespace

absl::StatusOr<std::string> EncodeManifestV1(const ManifestV1& manifest) {
  if (absl::Status status = ValidateManifestV1(manifest); !status.ok()) {
    return absl::InvalidArgumentError(status.message());
  }
  const Proto proto = ToProto(manifest);
  const size_t length = proto.ByteSizeLong();
  if (length + kFrameBytes > static_cast<size_t>(kMaxManifestBytes)) {
    return LimitError(
        absl::StrCat("the manifest would have ", length + kFrameBytes,
                     " bytes, expected at most ", kMaxManifestBytes));
  }
  std::string text = ManifestFront(1);
  text.reserve(length + kFrameBytes);
  AppendLittleEndian<uint64_t>(length, text);
  if (!proto.AppendToString(&text)) {
    return absl::InvalidArgumentError(
        "the manifest has text that is not UTF-8");
  }
  if (absl::Status status = CheckMemory(
          absl::string_view(text).substr(kFrontBytes), kMaxManifestMemory);
      !status.ok()) {
    return absl::Status(
        status.code(),
        absl::StrCat(status.message(),
                     "; spread the tensors over several checkpoints, or save "
                     "fewer shards"));
  }
  AppendLittleEndian<uint32_t>(Crc32c(AsBytes(text)), text);
  return text;
}

absl::StatusOr<ManifestV1> DecodeManifestV1(absl::string_view bytes,
                                            absl::string_view what,
                                            int64_t max_memory) {
  const absl::StatusOr<absl::string_view> message = OpenFrame(bytes);
  if (!message.ok()) return Annotate(message.status(), what);
  if (absl::Status status = CheckMemory(*message, max_memory); !status.ok()) {
    return Annotate(std::move(status), what);
  }
  Proto proto;
  if (message->size() > static_cast<size_t>(kMaxManifestBytes) ||
      !proto.ParseFromArray(message->data(),
                            static_cast<int>(message->size()))) {
    return absl::DataLossError(absl::StrCat(
        what, ": the manifest is damaged: not a message of the expected form"));
  }
  absl::StatusOr<ManifestV1> manifest = FromProto(proto);
  if (!manifest.ok()) return Annotate(manifest.status(), what);
  return manifest;
}

}  // namespace sherd
