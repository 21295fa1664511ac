#include "sherd/core/sharding/sharded_tensor.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/agreement.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/sharding/metadata_codec.h"
#include "sherd/core/sharding/reshard_plan.h"
#include "sherd/core/sharding/shard_validation.h"
#include "sherd/core/tensor/random.h"

namespace sherd {

struct ShardedTensor::State {
  std::shared_ptr<ProcessGroup> group;
  ShardingSpecPtr spec;
  ShardedTensorMetadata metadata;
  // Owners, as many as shards.
  std::vector<PlacedBox> boxes;
  // Of everything above but the group: the same on all ranks.
  uint64_t fingerprint = 0;
  // Positions of this rank's shards in metadata.shards.
  std::vector<int> local_indices;
};

namespace {

absl::StatusOr<std::shared_ptr<ProcessGroup>> GroupOrDefault(
    std::shared_ptr<ProcessGroup> group) {
  if (group != nullptr) return group;
  return DefaultGroup();
}

absl::Status CheckSpec(const ShardingSpecPtr& spec) {
  if (spec != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError("Expecting ShardingSpec but got null");
}

absl::Status CheckProperties(const TensorProperties& properties) {
  if (properties.layout != Layout::kStrided) {
    return absl::InvalidArgumentError(
        absl::StrCat("Only torch.strided layout is currently supported, found ",
                     Name(properties.layout)));
  }
  if (properties.memory_format != MemoryFormat::kContiguous) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Only torch.contiguous_format memory_format is currently supported, "
        "found ",
        Name(properties.memory_format)));
  }
  return absl::OkStatus();
}

// Built-in specs have checked their shards; those of users are not trusted.
absl::Status CheckShardsOf(const ShardingSpec& spec,
                           const ShardedTensorMetadata& metadata) {
  if (dynamic_cast<const ChunkShardingSpec*>(&spec) != nullptr ||
      dynamic_cast<const EnumerableShardingSpec*>(&spec) != nullptr) {
    return absl::OkStatus();
  }
  SHERD_RETURN_IF_ERROR(ValidateNonOverlapping(metadata.shards));
  return ValidateCover(metadata.shards, metadata.size);
}

uint64_t FingerprintOf(const ShardedTensorMetadata& metadata) {
  Fingerprint fingerprint;
  const auto add = [&](const Dims& dims) {
    fingerprint.Add(static_cast<int64_t>(dims.size()));
    for (const int64_t x : dims) fingerprint.Add(x);
  };
  add(metadata.size);
  fingerprint.Add(static_cast<int64_t>(metadata.properties.dtype));
  fingerprint.Add(metadata.properties.requires_grad ? 1 : 0);
  fingerprint.Add(metadata.properties.pin_memory ? 1 : 0);
  fingerprint.Add(static_cast<int64_t>(metadata.shards.size()));
  for (const ShardMetadata& shard : metadata.shards) {
    add(shard.offsets);
    add(shard.sizes);
    // Placements of states are by rank.
    fingerprint.Add(shard.placement->rank().value_or(-1));
    fingerprint.Add(static_cast<int64_t>(shard.placement->device().type));
    fingerprint.Add(shard.placement->device().index);
  }
  return fingerprint.value();
}

bool SameDevice(const Device& a, const Device& b) {
  return a.type == b.type && (a.index == b.index || a.index < 0 || b.index < 0);
}

absl::Status CheckHostMemory(const Tensor& tensor, absl::string_view what) {
  if (tensor.defined() && tensor.device().is_cpu()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, " is on ", tensor.device().ToString(),
                   ", expected one in host memory"));
}

absl::Status CheckHostMemory(absl::Span<const Shard> shards) {
  for (const Shard& shard : shards) {
    SHERD_RETURN_IF_ERROR(
        CheckHostMemory(shard.tensor, shard.metadata.ToString()));
  }
  return absl::OkStatus();
}

Dims StridesOf(const Tensor& tensor) {
  return Dims(tensor.strides().begin(), tensor.strides().end());
}

