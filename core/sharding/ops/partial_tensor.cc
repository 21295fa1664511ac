#include "sherd/core/sharding/partial_tensor.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/sharding/plan/replica_division.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/sharding/tensor/local_shards.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/sharding/transfer/reshard_executor.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"

namespace sherd {
namespace {

// Replicas smaller than twice this are reduced by one of their holders.
constexpr int64_t kMinPart = 4096;

constexpr char kReshard[] = "partial_reshard";
constexpr char kAllReduce[] = "partial_all_reduce";

// Arguments that must be the same on all ranks: for AllReduce, `on_device` is
// whether the device part of the group reduces; for Reshard, `target` is the
// result.
struct PartialCall {
  const PartialTensor& tensor;
  const ShardedTensor* target = nullptr;
  bool on_device = false;

  uint64_t fingerprint() const {
    Fingerprint all;
    all.Add(static_cast<int64_t>(tensor.dtype()))
        .Add(static_cast<int64_t>(tensor.op()))
        .Add(on_device ? 1 : 0)
        .Add(static_cast<int64_t>(tensor.size().size()));
    for (const int64_t n : tensor.size()) all.Add(n);
    if (target == nullptr) return all.value();
    if (target->defined()) all.Add(static_cast<int64_t>(target->fingerprint()));
    return all.value();
  }

  std::string Describe() const {
    std::string text = absl::StrCat("dtype ", Name(tensor.dtype()), "\nsize ",
                                    FormatDims(tensor.size()), "\nreduction ",
                                    Name(tensor.op()), "\nsummands on ",
                                    on_device ? "the device\n" : "the host\n");
    if (target == nullptr) return text;
    return absl::StrCat(text,
                        internal::DescribeForAgreement("result", *target));
  }
};

// A tensor in whose layout every element of `target` is once: that itself, if
// it has no replicas and is in host memory, otherwise one there in which
// replicas are divided among their holders.
absl::StatusOr<ShardedTensor> WithoutReplicas(const ShardedTensor& target) {
  const absl::Span<const PlacedBox> boxes = target.placed_boxes();
  std::vector<int64_t> load(static_cast<size_t>(target.group()->size()), 0);
  const std::vector<DividedBox> parts =
      DivideReplicas(boxes, kMinPart, absl::MakeSpan(load));
  const std::vector<ShardMetadata>& placed = target.metadata().shards;
  const bool on_host =
      std::all_of(placed.begin(), placed.end(), [](const ShardMetadata& shard) {
        return shard.placement->device().is_cpu();
      });
  const bool whole =
      parts.size() == boxes.size() &&
      std::all_of(parts.begin(), parts.end(), [&](const DividedBox& part) {
        return part.part.sizes == boxes[part.box].sizes;
      });
  if (whole && on_host) return target;
  const absl::Span<const int> world_ranks = target.group()->world_ranks();
  std::vector<ShardMetadata> shards;
  for (const DividedBox& part : parts) {
    shards.push_back(
        {part.part.offsets, part.part.sizes,
         Placement::OnRank(world_ranks[static_cast<size_t>(part.part.rank)])});
  }
  SHERD_ASSIGN_OR_RETURN(const ShardingSpecPtr spec,
                         EnumerableShardingSpec::Create(std::move(shards)));
  return ShardedTensor::Empty(
      spec, target.size(), {.dtype = target.dtype(), .group = target.group()});
}

// Prepares the move of the summands of `partial` into the shards of `result`,
// which are in host memory.
absl::StatusOr<ReshardExecutor> PrepareReduction(
    const PartialTensor& partial, const ShardedTensor& result,
    const ReshardOptions& options) {
  const ProcessGroup& group = *partial.group();
  SHERD_ASSIGN_OR_RETURN(const Tensor summand,
                         internal::OnHost(partial.local()));
  SHERD_ASSIGN_OR_RETURN(
      ReshardPlan plan, ReshardPlan::CreateReduction(
                            result.placed_boxes(), group.rank(), group.size()));
  const SourceMemory source = {.offsets = Dims(summand.sizes().size(), 0),
                               .strides = internal::StridesOf(summand),
                               .data = summand.data(),
                               .owner = summand.storage()};
  return ReshardExecutor::CreateReduction(
      std::move(plan), partial.op(), partial.dtype(), group.size(),
      {&source, 1},
      internal::DestinationsOf(result.local_shards(),
                               result.local_shard_indices()),
      options);
}

}  // namespace

PartialTensor::PartialTensor(Tensor local, ReduceOp op,
                             std::shared_ptr<ProcessGroup> group)
    : local_(std::move(local)), op_(op), group_(std::move(group)) {}

absl::StatusOr<PartialTensor> PartialTensor::Create(
    Tensor local, ReduceOp op, std::shared_ptr<ProcessGroup> given) {
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> group,
                         internal::GroupOrDefault(std::move(given)));
  SHERD_RETURN_IF_ERROR(internal::CheckMember(*group, "partial tensor"));
  if (!local.defined()) {
    return absl::InvalidArgumentError(
        "a partial tensor needs a local summand, got an undefined tensor");
  }
  SHERD_RETURN_IF_ERROR(internal::CheckHasData(local, "the local summand"));
  SHERD_RETURN_IF_ERROR(CheckReduction(op, local.dtype()));
  return PartialTensor(std::move(local), op, std::move(group));
}

