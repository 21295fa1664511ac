#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/tensor/local_shards.h"
#include "sherd/core/sharding/tensor/reshard_observer.h"
#include "sherd/core/sharding/tensor/shard_publication.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"
#include "sherd/core/sharding/transfer/reshard_executor.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

using internal::LocalShards;
using internal::ShardedTensorAccess;
using internal::ShardedTensorState;

// The whole tensor on some ranks

// Where a rank gets the whole tensor.
Device DeviceOfWhole(const ShardedTensor& tensor, const ProcessGroup& group) {
  if (!tensor.local_shards().empty()) return tensor.device();
  // As its group does, where the shards are on devices too.
  const Device shards = tensor.device();
  const std::optional<Device> own = group.device();
  return own && own->type == shards.type ? *own : Device();
}

// Checks `out`, or makes it, on a rank that gets the tensor.
absl::Status PrepareOut(const ShardedTensor& tensor,
                        const ReshardOptions& options, Tensor& out) {
  if (!out.defined()) {
    const Device device = DeviceOfWhole(tensor, *tensor.group());
    Allocator* const allocator =
        internal::AllocatorFor(tensor.group().get(), device, options.allocator);
    SHERD_ASSIGN_OR_RETURN(
        out, Tensor::Empty(tensor.size(), {.dtype = tensor.dtype(),
                                           .device = device,
                                           .allocator = allocator}));
    return absl::OkStatus();
  }
  if (out.sizes() != tensor.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("`out` Tensor has size ", FormatDims(out.sizes()),
                     ", but should be ", FormatDims(tensor.size())));
  }
  if (out.dtype() != tensor.dtype()) {
    return absl::InvalidArgumentError(
        absl::StrCat("`out` Tensor has dtype ", Name(out.dtype()),
                     ", but should be ", Name(tensor.dtype())));
  }
  SHERD_RETURN_IF_ERROR(internal::CheckHasData(out, "`out` Tensor"));
  const Shard whole = {out,
                       {.offsets = Dims(tensor.size().size(), 0),
                        .sizes = Dims(out.sizes().begin(), out.sizes().end())}};
  return Annotate(
      internal::CheckDestinations({&whole, 1}, tensor.local_shards()),
      "`out` Tensor");
}

// Leaves the tensor in `out` on the ranks of `receivers`.
absl::Status Collect(const ShardedTensor& tensor, ProcessGroup& group,
                     absl::string_view operation,
                     absl::Span<const int> receivers, Tensor& out,
                     const ReshardOptions& options) {
  std::vector<PlacedBox> wholes;
  wholes.reserve(receivers.size());
  int own = -1;
  for (size_t i = 0; i < receivers.size(); ++i) {
    if (receivers[i] == group.rank()) own = static_cast<int>(i);
    wholes.push_back({WholeBox(tensor.size()), receivers[i]});
  }
  const auto prepare = [&]() -> absl::StatusOr<ReshardExecutor> {
    for (const int receiver : receivers) {
      SHERD_RETURN_IF_ERROR(internal::CheckRank(group, receiver, "dst_rank"));
    }
    SHERD_RETURN_IF_ERROR(internal::CheckHasData(tensor.local_shards()));
    std::vector<DestinationMemory> destinations;
    if (own >= 0) {
      SHERD_RETURN_IF_ERROR(PrepareOut(tensor, options, out));
      destinations.push_back({.shard = own,
                              .offsets = wholes[0].offsets,
                              .strides = internal::StridesOf(out),
                              .data = out.data(),
                              .owner = out.storage(),
                              .device = out.device(),
                              .storage = out.storage().get()});
    } else if (out.defined()) {
      return absl::InvalidArgumentError(
          "`out` Tensor must NOT be specified on non-destination ranks");
    }
    SHERD_ASSIGN_OR_RETURN(
        ReshardPlan plan,
        ReshardPlan::Create(tensor.placed_boxes(), wholes, group.rank(),
                            group.host_of_rank()));
    return ReshardExecutor::Create(
        std::move(plan), SizeOf(tensor.dtype()), group.size(),
        internal::SourcesOf(tensor.local_shards(),
                            tensor.local_shard_indices()),
        destinations, options);
  };
  const uint64_t target = receivers.size() == 1
                              ? static_cast<uint64_t>(receivers[0])
                              : ~uint64_t{0};
  return RunReshard(group, operation, prepare(),
                    {internal::FingerprintOfCall(tensor.fingerprint(), target),
                     [&] {
                       return absl::StrCat(
                           internal::DescribeForAgreement("tensor", tensor),
                           "dst_rank ", absl::StrJoin(receivers, ", "));
                     }},
                    options.timeout);
}