std::vector<SourceMemory> Sources(absl::Span<const Shard> shards,
                                  absl::Span<const int> indices) {
  std::vector<SourceMemory> memory;
  memory.reserve(shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    const Tensor& tensor = shards[i].tensor;
    memory.push_back({.shard = indices[i],
                      .offsets = shards[i].metadata.offsets,
                      .strides = StridesOf(tensor),
                      .data = tensor.data()});
  }
  return memory;
}

std::vector<DestinationMemory> Destinations(absl::Span<const Shard> shards,
                                            absl::Span<const int> indices) {
  std::vector<DestinationMemory> memory;
  memory.reserve(shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    Tensor tensor = shards[i].tensor;
    memory.push_back({.shard = indices[i],
                      .offsets = shards[i].metadata.offsets,
                      .strides = StridesOf(tensor),
                      .data = tensor.data()});
  }
  return memory;
}

// The addresses from the first to the last element.
struct AddressRange {
  const std::byte* begin;
  const std::byte* end;
};

AddressRange AddressesOf(const Tensor& tensor) {
  const auto* begin = static_cast<const std::byte*>(tensor.data());
  if (tensor.numel() == 0) return {begin, begin};
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    last += (tensor.sizes()[d] - 1) * tensor.strides()[d];
  }
  return {begin, begin + static_cast<size_t>(last + 1) * tensor.element_size()};
}

bool MemoryOverlaps(absl::Span<const Shard> a, absl::Span<const Shard> b) {
  // `first` says on which side a range begins; two that overlap are neighbours
  // of some kind in the order of their begins.
  struct Range {
    AddressRange at;
    bool first;
  };
  std::vector<Range> ranges;
  for (const Shard& shard : a) {
    ranges.push_back({AddressesOf(shard.tensor), true});
  }
  for (const Shard& shard : b) {
    ranges.push_back({AddressesOf(shard.tensor), false});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& x, const Range& y) {
    return x.at.begin < y.at.begin;
  });
  const std::byte* ends[2] = {nullptr, nullptr};
  for (const Range& range : ranges) {
    if (range.at.begin == range.at.end) continue;
    if (range.at.begin < ends[range.first ? 0 : 1]) return true;
    const std::byte*& end = ends[range.first ? 1 : 0];
    end = std::max(end, range.at.end);
  }
  return false;
}

uint64_t FingerprintOfCall(uint64_t source, uint64_t target,
                           const ReshardOptions& options) {
  return Fingerprint()
      .Add(static_cast<int64_t>(source))
      .Add(static_cast<int64_t>(target))
      .Add(options.max_staging_bytes)
      .value();
}

PlacedBox WholeBox(absl::Span<const int64_t> size, int rank) {
  return {.offsets = Dims(size.size(), 0),
          .sizes = Dims(size.begin(), size.end()),
          .rank = rank};
}

absl::Status CheckRank(const ProcessGroup& group, int rank,
                       absl::string_view name) {
  if (rank >= 0 && rank < group.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", rank, ", expected 0 to ", group.size() - 1));
}

}  // namespace

// Shard

absl::StatusOr<Shard> Shard::FromTensorAndOffsets(
    Tensor tensor, absl::Span<const int64_t> offsets, int rank) {
  if (rank < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank is ", rank, ", expected 0 or more"));
  }
  Shard shard;
  shard.metadata = {.offsets = Dims(offsets.begin(), offsets.end()),
                    .sizes = Dims(tensor.sizes().begin(), tensor.sizes().end()),
                    .placement = Placement::OnRank(rank, tensor.device())};
  shard.tensor = std::move(tensor);
  SHERD_RETURN_IF_ERROR(shard.Validate());
  return shard;
}

absl::Status Shard::Validate() const {
  SHERD_RETURN_IF_ERROR(metadata.Validate());
  if (!tensor.defined()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensor of ", metadata.ToString(), " is undefined"));
  }
  if (tensor.sizes() != absl::MakeConstSpan(metadata.sizes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Shard tensor size does not match with metadata.shard_lengths: ",
        FormatDims(tensor.sizes()), " for ", metadata.ToString()));
  }
  if (metadata.placement &&
      !SameDevice(metadata.placement->device(), tensor.device())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Local shard tensor device does not match with local Shard's "
        "placement: ",
        tensor.device().ToString(), " for ", metadata.ToString()));
  }
  return absl::OkStatus();
}

