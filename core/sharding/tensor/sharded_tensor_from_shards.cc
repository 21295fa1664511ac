#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/deviation.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/spec/metadata_codec.h"
#include "sherd/core/sharding/spec/shard_validation.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"
#include "sherd/core/sharding/validated_metadata.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

using internal::LocalShards;

constexpr char kOperation[] = "from_local_shards";

absl::Status Expect(bool same, int rank, absl::string_view property,
                    absl::string_view detail) {
  if (same) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "Local shards' tensor ", property,
      " property need to be the same on rank:", rank, "! ", detail));
}

absl::Status NotContiguous(const ShardMetadata& shard) {
  return absl::InvalidArgumentError(absl::StrCat(
      "Only torch.contiguous_format memory_format is currently supported, but "
      "the tensor of ",
      shard.ToString(), " is not contiguous"));
}

absl::Status WrongDevice(const Tensor& tensor, const ShardMetadata& shard) {
  return absl::InvalidArgumentError(
      absl::StrCat("Local shard tensor device does not match with local "
                   "Shard's placement: ",
                   tensor.device().ToString(), " for ", shard.ToString()));
}

absl::Status CheckPinning(const TensorProperties& properties,
                          const Shard& shard, int rank) {
  SHERD_ASSIGN_OR_RETURN(const bool as_said,
                         IsPinnedAsSaid(properties, shard.tensor));
  return Expect(
      as_said, rank, "pin_memory",
      absl::StrCat("pin_memory is ", properties.pin_memory ? "true" : "false",
                   ", but the memory of the tensor of ",
                   shard.metadata.ToString(), " is ",
                   properties.pin_memory ? "not pinned" : "pinned",
                   "; set ShardedTensorOptions::pin_memory for tensors in "
                   "DeviceRuntime::PinnedMemory(), and for no others"));
}

absl::Status CheckDefined(const Shard& shard) {
  if (shard.tensor.defined()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the tensor of ", shard.metadata.ToString(), " is undefined"));
}

// One of the shards that this rank brings; `first` is its first.
absl::Status CheckLocalShard(const ProcessGroup& group,
                             const RankResolver& resolver, const Shard& shard,
                             const Shard& first,
                             const TensorProperties& properties) {
  SHERD_ASSIGN_OR_RETURN(const int owner,
                         resolver.Resolve(shard.metadata.placement));
  SHERD_RETURN_IF_ERROR(CheckDefined(shard));
  SHERD_RETURN_IF_ERROR(CheckShardedProperties(properties));
  if (!shard.tensor.is_contiguous()) return NotContiguous(shard.metadata);
  if (owner != group.rank()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Local shard metadata's rank does not match with the rank in its "
        "process group: ",
        owner, " and ", group.rank(), " for ", shard.metadata.ToString()));
  }
  if (!SameDevice(shard.tensor.device(), shard.metadata.placement->device())) {
    return WrongDevice(shard.tensor, shard.metadata);
  }
  SHERD_RETURN_IF_ERROR(CheckPinnable(properties, shard.tensor.device()));
  SHERD_RETURN_IF_ERROR(CheckPinning(properties, shard, group.rank()));
  SHERD_RETURN_IF_ERROR(
      Expect(shard.tensor.sizes() == absl::MakeConstSpan(shard.metadata.sizes),
             group.rank(), "size",
             absl::StrCat("Shard tensor size does not match with "
                          "metadata.shard_lengths: ",
                          FormatDims(shard.tensor.sizes()), " for ",
                          shard.metadata.ToString())));
  SHERD_RETURN_IF_ERROR(Expect(
      shard.tensor.dtype() == first.tensor.dtype(), group.rank(), "dtype",
      absl::StrCat("Found ", Name(first.tensor.dtype()), " and ",
                   Name(shard.tensor.dtype()))));
  return shard.metadata.Validate();
}

