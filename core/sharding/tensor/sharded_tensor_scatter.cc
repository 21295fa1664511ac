#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/tensor/local_shards.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"
#include "sherd/core/sharding/tensor_scatterer.h"
#include "sherd/core/sharding/transfer/reshard_executor.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

constexpr char kOperation[] = "shard_tensor";

// A rank's message to the others when a tensor is scattered. All ranks run the
// same build, so the struct is sent as it is in memory.
struct ShardCall {
  int64_t src_rank = 0;
  uint64_t spec = 0;
  int64_t dtype = 0;
  int64_t dims = 0;
  std::array<int64_t, kMaxRank> size = {};
};

// One call of ShardTensor, on which all ranks agree.
struct Scattering {
  const Tensor& tensor;
  const ShardingSpecPtr& spec;
  int src_rank = 0;
  const std::shared_ptr<ProcessGroup>& group;
  Dims size;
  DType dtype = kFloat32;
  const ReshardOptions& options;
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
  return internal::CheckHasData(tensor, "the tensor");
}

// Every rank sees all calls and determines the same result.
absl::Status CompareCalls(ProcessGroup& group,
                          absl::Span<const ShardCall> calls,
                          const ShardingSpecPtr& spec,
                          const CollectiveOptions& collective) {
  std::vector<std::optional<uint64_t>> ranks, specs;
  for (const ShardCall& call : calls) {
    ranks.push_back(static_cast<uint64_t>(call.src_rank));
    specs.push_back(call.spec);
  }
  const int64_t own = calls[static_cast<size_t>(group.rank())].src_rank;
  SHERD_RETURN_IF_ERROR(CompareValues(
      group, kOperation, "has an argument that does not match with src_rank",
      ranks, [own] { return absl::StrCat("src_rank ", own); }, collective));
  return CompareValues(
      group, kOperation,
      "has an argument that does not match with sharding_spec", specs,
      [&spec] { return spec->ToString(); }, collective);
}

// Sends the data of `src_rank` to all ranks, once it is clear that they agree
// on the source.
absl::StatusOr<ShardCall> ExchangeCalls(ProcessGroup& group,
                                        const Tensor& tensor,
                                        const ShardingSpecPtr& spec,
                                        int src_rank,
                                        const CollectiveOptions& collective) {
  absl::Status local =
      spec != nullptr
          ? absl::OkStatus()
          : absl::InvalidArgumentError("Expecting ShardingSpec but got null");
  local.Update(internal::CheckRank(group, src_rank, "src_rank"));
  const bool is_source = group.rank() == src_rank;
  if (is_source) local.Update(CheckSource(tensor));
  ShardCall call = {.src_rank = src_rank};
  if (spec != nullptr) call.spec = Fingerprint().Add(spec->ToString()).value();
  if (is_source && local.ok()) {
    call.dtype = static_cast<int64_t>(tensor.dtype());
    call.dims = tensor.dim();
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), call.size.begin());
  }
  SHERD_ASSIGN_OR_RETURN(
      const std::vector<ShardCall> calls,
      AgreeAndGather(group, kOperation, local, {}, call, collective));
  SHERD_RETURN_IF_ERROR(CompareCalls(group, calls, spec, collective));
  const ShardCall& source = calls[static_cast<size_t>(src_rank)];
  if (!IsValid(static_cast<int32_t>(source.dtype)) || source.dims < 0 ||
      source.dims > kMaxRank) {
    return WithRank(
        absl::InternalError("shard_tensor: the source sent a malformed call"),
        src_rank);
  }
  return source;
}

absl::StatusOr<ShardedTensor> Allocate(const Scattering& call) {
  SHERD_ASSIGN_OR_RETURN(internal::ShardedTensorStatePtr state,
                         internal::MakeState(call.group, call.spec, call.size,
                                             {.dtype = call.dtype}));
  SHERD_ASSIGN_OR_RETURN(ShardedTensor result,
                         internal::ShardedTensorAccess::Allocate(
                             std::move(state), call.options.allocator));
  SHERD_RETURN_IF_ERROR(internal::CheckHasData(result.local_shards()));
  return result;
}