// Creation

absl::StatusOr<std::shared_ptr<const ShardedTensor::State>>
ShardedTensor::MakeState(std::shared_ptr<ProcessGroup> group,
                         const ShardingSpecPtr& spec,
                         absl::Span<const int64_t> size,
                         const TensorProperties& properties) {
  SHERD_RETURN_IF_ERROR(CheckSpec(spec));
  auto state = std::make_shared<State>();
  state->group = std::move(group);
  state->spec = spec;
  SHERD_ASSIGN_OR_RETURN(state->metadata,
                         spec->BuildMetadata(size, properties));
  SHERD_RETURN_IF_ERROR(CheckShardsOf(*spec, state->metadata));
  SHERD_RETURN_IF_ERROR(NumBytes(size, properties.dtype).status());
  SHERD_RETURN_IF_ERROR(CheckProperties(properties));
  SHERD_ASSIGN_OR_RETURN(
      state->boxes, PlacedBoxes(state->metadata.shards, state->group->size()));
  for (size_t i = 0; i < state->boxes.size(); ++i) {
    if (state->boxes[i].rank != state->group->rank()) continue;
    state->local_indices.push_back(static_cast<int>(i));
  }
  state->fingerprint = FingerprintOf(state->metadata);
  return state;
}

absl::StatusOr<ShardedTensor> ShardedTensor::Allocate(
    std::shared_ptr<const State> state, Allocator* allocator) {
  ShardedTensor result;
  result.local_shards_.reserve(state->local_indices.size());
  for (const int index : state->local_indices) {
    const ShardMetadata& metadata = state->metadata.shards[index];
    SHERD_ASSIGN_OR_RETURN(
        Tensor tensor, Tensor::Empty(metadata.sizes,
                                     {.dtype = state->metadata.properties.dtype,
                                      .device = metadata.placement->device(),
                                      .allocator = allocator}));
    result.local_shards_.push_back({std::move(tensor), metadata});
  }
  result.state_ = std::move(state);
  return result;
}

absl::StatusOr<ShardedTensor> ShardedTensor::Empty(
    const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
    const ShardedTensorOptions& options) {
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> group,
                         GroupOrDefault(options.group));
  const TensorProperties properties = {.dtype = options.dtype,
                                       .layout = options.layout,
                                       .requires_grad = options.requires_grad,
                                       .memory_format = options.memory_format,
                                       .pin_memory = options.pin_memory};
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<const State> state,
                         MakeState(std::move(group), spec, size, properties));
  return Allocate(std::move(state), options.allocator);
}

absl::StatusOr<ShardedTensor> ShardedTensor::Zeros(
    const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
    const ShardedTensorOptions& options) {
  return Full(spec, size, 0, options);
}

absl::StatusOr<ShardedTensor> ShardedTensor::Ones(
    const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
    const ShardedTensorOptions& options) {
  return Full(spec, size, 1, options);
}

absl::StatusOr<ShardedTensor> ShardedTensor::Rand(
    const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
    const ShardedTensorOptions& options) {
  SHERD_ASSIGN_OR_RETURN(ShardedTensor result, Empty(spec, size, options));
  for (Shard& shard : result.local_shards_) {
    if (shard.tensor.device().is_meta()) continue;
    SHERD_RETURN_IF_ERROR(FillUniform(shard.tensor, 0, 1));
  }
  return result;
}

absl::StatusOr<ShardedTensor> ShardedTensor::Randn(
    const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
    const ShardedTensorOptions& options) {
  SHERD_ASSIGN_OR_RETURN(ShardedTensor result, Empty(spec, size, options));
  for (Shard& shard : result.local_shards_) {
    if (shard.tensor.device().is_meta()) continue;
    SHERD_RETURN_IF_ERROR(FillNormal(shard.tensor, 0, 1));
  }
  return result;
}

// Properties

