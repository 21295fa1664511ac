#include "sherd/serialization/metadata.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/spec/placement_table.h"
#include "sherd/core/sharding/spec/shard_validation.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/proto/sharding.pb.h"

namespace sherd {
namespace {

namespace proto = sharding::v1;

using google::protobuf::RepeatedField;
using google::protobuf::RepeatedPtrField;

constexpr size_t kMaxBytes = size_t{1} << 30;
// Many shards may have one placement: long ones would take much memory.
constexpr size_t kMaxTextBytes = 1024;
// Names of workers, counted once per shard, as shards in memory have them: up
// to this many bytes per shard, or in all, whichever is more.
constexpr int64_t kNameBytesPerShard = 64;
constexpr int64_t kMaxSmallNameBytes = int64_t{64} << 20;

constexpr absl::string_view kMetadata = "sharded tensor metadata";
constexpr absl::string_view kSpec = "sharding spec";

static_assert(proto::DType_MAX == kNumDTypes - 1);

// Rules for both directions.

absl::Status CheckEnum(absl::string_view name, int64_t number, int last) {
  if (number >= 0 && number <= last) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " has the number ", number, ", expected 0 to ", last,
                   "; use a later Sherd if it is a newer one"));
}

absl::Status CheckProperties(const TensorProperties& properties) {
  SHERD_RETURN_IF_ERROR(CheckEnum(
      "dtype", static_cast<int64_t>(properties.dtype), proto::DType_MAX));
  SHERD_RETURN_IF_ERROR(CheckEnum(
      "layout", static_cast<int64_t>(properties.layout), proto::Layout_MAX));
  return CheckEnum("memory_format",
                   static_cast<int64_t>(properties.memory_format),
                   proto::MemoryFormat_MAX);
}

absl::Status CheckMetadata(const ShardedTensorMetadata& metadata) {
  SHERD_RETURN_IF_ERROR(CheckProperties(metadata.properties));
  SHERD_RETURN_IF_ERROR(
      Annotate(NumElements(metadata.size).status(), "the size of the tensor"));
  SHERD_RETURN_IF_ERROR(
      ValidateNonOverlapping(metadata.shards, Replicas::kAllowed));
  return ValidateCover(metadata.shards, metadata.size, Replicas::kAllowed);
}

// As NumElements, for dimensions of a mesh.
absl::Status CheckMeshDims(int64_t dims) {
  if (dims <= kMaxRank) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the mesh has ", dims, " dimensions, expected at most ", kMaxRank));
}

absl::Status CheckCutDim(int64_t dim) {
  if (dim >= -kMaxRank && dim < kMaxRank) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the mesh cuts dimension ", dim, " of a tensor, expected ",
                   -kMaxRank, " to ", kMaxRank - 1));
}

absl::Status CheckTextLength(absl::string_view text) {
  if (text.size() <= kMaxTextBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the placement ", Quoted(text), " has ", text.size(),
                   " bytes, expected at most ", kMaxTextBytes,
                   ": shorten the worker's name"));
}

// `numbers`: of each shard, 1 + its index in `placements`, or 0.
absl::Status CheckNames(absl::Span<const Placement* const> placements,
                        const RepeatedField<uint32_t>& numbers) {
  std::vector<int64_t> lengths = {0};
  for (const Placement* placement : placements) {
    lengths.push_back(
        static_cast<int64_t>(placement->worker_name().value_or("").size()));
  }
  int64_t bytes = 0;
  for (const uint32_t number : numbers) bytes += lengths[number];
  const int64_t limit =
      std::max(kMaxSmallNameBytes, kNameBytesPerShard * numbers.size());
  if (bytes <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the names of the workers of ", numbers.size(), " shards would take ",
      bytes, " bytes in memory, expected at most ", limit,
      ": shorten the names"));
}

// Writing.