absl::Status CheckLocalShards(const ProcessGroup& group,
                              absl::Span<const Shard> shards,
                              const ShardedTensorOptions& options,
                              const TensorProperties& properties) {
  SHERD_RETURN_IF_ERROR(CheckShardedProperties(properties));
  const std::shared_ptr<RemoteAccess> workers =
      internal::WorkersOrDefault(options);
  const RankResolver resolver = internal::ResolverFor(group, workers.get());
  for (const Shard& shard : shards) {
    SHERD_RETURN_IF_ERROR(
        CheckLocalShard(group, resolver, shard, shards[0], properties));
  }
  return absl::OkStatus();
}

// A property that all ranks must agree on, as text for a message.
struct Property {
  const char* name;
  std::string value;
};

std::array<Property, 4> PropertiesOf(const ShardedTensorMetadata& metadata) {
  const TensorProperties& p = metadata.properties;
  return {{{"global_size", FormatDims(metadata.size)},
           {"dtype", std::string(Name(p.dtype))},
           {"requires_grad", p.requires_grad ? "true" : "false"},
           {"pin_memory", p.pin_memory ? "true" : "false"}}};
}

// parts[r] is the metadata of rank r; without shards it has only the size.
absl::Status CompareProperties(absl::Span<const ShardedTensorMetadata> parts) {
  for (size_t i = 0; i < std::tuple_size_v<decltype(PropertiesOf({}))>; ++i) {
    std::vector<std::optional<std::string>> values;
    for (const ShardedTensorMetadata& part : parts) {
      const bool has_say = i == 0 || !part.shards.empty();
      values.push_back(has_say ? std::optional(PropertiesOf(part)[i].value)
                               : std::nullopt);
    }
    const internal::Deviation deviation = internal::FindDeviation(values);
    if (!deviation.Exists()) continue;
    const std::optional<int> failed = deviation.Rank();
    const auto value_of = [&](int rank) {
      return *values[static_cast<size_t>(rank)];
    };
    const absl::Status status = absl::InvalidArgumentError(
        absl::StrCat("ShardedTensor ", PropertiesOf({})[i].name,
                     " property does not match from different ranks! ",
                     deviation.ToText("passed", value_of)));
    return failed ? WithFailedRank(status, *failed) : status;
  }
  return absl::OkStatus();
}

struct MergedMetadata {
  ShardedTensorMetadata metadata;
  // Of this rank's first shard in the metadata.
  size_t own_begin = 0;
};

// The metadata of all ranks merged into one tensor, shards by rank. Ranks
// without shards do not determine its properties.
absl::StatusOr<MergedMetadata> MergeMetadata(
    absl::Span<const std::string> encoded, size_t own_rank) {
  std::vector<ShardedTensorMetadata> parts;
  std::optional<size_t> first;
  for (size_t rank = 0; rank < encoded.size(); ++rank) {
    absl::StatusOr<ShardedTensorMetadata> part =
        internal::DecodeMetadata(encoded[rank]);
    if (!part.ok()) return WithRank(part.status(), static_cast<int>(rank));
    if (!first && !part->shards.empty()) first = rank;
    parts.push_back(*std::move(part));
  }
  if (!first) {
    return absl::InvalidArgumentError(
        "ShardedTensor have no local shards on all ranks");
  }
  SHERD_RETURN_IF_ERROR(CompareProperties(parts));
  MergedMetadata merged;
  merged.metadata.size = parts[*first].size;
  merged.metadata.properties = parts[*first].properties;
  std::vector<ShardMetadata>& shards = merged.metadata.shards;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (rank == own_rank) merged.own_begin = shards.size();
    std::move(parts[rank].shards.begin(), parts[rank].shards.end(),
              std::back_inserter(shards));
  }
  return merged;
}

// Unknown sizes

bool HasUnknownSize(absl::Span<const int64_t> size) {
  return std::find(size.begin(), size.end(), kUnknownSize) != size.end();
}