const ShardedTensor::State& ShardedTensor::state() const {
  SHERD_CHECK(defined()) << "this ShardedTensor was not created";
  return *state_;
}

const ShardedTensorMetadata& ShardedTensor::metadata() const {
  return state().metadata;
}
const ShardingSpecPtr& ShardedTensor::spec() const { return state().spec; }
const std::shared_ptr<ProcessGroup>& ShardedTensor::group() const {
  return state().group;
}
int ShardedTensor::rank() const { return state().group->rank(); }

absl::Span<const int64_t> ShardedTensor::size() const {
  return state().metadata.size;
}

absl::StatusOr<int64_t> ShardedTensor::size(int64_t dim) const {
  absl::StatusOr<int> normal = NormalizeDim(dim, this->dim());
  if (!normal.ok()) {
    return absl::OutOfRangeError(absl::StrCat("Dimension out of range: ", dim,
                                              " for a tensor of size ",
                                              FormatDims(size())));
  }
  return size()[static_cast<size_t>(*normal)];
}

int64_t ShardedTensor::dim() const {
  return static_cast<int64_t>(size().size());
}

int64_t ShardedTensor::numel() const {
  int64_t product = 1;
  for (const int64_t n : size()) product *= n;
  return product;
}

DType ShardedTensor::dtype() const { return state().metadata.properties.dtype; }

bool ShardedTensor::requires_grad() const {
  return state().metadata.properties.requires_grad;
}

absl::Span<const int> ShardedTensor::local_shard_indices() const {
  return state().local_indices;
}

absl::StatusOr<Tensor> ShardedTensor::local_tensor() const {
  if (local_shards_.size() != 1) {
    return absl::UnimplementedError(
        absl::StrCat("Only single local shard is supported. This rank has ",
                     local_shards_.size(), ", see local_shards()"));
  }
  return local_shards_[0].tensor;
}

std::string ShardedTensor::ToString() const {
  if (!defined()) return "ShardedTensor(undefined)";
  return absl::StrCat("ShardedTensor(", metadata().ToString(), ")");
}

std::ostream& operator<<(std::ostream& out, const ShardedTensor& tensor) {
  return out << tensor.ToString();
}

// From local shards

namespace {

absl::Status CheckLocalShards(const ProcessGroup& group,
                              absl::Span<const Shard> shards,
                              const TensorProperties& properties) {
  SHERD_RETURN_IF_ERROR(CheckProperties(properties));
  for (const Shard& shard : shards) {
    SHERD_ASSIGN_OR_RETURN(const int owner,
                           ResolveRank(shard.metadata.placement, group.size()));
    if (shard.tensor.defined() && !shard.tensor.is_contiguous()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Only torch.contiguous_format memory_format is currently supported, "
          "but the tensor of ",
          shard.metadata.ToString(), " is not contiguous"));
    }
    if (owner != group.rank()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Local shard metadata's rank does not match with the rank in its "
          "process group: ",
          owner, " and ", group.rank(), " for ", shard.metadata.ToString()));
    }
    SHERD_RETURN_IF_ERROR(shard.Validate());
    if (shard.tensor.dtype() != shards[0].tensor.dtype()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Local shards' tensor dtype property need to be the same on rank:",
          group.rank(), ", found ", Name(shards[0].tensor.dtype()), " and ",
          Name(shard.tensor.dtype())));
    }
  }
  return absl::OkStatus();
}

// A property that all ranks must agree on, as text for a message.
struct Property {
  const char* name;
  std::string value;
};

std::array<Property, 3> PropertiesOf(const ShardedTensorMetadata& metadata) {
  const TensorProperties& p = metadata.properties;
  return {{{"dtype", std::string(Name(p.dtype))},
           {"requires_grad", p.requires_grad ? "true" : "false"},
           {"pin_memory", p.pin_memory ? "true" : "false"}}};
}

absl::Status Differ(const char* name, const std::string& a, size_t rank_a,
                    const std::string& b, size_t rank_b) {
  return WithRank(
      absl::InvalidArgumentError(absl::StrCat(
          "ShardedTensor ", name,
          " property does not match from different ranks! Found ", a,
          " on rank:", rank_a, ", and ", b, " on rank:", rank_b, ".")),
      static_cast<int>(rank_b));
}