absl::Status WritePlacement(const Placement& placement,
                            RepeatedPtrField<std::string>& texts) {
  const std::string text = placement.ToString();
  SHERD_RETURN_IF_ERROR(CheckTextLength(text));
  *texts.Add() = text;
  return absl::OkStatus();
}

absl::Status WritePlacements(absl::Span<const Placement> placements,
                             RepeatedPtrField<std::string>& texts) {
  for (const Placement& placement : placements) {
    SHERD_RETURN_IF_ERROR(WritePlacement(placement, texts));
  }
  return absl::OkStatus();
}

// All shards have `dims` dimensions.
absl::Status WriteShards(absl::Span<const ShardMetadata> shards, size_t dims,
                         proto::ShardList& list) {
  list.set_dims(static_cast<uint32_t>(dims));
  const internal::PlacementTable table(shards);
  for (const Placement* placement : table.list()) {
    SHERD_RETURN_IF_ERROR(
        WritePlacement(*placement, *list.mutable_placement()));
  }
  for (const ShardMetadata& shard : shards) {
    list.add_shard_placement(static_cast<uint32_t>(1 + table.NumberOf(shard)));
    list.mutable_shard_offset()->Add(shard.offsets.begin(),
                                     shard.offsets.end());
    list.mutable_shard_size()->Add(shard.sizes.begin(), shard.sizes.end());
  }
  return CheckNames(table.list(), list.shard_placement());
}

void WriteProperties(const TensorProperties& properties,
                     proto::TensorProperties& message) {
  message.set_dtype(static_cast<proto::DType>(properties.dtype));
  message.set_layout(static_cast<proto::Layout>(properties.layout));
  message.set_requires_grad(properties.requires_grad);
  message.set_memory_format(
      static_cast<proto::MemoryFormat>(properties.memory_format));
  message.set_pin_memory(properties.pin_memory);
}

absl::Status WriteMesh(const MeshShardingSpec& spec, proto::MeshSpec& message) {
  SHERD_RETURN_IF_ERROR(
      CheckMeshDims(static_cast<int64_t>(spec.mesh().shape.size())));
  message.mutable_shape()->Add(spec.mesh().shape.begin(),
                               spec.mesh().shape.end());
  for (const MeshShardingSpec::Cut& cut : spec.cuts()) {
    SHERD_RETURN_IF_ERROR(CheckCutDim(cut.dim));
    message.add_cut_mesh_dim(static_cast<uint32_t>(cut.mesh_dim));
    message.add_cut_dim(cut.dim);
  }
  return WritePlacements(spec.mesh().placements, *message.mutable_placement());
}

template <typename Message>
absl::StatusOr<std::string> ToBytes(const Message& message,
                                    absl::string_view what) {
  const size_t length = message.ByteSizeLong();
  std::string bytes;
  if (length > kMaxBytes || !message.AppendToString(&bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": it would have ", length,
                     " bytes, expected at most ", kMaxBytes));
  }
  return bytes;
}

// Reading. Errors of any code are changed to kDataLoss at the end.

absl::Status Lacks(absl::string_view field) {
  return absl::DataLossError(
      absl::StrCat("the bytes lack the field ", field,
                   ": they are truncated, or another message"));
}