// Another layout

std::atomic<internal::ReshardObserver> reshard_observer = nullptr;

absl::StatusOr<ReshardExecutor> PrepareMove(const ShardedTensor& src,
                                            const ShardedTensor& dst,
                                            const ReshardOptions& options) {
  SHERD_ASSIGN_OR_RETURN(
      ReshardPlan plan,
      ReshardPlan::Create(src.placed_boxes(), dst.placed_boxes(), src.rank(),
                          src.group()->host_of_rank()));
  return ReshardExecutor::Create(
      std::move(plan), SizeOf(src.dtype()), src.group()->size(),
      internal::SourcesOf(src.local_shards(), src.local_shard_indices()),
      internal::DestinationsOf(dst.local_shards(), dst.local_shard_indices()),
      options);
}

// As AgreedValue::describe has it.
std::string DescribeMove(const ShardedTensor& src, const ShardedTensor& dst) {
  return absl::StrCat(internal::DescribeForAgreement("source", src),
                      internal::DescribeForAgreement("target", dst));
}

// An executor for a rank that has nothing to do.
absl::StatusOr<ReshardExecutor> PrepareNothing(const ShardedTensor& tensor,
                                               const ReshardOptions& options) {
  SHERD_ASSIGN_OR_RETURN(ReshardPlan nothing,
                         ReshardPlan::Create({}, {}, tensor.rank()));
  return ReshardExecutor::Create(std::move(nothing), SizeOf(tensor.dtype()),
                                 tensor.group()->size(), {}, {}, options);
}

// Whether only `shards` holds the memory of the tensor, so that it may become a
// shard of another layout.
bool MayBeKept(const LocalShards& shards, const Tensor& tensor) {
  return shards.use_count() == 1 && tensor.is_contiguous() &&
         tensor.storage() != nullptr && tensor.storage().use_count() == 1 &&
         tensor.writable();
}

// Shards for `state`: those of `old` whose box stays on this rank, and new ones
// for the others.
absl::StatusOr<LocalShards> KeepOrAllocate(const ShardedTensorState& state,
                                           const LocalShards& old) {
  absl::flat_hash_map<BoxView, const Tensor*> kept;
  for (const Shard& shard : *old) {
    if (!MayBeKept(old, shard.tensor)) continue;
    kept.try_emplace(shard.metadata, &shard.tensor);
  }
  std::vector<Shard> shards;
  shards.reserve(state.local_indices.size());
  for (const int index : state.local_indices) {
    const ShardMetadata& wanted =
        state.metadata.shards[static_cast<size_t>(index)];
    const auto found = kept.find(BoxView(wanted));
    if (found != kept.end() &&
        SameDevice(found->second->device(), wanted.placement->device())) {
      shards.push_back({*found->second, wanted});
      kept.erase(found);
      continue;
    }
    SHERD_ASSIGN_OR_RETURN(
        Tensor tensor,
        internal::AllocateShard(state.group.get(), wanted,
                                state.metadata.properties, nullptr));
    shards.push_back({std::move(tensor), wanted});
  }
  return std::make_shared<const std::vector<Shard>>(std::move(shards));
}

}  // namespace

absl::StatusOr<Tensor> ShardedTensor::Gather(
    int dst_rank, Tensor out, const ReshardOptions& options) const {
  SHERD_ASSIGN_OR_RETURN(ProcessGroup* const group,
                         internal::GroupFor(*this, "gather"));
  SHERD_RETURN_IF_ERROR(
      Collect(*this, *group, "gather", {&dst_rank, 1}, out, options));
  return group->rank() == dst_rank ? std::move(out) : Tensor();
}

absl::StatusOr<Tensor> ShardedTensor::AllGather(
    Tensor out, const ReshardOptions& options) const {
  SHERD_ASSIGN_OR_RETURN(ProcessGroup* const group,
                         internal::GroupFor(*this, "all_gather"));
  const std::vector<int> everyone = AllRanks(group->size());
  SHERD_RETURN_IF_ERROR(
      Collect(*this, *group, "all_gather", everyone, out, options));
  return out;
}

void internal::SetReshardObserver(ReshardObserver observer) {
  reshard_observer = observer;
}

