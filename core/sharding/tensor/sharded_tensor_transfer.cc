#include "sherd/core/sharding/sharded_tensor_transfer.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/deviation.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/object_collectives.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/sharding/spec/metadata_codec.h"
#include "sherd/core/sharding/tensor/local_shards.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"

namespace sherd {
namespace {

using internal::ShardedTensorState;
using internal::ShardedTensorStatePtr;

constexpr char kOperation[] = "transfer";

// One side of the transfer, as a rank knows it. Zeros if the rank has no part
// in it. All ranks run the same build, so structs are sent as they are in
// memory.
struct Side {
  int64_t takes_part = 0;
  // Of the group: how many ranks, and which.
  int64_t ranks = 0;
  uint64_t members = 0;
  // Of the tensor, or of the spec.
  uint64_t fingerprint = 0;
};

struct TransferCall {
  Side source;
  Side target;
};

Side SideOf(const ProcessGroup& group, uint64_t fingerprint) {
  Fingerprint members;
  for (const int rank : group.world_ranks()) members.Add(rank);
  return {.takes_part = 1,
          .ranks = group.size(),
          .members = members.value(),
          .fingerprint = fingerprint};
}

absl::Status CheckInside(const ProcessGroup& group, const ProcessGroup& parent,
                         absl::string_view side) {
  const RankResolver resolver(parent.world_ranks());
  for (const int rank : group.world_ranks()) {
    if (resolver.Resolve(Placement::OnRank(rank)).ok()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "global rank ", rank, " of the ", side,
        " group is not in the common group '", parent.name(), "'"));
  }
  return absl::OkStatus();
}

// Describes this rank's arguments, and returns their error.
absl::Status Describe(const ProcessGroup& parent, const ShardedTensor& source,
                      const std::shared_ptr<ProcessGroup>& target_group,
                      const ShardingSpecPtr& spec, TransferCall& call) {
  if (source.defined()) {
    SHERD_RETURN_IF_ERROR(internal::GroupFor(source, "the source").status());
    SHERD_RETURN_IF_ERROR(CheckInside(*source.group(), parent, "source"));
    SHERD_RETURN_IF_ERROR(internal::CheckHasData(source.local_shards()));
    call.source = SideOf(*source.group(), source.fingerprint());
  }
  if (target_group != nullptr && target_group->is_member()) {
    if (spec == nullptr) {
      return absl::InvalidArgumentError("Expecting ShardingSpec but got null");
    }
    SHERD_RETURN_IF_ERROR(CheckInside(*target_group, parent, "target"));
    call.target =
        SideOf(*target_group, Fingerprint().Add(spec->ToString()).value());
  }
  return absl::OkStatus();
}

// Checks that all ranks of one side passed the same. Every rank sees all calls
// and determines the same result.
absl::Status CompareSide(ProcessGroup& parent,
                         absl::Span<const TransferCall> calls,
                         Side TransferCall::*which, absl::string_view side,
                         absl::string_view what, const ProcessGroup* group,
                         absl::FunctionRef<std::string()> describe,
                         const CollectiveOptions& collective) {
  std::vector<std::optional<uint64_t>> groups, values;
  for (const TransferCall& call : calls) {
    const Side& own = call.*which;
    const bool takes_part = own.takes_part != 0;
    groups.push_back(takes_part ? std::optional(own.members) : std::nullopt);
    values.push_back(takes_part ? std::optional(own.fingerprint)
                                : std::nullopt);
  }
  SHERD_RETURN_IF_ERROR(CompareValues(
      parent, kOperation, absl::StrCat("has another ", side, " group"), groups,
      [group] {
        return absl::StrCat("a group of the global ",
                            internal::RankList({group->world_ranks().begin(),
                                                group->world_ranks().end()}));
      },
      collective));
  return CompareValues(parent, kOperation,
                       absl::StrCat("has another ", side, " ", what), values,
                       describe, collective);
}

// The first rank of one side, whose ranks passed the same.
absl::StatusOr<int> FirstOf(absl::Span<const TransferCall> calls,
                            Side TransferCall::*which, absl::string_view side,
                            absl::string_view what) {
  std::vector<int> present;
  std::vector<int> absent;
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    const bool takes_part = (calls[rank].*which).takes_part != 0;
    (takes_part ? present : absent).push_back(static_cast<int>(rank));
  }
  if (present.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no rank has a ", side, " ", what));
  }
  const int64_t ranks =
      (calls[static_cast<size_t>(present.front())].*which).ranks;
  const auto count = static_cast<int64_t>(present.size());
  if (count == ranks) return present.front();
  // Only these ranks know which of them are in the group.
  const absl::Status status = absl::InvalidArgumentError(absl::StrCat(
      count, " of the ", ranks, " ranks of the ", side, " group passed a ",
      what, ", expected all of them; missing on ", internal::RankList(absent)));
  // If there are no others, the first of them deviates.
  if (count + static_cast<int64_t>(absent.size()) != ranks) return status;
  return WithFailedRank(status, absent[0]);
}