// What all ranks said, as one tensor. Ranks without shards have no say in its
// properties.
absl::StatusOr<ShardedTensorMetadata> MergeMetadata(
    absl::Span<const std::string> encoded) {
  ShardedTensorMetadata merged;
  std::optional<size_t> first;
  for (size_t rank = 0; rank < encoded.size(); ++rank) {
    absl::StatusOr<ShardedTensorMetadata> part =
        internal::DecodeMetadata(encoded[rank]);
    if (!part.ok()) return WithRank(part.status(), static_cast<int>(rank));
    if (rank == 0) merged.size = part->size;
    if (part->size != merged.size) {
      return Differ("global_size", FormatDims(merged.size), 0,
                    FormatDims(part->size), rank);
    }
    if (part->shards.empty()) continue;
    if (!first) {
      first = rank;
      merged.properties = part->properties;
    }
    const std::array<Property, 3> expected = PropertiesOf(merged);
    const std::array<Property, 3> found = PropertiesOf(*part);
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i].value == expected[i].value) continue;
      return Differ(found[i].name, expected[i].value, *first, found[i].value,
                    rank);
    }
    std::move(part->shards.begin(), part->shards.end(),
              std::back_inserter(merged.shards));
  }
  if (!first) {
    return absl::InvalidArgumentError(
        "ShardedTensor have no local shards on all ranks");
  }
  return merged;
}

}  // namespace

absl::StatusOr<ShardedTensor> ShardedTensor::FromLocalShards(
    std::vector<Shard> local_shards, absl::Span<const int64_t> size,
    const ShardedTensorOptions& options) {
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> group,
                         GroupOrDefault(options.group));
  ShardedTensorMetadata own;
  own.size.assign(size.begin(), size.end());
  own.properties = {.dtype = local_shards.empty()
                                 ? options.dtype
                                 : local_shards[0].tensor.dtype(),
                    .layout = options.layout,
                    .requires_grad = options.requires_grad,
                    .memory_format = options.memory_format,
                    .pin_memory = options.pin_memory};
  for (const Shard& shard : local_shards) own.shards.push_back(shard.metadata);
  SHERD_RETURN_IF_ERROR(
      Agree(*group, "from_local_shards",
            CheckLocalShards(*group, local_shards, own.properties)));
  SHERD_ASSIGN_OR_RETURN(
      const std::vector<std::string> encoded,
      AllGatherStrings(*group, internal::EncodeMetadata(own)));

  // From here on every rank has the same input and so the same verdict.
  SHERD_ASSIGN_OR_RETURN(const ShardedTensorMetadata merged,
                         MergeMetadata(encoded));
  SHERD_ASSIGN_OR_RETURN(const ShardingSpecPtr spec,
                         InferShardingSpec(merged.shards));
  SHERD_RETURN_IF_ERROR(ValidateCover(merged.shards, merged.size));
  ShardedTensor result;
  SHERD_ASSIGN_OR_RETURN(
      result.state_, MakeState(group, spec, merged.size, merged.properties));

  absl::flat_hash_map<ShardMetadata, std::vector<size_t>> given;
  for (size_t i = local_shards.size(); i-- > 0;) {
    given[local_shards[i].metadata].push_back(i);
  }
  for (const int index : result.state_->local_indices) {
    std::vector<size_t>& equal = given[result.metadata().shards[index]];
    SHERD_CHECK(!equal.empty());
    result.local_shards_.push_back(std::move(local_shards[equal.back()]));
    equal.pop_back();
  }
  return result;
}

// Moving data