// Lines the shards up along the first unknown dimension.
absl::Status Recalculate(ShardedTensorMetadata& merged) {
  const auto unknown =
      std::find(merged.size.begin(), merged.size.end(), kUnknownSize);
  const size_t along = static_cast<size_t>(unknown - merged.size.begin());
  const ShardMetadata& first = merged.shards[0];
  int64_t end = 0;
  for (ShardMetadata& shard : merged.shards) {
    if (shard.sizes.size() != merged.size.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("Rank of tensor is ", merged.size.size(),
                       ", but shards rank is ", shard.sizes.size()));
    }
    shard.offsets.assign(merged.size.size(), 0);
    shard.offsets[along] = end;
    const std::optional<int64_t> next = CheckedAdd(end, shard.sizes[along]);
    if (!next) {
      return absl::InvalidArgumentError(
          absl::StrCat("the shards are together longer than 2^63 elements in "
                       "dimension ",
                       along));
    }
    end = *next;
  }
  for (size_t d = 0; d < merged.size.size(); ++d) {
    if (merged.size[d] == kUnknownSize) merged.size[d] = first.sizes[d];
  }
  merged.size[along] = end;
  return absl::OkStatus();
}

// Attaching

// Entries of a list of shards by their boxes, which it borrows.
class ShardFinder {
 public:
  template <typename List, typename GetMetadata>
  ShardFinder(const List& list, GetMetadata metadata_of) {
    for (size_t i = list.size(); i-- > 0;) {
      const ShardMetadata& metadata = metadata_of(list[i]);
      entries_[metadata].push_back({i, metadata.placement});
    }
  }

  // The first entry that has not been taken, with the box of `wanted` and its
  // place, as far as indices of devices are given.
  std::optional<size_t> Take(const ShardMetadata& wanted) {
    const auto found = entries_.find(BoxView(wanted));
    if (found == entries_.end()) return std::nullopt;
    std::vector<Entry>& list = found->second;
    const auto entry =
        std::find_if(list.rbegin(), list.rend(), [&](const Entry& one) {
          return one.placement == wanted.placement ||
                 (one.placement && wanted.placement &&
                  SamePlace(*one.placement, *wanted.placement));
        });
    if (entry == list.rend()) return std::nullopt;
    const size_t position = entry->position;
    list.erase(std::next(entry).base());
    return position;
  }

 private:
  struct Entry {
    size_t position;
    std::optional<Placement> placement;
  };

  absl::flat_hash_map<BoxView, std::vector<Entry>> entries_;
};

// The shards in the order of the local indices of `state`, with its metadata.
absl::StatusOr<LocalShards> Attach(const internal::ShardedTensorState& state,
                                   std::vector<Shard> given) {
  ShardFinder finder(given, [](const Shard& shard) -> const ShardMetadata& {
    return shard.metadata;
  });
  std::vector<Shard> shards;
  shards.reserve(given.size());
  for (const int index : state.local_indices) {
    const ShardMetadata& wanted =
        state.metadata.shards[static_cast<size_t>(index)];
    const std::optional<size_t> place = finder.Take(wanted);
    if (!place) {
      return absl::InvalidArgumentError(absl::StrCat(
          "this rank should have ", wanted.ToString(), " by ",
          state.spec->ToString(), ", which is not one of its local shards"));
    }
    Shard shard = {std::move(given[*place].tensor), wanted};
    SHERD_RETURN_IF_ERROR(shard.Validate());
    shards.push_back(std::move(shard));
  }
  if (shards.size() != given.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("this rank should have ", shards.size(), " shards by ",
                     state.spec->ToString(), ", but has ", given.size()));
  }
  return std::make_shared<const std::vector<Shard>>(std::move(shards));
}