template <typename Message>
absl::Status FromBytes(absl::string_view bytes, Message& message) {
  if (bytes.size() > kMaxBytes) {
    return absl::DataLossError(absl::StrCat(
        "there are ", bytes.size(), " bytes, expected at most ", kMaxBytes));
  }
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError(
        absl::StrCat(bytes.size(), " bytes are not a message ",
                     Message::descriptor()->full_name()));
  }
  if (!message.has_version()) return Lacks("version");
  if (message.version() > kShardingFormatVersion) {
    return absl::UnimplementedError(absl::StrCat(
        "version ", message.version(), " wrote the bytes, this build reads 1 ",
        "to ", kShardingFormatVersion, "; use a later Sherd"));
  }
  if (message.version() == 0) {
    return absl::DataLossError(absl::StrCat("the version is 0, expected 1 to ",
                                            kShardingFormatVersion));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Placement>> ReadPlacements(
    const RepeatedPtrField<std::string>& texts) {
  std::vector<Placement> placements;
  for (const std::string& text : texts) {
    SHERD_RETURN_IF_ERROR(CheckTextLength(text));
    absl::StatusOr<Placement> placement = Placement::Parse(text);
    if (!placement.ok()) {
      return Annotate(placement.status(),
                      absl::StrCat("placement ", placements.size()));
    }
    // Written, it also has the device, which the text may lack.
    SHERD_RETURN_IF_ERROR(CheckTextLength(placement->ToString()));
    placements.push_back(*std::move(placement));
  }
  return placements;
}

absl::Status CheckColumn(absl::string_view name,
                         const RepeatedField<int64_t>& column, int64_t shards,
                         int64_t dims) {
  if (column.size() == shards * dims) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "there are ", column.size(), " entries in ", name, ", expected ",
      shards * dims, " for ", shards, " shards in ", dims, " dimensions"));
}

absl::Status CheckPlacementNumbers(const RepeatedField<uint32_t>& numbers,
                                   size_t placements) {
  for (int i = 0; i < numbers.size(); ++i) {
    if (numbers[i] > placements) {
      return absl::DataLossError(absl::StrCat("shard ", i, " has placement ",
                                              numbers[i], " of ", placements));
    }
  }
  return absl::OkStatus();
}

std::vector<const Placement*> PointersTo(
    const std::vector<Placement>& placements) {
  std::vector<const Placement*> pointers;
  for (const Placement& placement : placements) pointers.push_back(&placement);
  return pointers;
}

absl::StatusOr<std::vector<ShardMetadata>> ReadShards(
    const proto::ShardList& list) {
  if (!list.has_dims()) return Lacks("shards.dims");
  if (list.dims() > kMaxRank) {
    return absl::DataLossError(absl::StrCat("the shards have ", list.dims(),
                                            " dimensions, expected at most ",
                                            kMaxRank));
  }
  const int dims = static_cast<int>(list.dims());
  const int count = list.shard_placement_size();
  SHERD_RETURN_IF_ERROR(
      CheckColumn("shard_offset", list.shard_offset(), count, dims));
  SHERD_RETURN_IF_ERROR(
      CheckColumn("shard_size", list.shard_size(), count, dims));
  SHERD_ASSIGN_OR_RETURN(const std::vector<Placement> placements,
                         ReadPlacements(list.placement()));
  SHERD_RETURN_IF_ERROR(
      CheckPlacementNumbers(list.shard_placement(), placements.size()));
  SHERD_RETURN_IF_ERROR(
      CheckNames(PointersTo(placements), list.shard_placement()));
  std::vector<ShardMetadata> shards;
  shards.reserve(static_cast<size_t>(count));
  const int64_t* offsets = list.shard_offset().data();
  const int64_t* sizes = list.shard_size().data();
  for (const uint32_t placement : list.shard_placement()) {
    ShardMetadata& shard = shards.emplace_back();
    shard.offsets.assign(offsets, offsets + dims);
    shard.sizes.assign(sizes, sizes + dims);
    if (placement > 0) shard.placement = placements[placement - 1];
    offsets += dims;
    sizes += dims;
  }
  return shards;
}

// Numbers outside their enumeration are kept: CheckProperties refuses them.
absl::StatusOr<TensorProperties> ReadProperties(
    const proto::TensorProperties& message) {
  if (!message.has_dtype()) return Lacks("properties.dtype");
  if (!message.has_layout()) return Lacks("properties.layout");
  if (!message.has_requires_grad()) return Lacks("properties.requires_grad");
  if (!message.has_memory_format()) return Lacks("properties.memory_format");
  if (!message.has_pin_memory()) return Lacks("properties.pin_memory");
  return TensorProperties{
      .dtype = static_cast<DType>(message.dtype()),
      .layout = static_cast<Layout>(message.layout()),
      .requires_grad = message.requires_grad(),
      .memory_format = static_cast<MemoryFormat>(message.memory_format()),
      .pin_memory = message.pin_memory()};
}