absl::StatusOr<Tensor> ShardedTensor::Gather(
    int dst_rank, Tensor out, const ReshardOptions& options) const {
  if (!defined()) return NotCreated("gather");
  ProcessGroup& group = *state_->group;
  const bool is_destination = group.rank() == dst_rank;
  const auto prepare = [&]() -> absl::StatusOr<ReshardExecutor> {
    SHERD_RETURN_IF_ERROR(CheckRank(group, dst_rank, "dst_rank"));
    SHERD_RETURN_IF_ERROR(CheckHostMemory(local_shards_));
    SHERD_RETURN_IF_ERROR(PrepareOut(is_destination, out));
    const PlacedBox whole = WholeBox(size(), dst_rank);
    SHERD_ASSIGN_OR_RETURN(
        const ReshardPlan plan,
        ReshardPlan::Create(state_->boxes, {&whole, 1}, group.rank()));
    std::vector<DestinationMemory> destinations;
    if (is_destination) {
      destinations.push_back({.shard = 0,
                              .offsets = whole.offsets,
                              .strides = StridesOf(out),
                              .data = out.data()});
    }
    return ReshardExecutor::Create(
        plan, SizeOf(dtype()), group.size(),
        Sources(local_shards_, local_shard_indices()), destinations, options);
  };
  SHERD_RETURN_IF_ERROR(
      RunReshard(group, "gather", prepare(),
                 FingerprintOfCall(state_->fingerprint,
                                   static_cast<uint64_t>(dst_rank), options)));
  return is_destination ? std::move(out) : Tensor();
}

// Checks `out`, or makes it.
absl::Status ShardedTensor::PrepareOut(bool is_destination, Tensor& out) const {
  if (!is_destination) {
    if (!out.defined()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "`out` Tensor must NOT be specified on non-destination ranks");
  }
  if (!out.defined()) {
    SHERD_ASSIGN_OR_RETURN(out, Tensor::Empty(size(), {.dtype = dtype()}));
    return absl::OkStatus();
  }
  if (out.sizes() != size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("`out` Tensor has size ", FormatDims(out.sizes()),
                     ", but should be ", FormatDims(size())));
  }
  if (out.dtype() != dtype()) {
    return absl::InvalidArgumentError(
        absl::StrCat("`out` Tensor has dtype ", Name(out.dtype()),
                     ", but should be ", Name(dtype())));
  }
  SHERD_RETURN_IF_ERROR(CheckHostMemory(out, "`out` Tensor"));
  if (out.numel() > 0 && !out.writable()) {
    return absl::FailedPreconditionError("`out` Tensor may not be written to");
  }
  if (!IsNonOverlapping(out.sizes(), out.strides())) {
    return absl::InvalidArgumentError(
        "elements of the `out` Tensor lie on top of one another");
  }
  const Shard as_shard = {out, {}};
  if (MemoryOverlaps(local_shards_, {&as_shard, 1})) {
    return absl::InvalidArgumentError(
        "the memory of the `out` Tensor overlaps that of the shards");
  }
  return absl::OkStatus();
}

absl::Status ShardedTensor::Reshard(const ShardingSpecPtr& target,
                                    const ReshardOptions& options) {
  if (!defined()) return NotCreated("reshard");
  ProcessGroup& group = *state_->group;
  ShardedTensor result;
  bool same_layout = false;
  const auto prepare = [&]() -> absl::StatusOr<ReshardExecutor> {
    SHERD_RETURN_IF_ERROR(CheckHostMemory(local_shards_));
    SHERD_ASSIGN_OR_RETURN(
        std::shared_ptr<const State> state,
        MakeState(state_->group, target, size(), metadata().properties));
    if (state->metadata.shards == metadata().shards) {
      same_layout = true;
      result = *this;
      result.state_ = std::move(state);
      SHERD_ASSIGN_OR_RETURN(const ReshardPlan nothing,
                             ReshardPlan::Create({}, {}, group.rank()));
      return ReshardExecutor::Create(nothing, SizeOf(dtype()), group.size(), {},
                                     {}, options);
    }
    SHERD_ASSIGN_OR_RETURN(result, Allocate(std::move(state), nullptr));
    return PrepareMove(result, options);
  };
  absl::StatusOr<ReshardExecutor> executor = prepare();
  const uint64_t target_fingerprint =
      result.defined() ? result.state_->fingerprint : 0;
  SHERD_RETURN_IF_ERROR(RunReshard(
      group, "reshard", std::move(executor),
      FingerprintOfCall(state_->fingerprint, target_fingerprint, options)));
  *this = std::move(result);
  return absl::OkStatus();
}