// Checks one of the shards given for the metadata of all; `wanted` is its
// entry.
absl::Status CheckAgainst(const ShardMetadata& wanted, const Shard& shard,
                          const TensorProperties& properties, int rank) {
  SHERD_RETURN_IF_ERROR(CheckDefined(shard));
  if (!shard.tensor.is_contiguous()) return NotContiguous(wanted);
  const auto expect = [&](bool same, absl::string_view property,
                          const std::string& found) -> absl::Status {
    if (same) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "Local shards' tensor ", property, " property is incompatible with ",
        wanted.ToString(), " on rank ", rank, ": tensor property ", property,
        "=", found));
  };
  SHERD_RETURN_IF_ERROR(expect(shard.metadata.offsets == wanted.offsets,
                               "offsets", FormatDims(shard.metadata.offsets)));
  SHERD_RETURN_IF_ERROR(
      expect(shard.tensor.sizes() == absl::MakeConstSpan(wanted.sizes), "size",
             FormatDims(shard.tensor.sizes())));
  SHERD_RETURN_IF_ERROR(
      expect(CheckPinnable(properties, shard.tensor.device()).ok(),
             "pin_memory", "false"));
  SHERD_ASSIGN_OR_RETURN(const bool as_said,
                         IsPinnedAsSaid(properties, shard.tensor));
  SHERD_RETURN_IF_ERROR(
      expect(as_said, "pin_memory", properties.pin_memory ? "false" : "true"));
  SHERD_RETURN_IF_ERROR(
      expect(SameDevice(shard.tensor.device(), wanted.placement->device()),
             "device", shard.tensor.device().ToString()));
  return expect(shard.tensor.dtype() == properties.dtype, "dtype",
                std::string(Name(shard.tensor.dtype())));
}

// The spec of `metadata`, once it is known to be about strided shards.
absl::StatusOr<ShardingSpecPtr> SpecFor(const ShardedTensorMetadata& metadata,
                                        const ShardingSpecPtr& given) {
  if (metadata.shards.empty()) {
    return absl::InvalidArgumentError("shards_metadata must not be empty!");
  }
  if (metadata.properties.layout != Layout::kStrided) {
    return CheckShardedProperties(metadata.properties);
  }
  if (given != nullptr) return given;
  return InferShardingSpec(metadata.shards);
}

// Ranks that all have the same error keep its text, which may name another rank
// than the one that returns it.
absl::Status AgreeOnOutcome(ProcessGroup& group, const absl::Status& own) {
  const std::string text = own.ToString();
  if (Agree(group, kOperation, absl::OkStatus(),
            {Fingerprint().Add(text).value(), [&text] { return text; }})
          .ok()) {
    return InOperation(kOperation, own, group.name());
  }
  return Agree(group, kOperation, own);
}

absl::StatusOr<ShardedTensor> MakeFromLocalShards(
    std::vector<Shard> local_shards, absl::Span<const int64_t> size,
    const ShardedTensorOptions& options) {
  SHERD_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group,
                         internal::GroupOrDefault(options.group));
  SHERD_RETURN_IF_ERROR(internal::CheckMember(*group, kOperation));
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
      Agree(*group, kOperation,
            CheckLocalShards(*group, local_shards, options, own.properties)));
  for (size_t i = 0; i < local_shards.size(); ++i) {
    std::optional<Placement>& placement = own.shards[i].placement;
    if (placement->device().index >= 0) continue;
    placement = placement->OnSameOwner(local_shards[i].tensor.device());
  }
  SHERD_ASSIGN_OR_RETURN(
      const std::vector<std::string> encoded,
      InOperation(kOperation,
                  AllGatherStrings(*group, internal::EncodeMetadata(own))));

  // Nearly always every rank computes the same result by itself; but an error
  // on one rank, such as an unknown worker, must be an error on all.
  const auto build = [&]() -> absl::StatusOr<ShardedTensor> {
    SHERD_ASSIGN_OR_RETURN(
        MergedMetadata all,
        MergeMetadata(encoded, static_cast<size_t>(group->rank())));
    ShardedTensorMetadata& merged = all.metadata;
    if (HasUnknownSize(merged.size)) {
      SHERD_RETURN_IF_ERROR(Recalculate(merged));
    }
    SHERD_ASSIGN_OR_RETURN(const ShardingSpecPtr spec,
                           InferShardingSpec(merged.shards));
    SHERD_RETURN_IF_ERROR(ValidateCover(merged.shards, merged.size));
    for (size_t i = 0; i < local_shards.size(); ++i) {
      local_shards[i].metadata = merged.shards[all.own_begin + i];
    }
    SHERD_ASSIGN_OR_RETURN(
        internal::ShardedTensorStatePtr state,
        internal::MakeState(group, spec, merged.size, merged.properties,
                            internal::WorkersOrDefault(options)));
    SHERD_ASSIGN_OR_RETURN(LocalShards shards,
                           Attach(*state, std::move(local_shards)));
    return internal::ShardedTensorAccess::Make(std::move(state),
                                               std::move(shards));
  };
  absl::StatusOr<ShardedTensor> result = build();
  SHERD_RETURN_IF_ERROR(AgreeOnOutcome(*group, result.status()));
  return result;
}