absl::Status ShardedTensor::Reshard(const ShardingSpecPtr& target,
                                    const ReshardOptions& options) {
  SHERD_ASSIGN_OR_RETURN(ProcessGroup* const group,
                         internal::GroupFor(*this, "reshard"));
  ShardedTensor result;
  const auto prepare = [&]() -> absl::StatusOr<ReshardExecutor> {
    SHERD_RETURN_IF_ERROR(internal::CheckHasData(local_shards()));
    SHERD_ASSIGN_OR_RETURN(
        std::shared_ptr<const State> state,
        internal::MakeState(state_->group, target, size(),
                            metadata().properties, state_->workers.lock()));
    if (internal::SameLayout(state->metadata, metadata())) {
      if (state_->publication != nullptr) {
        state = internal::WithPublication(*state, state_->publication);
      }
      LocalShards same = internal::Relabel(*state, local_shards_);
      result = ShardedTensor(std::move(state), std::move(same));
      return PrepareNothing(*this, options);
    }
    absl::StatusOr<LocalShards> shards =
        options.allocator == nullptr
            ? KeepOrAllocate(*state, local_shards_)
            : internal::AllocateShards(*state, options.allocator);
    if (!shards.ok()) return shards.status();
    result = ShardedTensor(std::move(state), *std::move(shards));
    SHERD_RETURN_IF_ERROR(internal::CheckHasData(result.local_shards()));
    return PrepareMove(*this, result, options);
  };
  absl::StatusOr<ReshardExecutor> executor = prepare();
  const uint64_t to = result.defined() ? result.fingerprint() : 0;
  SHERD_RETURN_IF_ERROR(
      RunReshard(*group, "reshard", std::move(executor),
                 {internal::FingerprintOfCall(fingerprint(), to),
                  [&] { return DescribeMove(*this, result); }},
                 options.timeout));
  SHERD_ASSIGN_OR_RETURN(
      ShardedTensor published,
      internal::PublishAs("reshard", *this, std::move(result),
                          {.timeout = options.timeout}));
  const ShardedTensor before = std::exchange(*this, std::move(published));
  if (const internal::ReshardObserver observe = reshard_observer.load()) {
    observe(before, *this);
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardedTensor> ShardedTensor::Resharded(
    const ShardingSpecPtr& target, const ReshardOptions& options) const {
  SHERD_ASSIGN_OR_RETURN(ProcessGroup* const group,
                         internal::GroupFor(*this, "resharded"));
  ShardedTensor result;
  const auto prepare = [&]() -> absl::StatusOr<ReshardExecutor> {
    SHERD_RETURN_IF_ERROR(internal::CheckHasData(local_shards()));
    SHERD_ASSIGN_OR_RETURN(
        std::shared_ptr<const State> state,
        internal::MakeState(state_->group, target, size(),
                            metadata().properties, state_->workers.lock()));
    SHERD_ASSIGN_OR_RETURN(result, ShardedTensorAccess::Allocate(
                                       std::move(state), options.allocator));
    SHERD_RETURN_IF_ERROR(internal::CheckHasData(result.local_shards()));
    return PrepareMove(*this, result, options);
  };
  absl::StatusOr<ReshardExecutor> executor = prepare();
  const uint64_t to = result.defined() ? result.fingerprint() : 0;
  SHERD_RETURN_IF_ERROR(
      RunReshard(*group, "resharded", std::move(executor),
                 {internal::FingerprintOfCall(fingerprint(), to),
                  [&] { return DescribeMove(*this, result); }},
                 options.timeout));
  return internal::PublishAs("resharded", *this, std::move(result),
                             {.timeout = options.timeout});
}

absl::Status ShardedTensor::ReshardInto(ShardedTensor& dst,
                                        const ReshardOptions& options) const {
  SHERD_ASSIGN_OR_RETURN(ProcessGroup* const group,
                         internal::GroupFor(*this, "reshard_into"));
  const auto prepare = [&]() -> absl::StatusOr<ReshardExecutor> {
    if (!dst.defined()) return internal::NotCreated("the destination");
    if (dst.group() != this->group()) {
      return absl::InvalidArgumentError(
          "source and destination are spread over different groups");
    }
    if (dst.size() != size() || dst.dtype() != dtype()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the destination has size ", FormatDims(dst.size()),
                       " and dtype ", Name(dst.dtype()), ", but should have ",
                       FormatDims(size()), " and ", Name(dtype())));
    }
    SHERD_RETURN_IF_ERROR(internal::CheckHasData(local_shards()));
    SHERD_RETURN_IF_ERROR(internal::CheckHasData(dst.local_shards()));
    SHERD_RETURN_IF_ERROR(
        internal::CheckDestinations(dst.local_shards(), local_shards()));
    return PrepareMove(*this, dst, options);
  };
  const uint64_t to = dst.defined() ? dst.fingerprint() : 0;
  return RunReshard(*group, "reshard_into", prepare(),
                    {internal::FingerprintOfCall(fingerprint(), to),
                     [&] { return DescribeMove(*this, dst); }},
                    options.timeout);
}

}  // namespace sherd