// Metadata in which placements are by global rank, as any group reads them.
ShardedTensorMetadata ByGlobalRank(const ShardedTensorState& state) {
  ShardedTensorMetadata metadata = state.metadata;
  for (size_t i = 0; i < metadata.shards.size(); ++i) {
    const int rank = (*state.boxes)[i].rank;
    metadata.shards[i].placement =
        Placement::OnRank(state.group->world_ranks()[static_cast<size_t>(rank)],
                          metadata.shards[i].placement->device());
  }
  return metadata;
}

// Gives every rank the metadata that `root` has in `state`.
absl::StatusOr<ShardedTensorMetadata> Share(
    ProcessGroup& parent, int root, const ShardedTensorStatePtr& state,
    const CollectiveOptions& collective) {
  std::string own;
  if (parent.rank() == root) {
    own = internal::EncodeMetadata(ByGlobalRank(*state));
  }
  SHERD_ASSIGN_OR_RETURN(
      const std::string bytes,
      BroadcastString(parent, own, root, {.timeout = collective.timeout}));
  absl::StatusOr<ShardedTensorMetadata> metadata =
      internal::DecodeMetadata(bytes);
  if (!metadata.ok()) return WithRank(metadata.status(), root);
  return metadata;
}

absl::StatusOr<ReshardExecutor> Prepare(const ProcessGroup& parent,
                                        const ShardedTensorMetadata& from,
                                        const ShardedTensorMetadata& to,
                                        const ShardedTensor& source,
                                        const ShardedTensor& result,
                                        const ReshardOptions& options) {
  if (result.defined() &&
      ByGlobalRank(*internal::ShardedTensorAccess::StateOf(result)).shards !=
          to.shards) {
    return absl::InvalidArgumentError(
        absl::StrCat("sharding spec ", result.spec()->ToString(),
                     " builds other shards on this rank than on others"));
  }
  SHERD_ASSIGN_OR_RETURN(const std::vector<PlacedBox> from_boxes,
                         PlacedBoxes(from.shards, parent.world_ranks()));
  SHERD_ASSIGN_OR_RETURN(const std::vector<PlacedBox> to_boxes,
                         PlacedBoxes(to.shards, parent.world_ranks()));
  SHERD_ASSIGN_OR_RETURN(
      ReshardPlan plan, ReshardPlan::Create(from_boxes, to_boxes, parent.rank(),
                                            parent.host_of_rank()));
  std::vector<SourceMemory> sources;
  if (source.defined()) {
    sources = internal::SourcesOf(source.local_shards(),
                                  source.local_shard_indices());
  }
  std::vector<DestinationMemory> destinations;
  if (result.defined()) {
    destinations = internal::DestinationsOf(result.local_shards(),
                                            result.local_shard_indices());
  }
  return ReshardExecutor::Create(std::move(plan), SizeOf(from.properties.dtype),
                                 parent.size(), sources, destinations, options);
}