absl::StatusOr<ReshardExecutor> Prepare(const Scattering& call,
                                        const ShardedTensor& result) {
  ProcessGroup& group = *call.group;
  const PlacedBox whole = {WholeBox(call.size), call.src_rank};
  SHERD_ASSIGN_OR_RETURN(
      ReshardPlan plan,
      ReshardPlan::Create({&whole, 1}, result.placed_boxes(), group.rank()));
  std::vector<SourceMemory> sources;
  if (group.rank() == call.src_rank) {
    sources.push_back({.shard = 0,
                       .offsets = whole.offsets,
                       .strides = internal::StridesOf(call.tensor),
                       .data = call.tensor.data(),
                       .owner = call.tensor.storage(),
                       .device = call.tensor.device(),
                       .storage = call.tensor.storage().get()});
  }
  return ReshardExecutor::Create(
      std::move(plan), SizeOf(call.dtype), group.size(), sources,
      internal::DestinationsOf(result.local_shards(),
                               result.local_shard_indices()),
      call.options);
}

uint64_t FingerprintOf(const ShardedTensor& result) {
  return result.defined() ? result.fingerprint() : 0;
}

absl::StatusOr<ShardedTensor> Scatter(const Scattering& call) {
  ShardedTensor result;
  const auto prepare = [&]() -> absl::StatusOr<ReshardExecutor> {
    SHERD_ASSIGN_OR_RETURN(result, Allocate(call));
    return Prepare(call, result);
  };
  absl::StatusOr<ReshardExecutor> executor = prepare();
  SHERD_RETURN_IF_ERROR(RunReshard(
      *call.group, kOperation, std::move(executor),
      {FingerprintOf(result),
       [&] { return internal::DescribeForAgreement("result", result); }},
      call.options.timeout));
  return result;
}

// The spec scatters by itself.
absl::StatusOr<ShardedTensor> ScatterBy(const TensorScatterer& scatterer,
                                        const Scattering& call) {
  const CollectiveOptions collective = {.timeout = call.options.timeout};
  absl::StatusOr<ShardedTensor> result = Allocate(call);
  SHERD_RETURN_IF_ERROR(
      Agree(*call.group, kOperation, result.status(),
            {result.ok() ? FingerprintOf(*result) : 0,
             [&] { return internal::DescribeForAgreement("result", *result); }},
            collective));
  std::vector<Tensor> shards;
  for (const Shard& shard : result->local_shards()) {
    shards.push_back(shard.tensor);
  }
  SHERD_RETURN_IF_ERROR(
      Agree(*call.group, kOperation,
            scatterer.Scatter({.tensor = call.tensor,
                               .src_rank = call.src_rank,
                               .group = *call.group,
                               .metadata = result->metadata(),
                               .shard_indices = result->local_shard_indices(),
                               .shards = absl::MakeSpan(shards),
                               .timeout = call.options.timeout}),
            {}, collective));
  return result;
}

}  // namespace

absl::StatusOr<ShardedTensor> ShardTensor(const Tensor& tensor,
                                          const ShardingSpecPtr& spec,
                                          int src_rank,
                                          std::shared_ptr<ProcessGroup> given,
                                          const ReshardOptions& options) {
  SHERD_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group,
                         internal::GroupOrDefault(std::move(given)));
  SHERD_RETURN_IF_ERROR(internal::CheckMember(*group, kOperation));
  SHERD_ASSIGN_OR_RETURN(const ShardCall source,
                         ExchangeCalls(*group, tensor, spec, src_rank,
                                       {.timeout = options.timeout}));
  const Scattering call = {
      .tensor = tensor,
      .spec = spec,
      .src_rank = src_rank,
      .group = group,
      .size = Dims(source.size.begin(), source.size.begin() + source.dims),
      .dtype = static_cast<DType>(source.dtype),
      .options = options};
  if (const auto* own = dynamic_cast<const TensorScatterer*>(spec.get())) {
    return ScatterBy(*own, call);
  }
  return Scatter(call);
}

}  // namespace sherd