absl::StatusOr<ShardedTensor> MakeFromLocalTensor(
    Tensor local_tensor, const ShardingSpecPtr& spec,
    absl::Span<const int64_t> size, const ShardedTensorOptions& options) {
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> group,
                         internal::GroupOrDefault(options.group));
  if (local_tensor.defined() && !local_tensor.is_contiguous()) {
    return absl::InvalidArgumentError(
        absl::StrCat("local_tensor is not a contiguous Tensor. It has size ",
                     FormatDims(local_tensor.sizes()), " and strides ",
                     FormatDims(local_tensor.strides())));
  }
  const TensorProperties properties = {
      .dtype = local_tensor.defined() ? local_tensor.dtype() : options.dtype,
      .layout = options.layout,
      .requires_grad = options.requires_grad,
      .memory_format = options.memory_format,
      .pin_memory = options.pin_memory};
  SHERD_ASSIGN_OR_RETURN(
      internal::ShardedTensorStatePtr state,
      internal::MakeState(std::move(group), spec, size, properties,
                          internal::WorkersOrDefault(options)));
  std::vector<Shard> given;
  const size_t expected = local_tensor.defined() ? 1 : 0;
  if (state->local_indices.size() != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("a rank with ", expected,
                     " local tensors should have as many shards, "
                     "but has ",
                     state->local_indices.size(), " by ", spec->ToString()));
  }
  if (local_tensor.defined()) {
    const ShardMetadata& metadata =
        state->metadata.shards[static_cast<size_t>(state->local_indices[0])];
    Shard shard = {std::move(local_tensor), metadata};
    SHERD_RETURN_IF_ERROR(shard.Validate());
    SHERD_RETURN_IF_ERROR(
        CheckPinning(properties, shard, state->group->rank()));
    given.push_back(std::move(shard));
  }
  return internal::ShardedTensorAccess::Make(
      std::move(state),
      std::make_shared<const std::vector<Shard>>(std::move(given)));
}

absl::StatusOr<ShardedTensor> MakeFromLocalShardsAndMetadata(
    std::vector<Shard> local_shards, const ShardedTensorMetadata& metadata,
    const ShardedTensorOptions& options, const ShardingSpecPtr& spec) {
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> group,
                         internal::GroupOrDefault(options.group));
  const std::shared_ptr<RemoteAccess> workers =
      internal::WorkersOrDefault(options);
  const RankResolver resolver = internal::ResolverFor(*group, workers.get());
  SHERD_ASSIGN_OR_RETURN(const std::vector<PlacedBox> boxes,
                         PlacedBoxes(metadata.shards, resolver));
  std::vector<const ShardMetadata*> own;
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (!group->is_member() || boxes[i].rank != group->rank()) continue;
    own.push_back(&metadata.shards[i]);
  }
  if (own.size() != local_shards.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("Number of local shards (", local_shards.size(),
                     ") does not match number of local shards metadata in "
                     "sharded_tensor_metadata (",
                     own.size(), ") on rank (", group->rank(), ")"));
  }
  SHERD_ASSIGN_OR_RETURN(const ShardingSpecPtr rule, SpecFor(metadata, spec));
  SHERD_ASSIGN_OR_RETURN(
      ShardedTensorMetadata built,
      BuildValidatedMetadata(rule, metadata.size, metadata.properties));
  SHERD_RETURN_IF_ERROR(CheckShardedProperties(metadata.properties));
  for (size_t i = 0; i < own.size(); ++i) {
    SHERD_RETURN_IF_ERROR(CheckAgainst(*own[i], local_shards[i],
                                       metadata.properties, group->rank()));
    local_shards[i].metadata = *own[i];
  }
  SHERD_RETURN_IF_ERROR(
      ValidateNonOverlapping(metadata.shards, Replicas::kAllowed));
  SHERD_RETURN_IF_ERROR(
      ValidateCover(metadata.shards, metadata.size, Replicas::kAllowed));
  SHERD_ASSIGN_OR_RETURN(
      internal::ShardedTensorStatePtr state,
      internal::MakeStateOf(std::move(group), rule, std::move(built), nullptr,
                            internal::WorkersOrDefault(options)));
  SHERD_ASSIGN_OR_RETURN(LocalShards shards,
                         Attach(*state, std::move(local_shards)));
  return internal::ShardedTensorAccess::Make(std::move(state),
                                             std::move(shards));
}

}  // namespace