absl::StatusOr<ShardedTensor> PartialTensor::Reshard(
    const ShardingSpecPtr& spec, const PartialOptions& options) const {
  if (!defined()) return internal::NotCreated(kReshard);
  ShardedTensor target;
  ShardedTensor reduced;
  ReshardStats stats;
  const auto prepare = [&]() -> absl::StatusOr<ReshardExecutor> {
    SHERD_ASSIGN_OR_RETURN(
        target, ShardedTensor::Empty(spec, size(),
                                     {.dtype = dtype(), .group = group_}));
    SHERD_RETURN_IF_ERROR(internal::CheckHasData(target.local_shards()));
    SHERD_ASSIGN_OR_RETURN(reduced, WithoutReplicas(target));
    return PrepareReduction(*this, reduced,
                            {.max_staging_bytes = options.max_staging_bytes,
                             .timeout = options.timeout,
                             .stats = &stats});
  };
  const PartialCall call = {.tensor = *this, .target = &target};
  absl::StatusOr<ReshardExecutor> executor = prepare();
  SHERD_RETURN_IF_ERROR(RunReshard(
      *group_, kReshard, std::move(executor),
      {call.fingerprint(), [&] { return call.Describe(); }}, options.timeout));
  if (reduced.fingerprint() != target.fingerprint()) {
    SHERD_RETURN_IF_ERROR(InOperation(
        kReshard, reduced.ReshardInto(
                      target, {.max_staging_bytes = options.max_staging_bytes,
                               .timeout = options.timeout})));
  }
  if (options.stats != nullptr) {
    *options.stats = {.bytes_sent = stats.bytes_sent,
                      .bytes_received = stats.bytes_received,
                      .bytes_staged = stats.bytes_staged,
                      .staging_bytes = stats.staging_bytes,
                      .rounds = stats.rounds};
  }
  return target;
}

absl::StatusOr<Tensor> PartialTensor::AllReduce(
    const PartialOptions& options) const {
  if (!defined()) return internal::NotCreated(kAllReduce);
  // On the group's device where the summand is there, otherwise on the host.
  const bool on_device = group_->device() == local_.device();
  Tensor source = local_;
  Tensor result;
  const auto prepare = [&]() -> absl::Status {
    if (!on_device) {
      SHERD_ASSIGN_OR_RETURN(source, internal::OnHost(local_));
    }
    SHERD_ASSIGN_OR_RETURN(
        result,
        Tensor::Empty(size(), {.dtype = dtype(), .device = source.device()}));
    if (source.is_contiguous()) return absl::OkStatus();
    SHERD_RETURN_IF_ERROR(result.CopyFrom(source));
    source = result;
    return absl::OkStatus();
  };
  const absl::Status status = prepare();
  const CollectiveOptions agreement = {.timeout = options.timeout};
  const CollectiveOptions collective = {
      .timeout = options.timeout,
      .device = on_device ? local_.device() : Device()};
  const PartialCall call = {.tensor = *this, .on_device = on_device};
  SHERD_RETURN_IF_ERROR(
      Agree(*group_, kAllReduce, status,
            {call.fingerprint(), [&] { return call.Describe(); }}, agreement));
  const auto bytes = static_cast<size_t>(result.nbytes());
  const absl::Status reduced = group_->AllReduce(
      ConstBytes(static_cast<const std::byte*>(std::as_const(source).data()),
                 bytes),
      MutableBytes(static_cast<std::byte*>(result.data()), bytes), dtype(), op_,
      collective);
  if (on_device) source.storage()->UsedOn(CurrentStream(local_.device()));
  SHERD_RETURN_IF_ERROR(InOperation(kAllReduce, reduced));
  if (options.stats != nullptr) {
    *options.stats = {.bytes_sent = result.nbytes(),
                      .bytes_received = result.nbytes(),
                      .rounds = 1};
  }
  return result.device() == local_.device() ? result
                                            : result.To(local_.device());
}

std::string PartialTensor::ToString() const {
  if (!defined()) return "PartialTensor(undefined)";
  return absl::StrCat("PartialTensor(", Name(op_), ", ", Name(dtype()), ", ",
                      FormatDims(size()), ", group ", group_->name(), ")");
}

std::ostream& operator<<(std::ostream& out, const PartialTensor& tensor) {
  return out << tensor.ToString();
}

}  // namespace sherd