absl::Status ShardedTensor::ReshardInto(ShardedTensor& dst,
                                        const ReshardOptions& options) const {
  if (!defined() || !dst.defined()) return NotCreated("reshard_into");
  const auto prepare = [&]() -> absl::StatusOr<ReshardExecutor> {
    if (dst.state_->group != state_->group) {
      return absl::InvalidArgumentError(
          "source and destination are spread over different groups");
    }
    if (dst.size() != size() || dst.dtype() != dtype()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the destination has size ", FormatDims(dst.size()),
                       " and dtype ", Name(dst.dtype()), ", but should have ",
                       FormatDims(size()), " and ", Name(dtype())));
    }
    SHERD_RETURN_IF_ERROR(CheckHostMemory(local_shards_));
    SHERD_RETURN_IF_ERROR(CheckHostMemory(dst.local_shards_));
    for (const Shard& shard : dst.local_shards_) {
      if (shard.tensor.numel() == 0 || shard.tensor.writable()) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "destination ", shard.metadata.ToString(), " may not be written to"));
    }
    if (MemoryOverlaps(local_shards_, dst.local_shards_)) {
      return absl::InvalidArgumentError(
          "the memory of source and destination shards overlaps");
    }
    return PrepareMove(dst, options);
  };
  return RunReshard(
      *state_->group, "reshard_into", prepare(),
      FingerprintOfCall(state_->fingerprint, dst.state_->fingerprint, options));
}

absl::StatusOr<ReshardExecutor> ShardedTensor::PrepareMove(
    const ShardedTensor& dst, const ReshardOptions& options) const {
  SHERD_ASSIGN_OR_RETURN(
      const ReshardPlan plan,
      ReshardPlan::Create(state_->boxes, dst.state_->boxes, rank()));
  return ReshardExecutor::Create(
      plan, SizeOf(dtype()), state_->group->size(),
      Sources(local_shards_, local_shard_indices()),
      Destinations(dst.local_shards_, dst.local_shard_indices()), options);
}

absl::Status ShardedTensor::NotCreated(absl::string_view operation) {
  return absl::FailedPreconditionError(
      absl::StrCat(operation, ": the ShardedTensor was not created"));
}

// Scatter

namespace {

// What each rank tells the others when a tensor is scattered. All ranks run the
// same build, so the struct travels as it lies in memory.
struct ShardCall {
  int64_t failed = 0;
  int64_t src_rank = 0;
  uint64_t spec = 0;
  int64_t dtype = 0;
  int64_t dims = 0;
  std::array<int64_t, kMaxRank> size = {};
};

absl::Status CheckSource(const Tensor& tensor) {
  if (!tensor.defined()) {
    return absl::InvalidArgumentError(
        "the tensor is undefined on the source rank");
  }
  if (!tensor.is_contiguous()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tensor of size ", FormatDims(tensor.sizes()), " and strides ",
        FormatDims(tensor.strides()), " is not a contiguous Tensor"));
  }
  return CheckHostMemory(tensor, "the tensor");
}

// Every rank sees all calls and comes to the same result.
absl::Status CompareCalls(absl::Span<const ShardCall> calls) {
  for (size_t rank = 1; rank < calls.size(); ++rank) {
    const char* what = nullptr;
    if (calls[rank].src_rank != calls[0].src_rank) {
      what = "src_rank";
    } else if (calls[rank].spec != calls[0].spec) {
      what = "sharding_spec";
    }
    if (what == nullptr) continue;
    return WithRank(absl::InvalidArgumentError(absl::StrCat(
                        "shard_tensor: the argument of rank ", rank,
                        " does not match with ", what, " of rank 0")),
                    static_cast<int>(rank));
  }
  return absl::OkStatus();
}