// The new tensor on a rank of the target group.
absl::StatusOr<ShardedTensor> AllocateTarget(
    const std::shared_ptr<ProcessGroup>& group, const ShardingSpecPtr& spec,
    const ShardedTensorMetadata& from, const ReshardOptions& options) {
  SHERD_ASSIGN_OR_RETURN(
      ShardedTensorStatePtr state,
      internal::MakeState(group, spec, from.size, from.properties));
  SHERD_ASSIGN_OR_RETURN(ShardedTensor result,
                         internal::ShardedTensorAccess::Allocate(
                             std::move(state), options.allocator));
  SHERD_RETURN_IF_ERROR(internal::CheckHasData(result.local_shards()));
  return result;
}

absl::StatusOr<ShardedTensor> Transfer(
    ProcessGroup& parent, const ShardedTensor& source,
    const std::shared_ptr<ProcessGroup>& target_group,
    const ShardingSpecPtr& spec, const ReshardOptions& options) {
  const CollectiveOptions collective = {.timeout = options.timeout};
  TransferCall call;
  const absl::Status local = Describe(parent, source, target_group, spec, call);
  SHERD_ASSIGN_OR_RETURN(
      const std::vector<TransferCall> calls,
      AgreeAndGather(parent, kOperation, local, {}, call, collective));
  SHERD_RETURN_IF_ERROR(CompareSide(
      parent, calls, &TransferCall::source, "source", "tensor",
      source.defined() ? source.group().get() : nullptr,
      [&] { return internal::DescribeForAgreement("source", source); },
      collective));
  SHERD_RETURN_IF_ERROR(CompareSide(
      parent, calls, &TransferCall::target, "target", "layout",
      target_group.get(), [&] { return spec->ToString(); }, collective));
  SHERD_ASSIGN_OR_RETURN(
      const int source_root,
      FirstOf(calls, &TransferCall::source, "source", "tensor"));
  SHERD_ASSIGN_OR_RETURN(
      const int target_root,
      FirstOf(calls, &TransferCall::target, "target", "layout"));
  SHERD_ASSIGN_OR_RETURN(
      const ShardedTensorMetadata from,
      Share(parent, source_root, internal::ShardedTensorAccess::StateOf(source),
            collective));

  ShardedTensor result;
  absl::Status made;
  if (call.target.takes_part != 0) {
    absl::StatusOr<ShardedTensor> target =
        AllocateTarget(target_group, spec, from, options);
    made = target.status();
    if (target.ok()) result = *std::move(target);
  }
  SHERD_RETURN_IF_ERROR(Agree(parent, kOperation, made, {}, collective));
  SHERD_ASSIGN_OR_RETURN(
      const ShardedTensorMetadata to,
      Share(parent, target_root, internal::ShardedTensorAccess::StateOf(result),
            collective));
  const uint64_t fingerprint = internal::FingerprintOfCall(
      calls[static_cast<size_t>(source_root)].source.fingerprint,
      calls[static_cast<size_t>(target_root)].target.fingerprint);
  SHERD_RETURN_IF_ERROR(RunReshard(
      parent, kOperation, Prepare(parent, from, to, source, result, options),
      {fingerprint}, options.timeout));
  return result;
}

}  // namespace

absl::StatusOr<ShardedTensor> TransferBetweenGroups(
    ProcessGroup& parent, const ShardedTensor& source,
    const std::shared_ptr<ProcessGroup>& target_group,
    const ShardingSpecPtr& spec, const ReshardOptions& options) {
  SHERD_RETURN_IF_ERROR(internal::CheckMember(parent, kOperation));
  return InOperation(kOperation,
                     Transfer(parent, source, target_group, spec, options),
                     parent.name());
}

}  // namespace sherd