absl::StatusOr<ShardedTensorMetadata> ReadMetadata(absl::string_view bytes) {
  proto::ShardedTensorMetadata message;
  SHERD_RETURN_IF_ERROR(FromBytes(bytes, message));
  if (!message.has_properties()) return Lacks("properties");
  if (!message.has_shards()) return Lacks("shards");
  ShardedTensorMetadata metadata;
  SHERD_ASSIGN_OR_RETURN(metadata.properties,
                         ReadProperties(message.properties()));
  metadata.size.assign(message.size().begin(), message.size().end());
  SHERD_ASSIGN_OR_RETURN(metadata.shards, ReadShards(message.shards()));
  // Without shards, nothing else would compare the two.
  if (message.shards().dims() != metadata.size.size()) {
    return absl::DataLossError(
        absl::StrCat("the tensor has ", metadata.size.size(),
                     " dimensions, its shards ", message.shards().dims()));
  }
  SHERD_RETURN_IF_ERROR(CheckMetadata(metadata));
  return metadata;
}

absl::StatusOr<ShardingSpecPtr> ReadMesh(const proto::MeshSpec& message) {
  SHERD_RETURN_IF_ERROR(CheckMeshDims(message.shape_size()));
  if (message.cut_dim_size() != message.cut_mesh_dim_size()) {
    return absl::DataLossError(absl::StrCat(
        "there are ", message.cut_dim_size(), " entries in cut_dim, expected ",
        message.cut_mesh_dim_size(), " as in cut_mesh_dim"));
  }
  DeviceMesh mesh;
  mesh.shape.assign(message.shape().begin(), message.shape().end());
  SHERD_ASSIGN_OR_RETURN(mesh.placements, ReadPlacements(message.placement()));
  std::vector<std::vector<int>> cuts;
  std::vector<MeshPlacement> by_mesh_dim(mesh.shape.size(),
                                         MeshPlacement::Replicate());
  bool any_negative = false;
  for (int i = 0; i < message.cut_dim_size(); ++i) {
    const int dim = message.cut_dim(i);
    const uint32_t mesh_dim = message.cut_mesh_dim(i);
    SHERD_RETURN_IF_ERROR(CheckCutDim(dim));
    if (mesh_dim >= by_mesh_dim.size() || by_mesh_dim[mesh_dim].is_shard()) {
      return absl::DataLossError(absl::StrCat(
          "Invalid mesh dim: ", mesh_dim, ", expected each in [0, ",
          by_mesh_dim.size(), ") to cut once at most"));
    }
    by_mesh_dim[mesh_dim] = MeshPlacement::Shard(dim);
    any_negative |= dim < 0;
    if (dim < 0) continue;
    cuts.resize(std::max(cuts.size(), static_cast<size_t>(dim) + 1));
    cuts[static_cast<size_t>(dim)].push_back(static_cast<int>(mesh_dim));
  }
  if (any_negative) {
    return MeshShardingSpec::FromPlacements(std::move(mesh), by_mesh_dim);
  }
  return MeshShardingSpec::Create(std::move(mesh), std::move(cuts));
}