// Tells all ranks what `src_rank` has, once it is clear that they agree on
// whom to ask.
absl::StatusOr<ShardCall> ExchangeCalls(ProcessGroup& group,
                                        const Tensor& tensor,
                                        const ShardingSpecPtr& spec,
                                        int src_rank) {
  absl::Status local = CheckSpec(spec);
  local.Update(CheckRank(group, src_rank, "src_rank"));
  const bool is_source = group.rank() == src_rank;
  if (is_source) local.Update(CheckSource(tensor));
  ShardCall call = {.failed = local.ok() ? 0 : 1, .src_rank = src_rank};
  if (spec != nullptr) call.spec = Fingerprint().Add(spec->ToString()).value();
  if (is_source && local.ok()) {
    call.dtype = static_cast<int64_t>(tensor.dtype());
    call.dims = tensor.dim();
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), call.size.begin());
  }
  std::vector<ShardCall> calls(static_cast<size_t>(group.size()));
  SHERD_RETURN_IF_ERROR(group.AllGather(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&call),
                          sizeof(call)),
      absl::MakeSpan(reinterpret_cast<std::byte*>(calls.data()),
                     calls.size() * sizeof(call))));
  const bool any_failed =
      std::any_of(calls.begin(), calls.end(),
                  [](const ShardCall& c) { return c.failed != 0; });
  if (any_failed) return Agree(group, "shard_tensor", local);
  SHERD_RETURN_IF_ERROR(CompareCalls(calls));
  const ShardCall& source = calls[static_cast<size_t>(src_rank)];
  if (!IsValid(static_cast<int32_t>(source.dtype)) || source.dims < 0 ||
      source.dims > kMaxRank) {
    return WithRank(
        absl::InternalError("shard_tensor: the source sent a malformed call"),
        src_rank);
  }
  return source;
}

}  // namespace

absl::StatusOr<ShardedTensor> ShardedTensor::Scatter(
    const Tensor& tensor, const ShardingSpecPtr& spec, int src_rank,
    const std::shared_ptr<ProcessGroup>& group, absl::Span<const int64_t> size,
    DType dtype, const ReshardOptions& options) {
  ShardedTensor result;
  const auto prepare = [&]() -> absl::StatusOr<ReshardExecutor> {
    SHERD_ASSIGN_OR_RETURN(std::shared_ptr<const State> state,
                           MakeState(group, spec, size, {.dtype = dtype}));
    SHERD_ASSIGN_OR_RETURN(result, Allocate(std::move(state), nullptr));
    SHERD_RETURN_IF_ERROR(CheckHostMemory(result.local_shards_));
    const PlacedBox whole = WholeBox(size, src_rank);
    SHERD_ASSIGN_OR_RETURN(
        const ReshardPlan plan,
        ReshardPlan::Create({&whole, 1}, result.state_->boxes, group->rank()));
    std::vector<SourceMemory> sources;
    if (group->rank() == src_rank) {
      sources.push_back({.shard = 0,
                         .offsets = whole.offsets,
                         .strides = StridesOf(tensor),
                         .data = tensor.data()});
    }
    return ReshardExecutor::Create(
        plan, SizeOf(dtype), group->size(), sources,
        Destinations(result.local_shards_, result.local_shard_indices()),
        options);
  };
  absl::StatusOr<ReshardExecutor> executor = prepare();
  const uint64_t target = result.defined() ? result.state_->fingerprint : 0;
  SHERD_RETURN_IF_ERROR(RunReshard(*group, "shard_tensor", std::move(executor),
                                   FingerprintOfCall(0, target, options)));
  return result;
}

absl::StatusOr<ShardedTensor> ShardTensor(const Tensor& tensor,
                                          const ShardingSpecPtr& spec,
                                          int src_rank,
                                          std::shared_ptr<ProcessGroup> given,
                                          const ReshardOptions& options) {
  SHERD_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group,
                         GroupOrDefault(std::move(given)));
  SHERD_ASSIGN_OR_RETURN(const ShardCall source,
                         ExchangeCalls(*group, tensor, spec, src_rank));
  const absl::Span<const int64_t> size(source.size.data(),
                                       static_cast<size_t>(source.dims));
  return ShardedTensor::Scatter(tensor, spec, src_rank, group, size,
                                static_cast<DType>(source.dtype), options);
}

}  // namespace sherd