absl::StatusOr<ShardedTensor> ShardedTensor::FromLocalShards(
    std::vector<Shard> local_shards, absl::Span<const int64_t> size,
    const ShardedTensorOptions& options) {
  return Publish(MakeFromLocalShards(std::move(local_shards), size, options),
                 options);
}

absl::StatusOr<ShardedTensor> ShardedTensor::FromLocalTensor(
    Tensor local_tensor, const ShardingSpecPtr& spec,
    absl::Span<const int64_t> size, const ShardedTensorOptions& options) {
  return Publish(
      MakeFromLocalTensor(std::move(local_tensor), spec, size, options),
      options);
}

absl::StatusOr<ShardedTensor> ShardedTensor::FromLocalShardsAndMetadata(
    std::vector<Shard> local_shards, const ShardedTensorMetadata& metadata,
    const ShardedTensorOptions& options, const ShardingSpecPtr& spec) {
  return Publish(MakeFromLocalShardsAndMetadata(std::move(local_shards),
                                                metadata, options, spec),
                 options);
}

absl::StatusOr<ShardedTensor> ShardedTensor::WithoutGroup(
    std::vector<Shard> given, const ShardedTensorMetadata& metadata,
    const ShardingSpecPtr& spec) {
  SHERD_ASSIGN_OR_RETURN(const ShardingSpecPtr rule, SpecFor(metadata, spec));
  SHERD_ASSIGN_OR_RETURN(
      ShardedTensorMetadata built,
      BuildValidatedMetadata(rule, metadata.size, metadata.properties));
  SHERD_RETURN_IF_ERROR(
      ValidateNonOverlapping(metadata.shards, Replicas::kAllowed));
  SHERD_RETURN_IF_ERROR(
      ValidateCover(metadata.shards, metadata.size, Replicas::kAllowed));
  SHERD_RETURN_IF_ERROR(
      NumBytes(metadata.size, metadata.properties.dtype).status());
  ShardFinder finder(
      built.shards,
      [](const ShardMetadata& shard) -> const ShardMetadata& { return shard; });
  std::vector<std::pair<int, size_t>> order;
  for (size_t i = 0; i < given.size(); ++i) {
    const Shard& shard = given[i];
    const std::optional<size_t> place = finder.Take(shard.metadata);
    if (!place) {
      return absl::InvalidArgumentError(absl::StrCat(
          shard.metadata.ToString(), " is not in the metadata that ",
          rule->ToString(), " builds"));
    }
    if (shard.tensor.sizes() != absl::MakeConstSpan(shard.metadata.sizes) ||
        !shard.tensor.defined() ||
        shard.tensor.dtype() != metadata.properties.dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat("the tensor of ", shard.metadata.ToString(),
                       " has size ", FormatDims(shard.tensor.sizes()),
                       " and dtype ", Name(shard.tensor.dtype()), ", expected ",
                       FormatDims(shard.metadata.sizes), " and ",
                       Name(metadata.properties.dtype)));
    }
    order.emplace_back(static_cast<int>(*place), i);
  }
  std::sort(order.begin(), order.end());
  std::vector<int> indices;
  std::vector<Shard> shards;
  for (const auto& [index, i] : order) {
    indices.push_back(index);
    shards.push_back(
        {std::move(given[i].tensor), built.shards[static_cast<size_t>(index)]});
  }
  return ShardedTensor(
      internal::MakeStateWithoutGroup(rule, std::move(built),
                                      std::move(indices)),
      std::make_shared<const std::vector<Shard>>(std::move(shards)));
}

}  // namespace sherd