absl::StatusOr<ShardingSpecPtr> ReadSpec(absl::string_view bytes) {
  proto::ShardingSpec message;
  SHERD_RETURN_IF_ERROR(FromBytes(bytes, message));
  switch (message.spec_case()) {
    case proto::ShardingSpec::kChunk: {
      if (!message.chunk().has_dim()) return Lacks("chunk.dim");
      SHERD_ASSIGN_OR_RETURN(std::vector<Placement> placements,
                             ReadPlacements(message.chunk().placement()));
      return ChunkShardingSpec::Create(message.chunk().dim(),
                                       std::move(placements));
    }
    case proto::ShardingSpec::kEnumerable: {
      SHERD_ASSIGN_OR_RETURN(std::vector<ShardMetadata> shards,
                             ReadShards(message.enumerable().shards()));
      return EnumerableShardingSpec::CreateWithReplicas(std::move(shards));
    }
    case proto::ShardingSpec::kMesh:
      return ReadMesh(message.mesh());
    case proto::ShardingSpec::SPEC_NOT_SET:
      break;
  }
  return absl::DataLossError(
      "the bytes lack a chunk, enumerable or mesh spec: they are truncated, "
      "another message, or of a later Sherd");
}

// The error of an argument, about bytes that are no argument's.
absl::Status OfBytes(const absl::Status& status, absl::string_view what) {
  if (absl::IsUnimplemented(status)) return Annotate(status, what);
  return absl::DataLossError(absl::StrCat(what, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::string> SerializeMetadata(
    const ShardedTensorMetadata& metadata) {
  SHERD_RETURN_IF_ERROR(Annotate(CheckMetadata(metadata), kMetadata));
  proto::ShardedTensorMetadata message;
  message.set_version(kShardingFormatVersion);
  WriteProperties(metadata.properties, *message.mutable_properties());
  message.mutable_size()->Add(metadata.size.begin(), metadata.size.end());
  SHERD_RETURN_IF_ERROR(
      Annotate(WriteShards(metadata.shards, metadata.size.size(),
                           *message.mutable_shards()),
               kMetadata));
  return ToBytes(message, kMetadata);
}

absl::StatusOr<ShardedTensorMetadata> ParseMetadata(absl::string_view bytes) {
  absl::StatusOr<ShardedTensorMetadata> metadata = ReadMetadata(bytes);
  if (!metadata.ok()) return OfBytes(metadata.status(), kMetadata);
  return metadata;
}

absl::StatusOr<std::string> SerializeSpec(const ShardingSpecPtr& spec) {
  if (spec == nullptr) {
    return absl::InvalidArgumentError("Expecting ShardingSpec, found null");
  }
  proto::ShardingSpec message;
  message.set_version(kShardingFormatVersion);
  absl::Status status;
  if (const ShardingSpec& of = *spec; typeid(of) == typeid(ChunkShardingSpec)) {
    const auto& chunk = static_cast<const ChunkShardingSpec&>(of);
    message.mutable_chunk()->set_dim(chunk.dim());
    status = WritePlacements(chunk.placements(),
                             *message.mutable_chunk()->mutable_placement());
  } else if (typeid(of) == typeid(EnumerableShardingSpec)) {
    const auto& shards =
        static_cast<const EnumerableShardingSpec&>(of).shards();
    status = WriteShards(shards, shards[0].sizes.size(),
                         *message.mutable_enumerable()->mutable_shards());
  } else if (typeid(of) == typeid(MeshShardingSpec)) {
    status = WriteMesh(static_cast<const MeshShardingSpec&>(of),
                       *message.mutable_mesh());
  } else {
    return absl::UnimplementedError(absl::StrCat(
        kSpec, ": ", of.ToString(),
        " is of a class of your own, expected ChunkShardingSpec, "
        "EnumerableShardingSpec or MeshShardingSpec; serialize the metadata "
        "that it builds"));
  }
  SHERD_RETURN_IF_ERROR(Annotate(std::move(status), kSpec));
  return ToBytes(message, kSpec);
}

absl::StatusOr<ShardingSpecPtr> ParseSpec(absl::string_view bytes) {
  absl::StatusOr<ShardingSpecPtr> spec = ReadSpec(bytes);
  if (!spec.ok()) return OfBytes(spec.status(), kSpec);
  return spec;
}

}  // namespace sherd
