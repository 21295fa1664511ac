#include "sherd/core/sharding/sharded_tensor.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {

namespace internal {
namespace {

// Asks for the cache lines of `count` objects, and does not wait; null is any
// address.
template <typename T>
void PrefetchObjects(const T* objects, size_t count) {
  constexpr uintptr_t kCacheLine = 64;
  const auto begin = reinterpret_cast<uintptr_t>(objects);
  const uintptr_t end = begin + count * sizeof(T);
  for (uintptr_t line = begin & ~(kCacheLine - 1); line < end;
       line += kCacheLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(line));
  }
}

}  // namespace

void ShardedTensorAccess::Prefetch(
    absl::Span<const ShardedTensor* const> tensors) {
  // Each loop reads what the one before has asked for.
  for (const ShardedTensor* tensor : tensors) PrefetchObjects(tensor, 1);
  const auto for_each = [&](auto visit) {
    for (const ShardedTensor* tensor : tensors) {
      if (tensor == nullptr || StateOf(*tensor) == nullptr ||
          ShardsOf(*tensor) == nullptr) {
        continue;
      }
      visit(*StateOf(*tensor), *ShardsOf(*tensor));
    }
  };
  for_each(
      [](const ShardedTensorState& state, const std::vector<Shard>& shards) {
        PrefetchObjects(&state, 1);
        PrefetchObjects(&shards, 1);
      });
  for_each([](const ShardedTensorState& state,
              const std::vector<Shard>& shards) {
    // Of more than a few the processor sees where they go on.
    constexpr size_t kFew = 2;
    for (const Shard& shard : absl::MakeConstSpan(shards).subspan(0, kFew)) {
      PrefetchObjects(&shard.tensor, 1);
    }
    PrefetchObjects(state.local_indices.data(),
                    std::min(state.local_indices.size(), kFew));
    if (state.boxes != nullptr) PrefetchObjects(state.boxes.get(), 1);
  });
  for_each([](const ShardedTensorState& state, const std::vector<Shard>&) {
    if (state.boxes == nullptr || state.local_indices.empty()) return;
    PrefetchObjects(&(*state.boxes)[state.local_indices[0]], 1);
  });
}

absl::StatusOr<ShardedTensor> ShardedTensorAccess::Allocate(
    ShardedTensorStatePtr state, Allocator* allocator) {
  SHERD_ASSIGN_OR_RETURN(LocalShards shards, AllocateShards(*state, allocator));
  return Make(std::move(state), std::move(shards));
}

uint64_t FingerprintOfCall(uint64_t source, uint64_t target) {
  return Fingerprint()
      .Add(static_cast<int64_t>(source))
      .Add(static_cast<int64_t>(target))
      .value();
}

std::string DescribeForAgreement(absl::string_view name,
                                 const ShardedTensor& tensor) {
  // Errors show at most so many shards.
  constexpr size_t kMaxShards = 1000;
  if (!tensor.defined()) return absl::StrCat("no ", name, "\n");
  const ShardedTensorMetadata& metadata = tensor.metadata();
  const TensorProperties& properties = metadata.properties;
  std::string text = absl::StrCat(
      name, " of size ", FormatDims(metadata.size), "\n",  //
      name, " of dtype ", Name(properties.dtype), "\n",    //
      name, " with requires_grad ", properties.requires_grad ? "true" : "false",
      "\n", name, " with pin_memory ", properties.pin_memory ? "true" : "false",
      "\n", name, " laid out by ", tensor.spec()->ToString(), "\n");
  const Dims& view = ShardedTensorAccess::StateOf(tensor)->view_offsets;
  if (!view.empty()) {
    absl::StrAppend(&text, name, " that is a view at ", FormatDims(view), "\n");
  }
  if (const auto& drawn = ShardedTensorAccess::StateOf(tensor)->drawn) {
    absl::StrAppend(&text, name, " with replicas drawn from the seed ",
                    drawn->seed, " at position ", drawn->position, "\n");
  }
  for (size_t i = 0; i < std::min(kMaxShards, metadata.shards.size()); ++i) {
    absl::StrAppend(&text, name, " with shard ", i, " ",
                    metadata.shards[i].ToString(), "\n");
  }
  return text;
}

absl::Status CheckRank(const ProcessGroup& group, int rank,
                       absl::string_view name) {
  if (rank >= 0 && rank < group.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", rank, ", expected 0 to ", group.size() - 1));
}

std::shared_ptr<RemoteAccess> WorkersOrDefault(
    const ShardedTensorOptions& options) {
  return options.workers != nullptr ? options.workers : DefaultRemoteAccess();
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> GroupOrDefault(
    std::shared_ptr<ProcessGroup> group) {
  if (group != nullptr) return group;
  return DefaultGroup();
}

absl::Status NotCreated(absl::string_view operation) {
  return absl::FailedPreconditionError(
      absl::StrCat(operation, ": the ShardedTensor was not created"));
}

absl::Status CheckMember(const ProcessGroup& group,
                         absl::string_view operation) {
  if (group.is_member()) return absl::OkStatus();
  return WithErrorInfo(
      absl::FailedPreconditionError(
          absl::StrCat(operation, ": this process is not a member of group '",
                       group.name(), "'")),
      {.group = group.name(),
       .operation = std::string(operation),
       .rank = std::nullopt});
}

absl::StatusOr<ProcessGroup*> GroupFor(const ShardedTensor& tensor,
                                       absl::string_view operation) {
  if (!tensor.defined()) return NotCreated(operation);
  ProcessGroup* const group = tensor.group().get();
  if (group == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        operation,
        ": the ShardedTensor has no process group, but all its shards in this "
        "process; moving data between ranks needs one, see To"));
  }
  SHERD_RETURN_IF_ERROR(CheckMember(*group, operation));
  return group;
}

}  // namespace internal

ShardedTensor::ShardedTensor(std::shared_ptr<const State> state,
                             std::shared_ptr<const std::vector<Shard>> shards)
    : state_(std::move(state)), local_shards_(std::move(shards)) {
  SHERD_CHECK(local_shards_->size() == state_->local_indices.size());
}

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
int ShardedTensor::rank() const {
  return state().group == nullptr ? 0 : state().group->rank();
}

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

int64_t ShardedTensor::numel() const { return Volume(size()); }

DType ShardedTensor::dtype() const { return state().metadata.properties.dtype; }

Layout ShardedTensor::layout() const {
  return state().metadata.properties.layout;
}

Device ShardedTensor::device() const {
  if (!local_shards().empty()) return local_shards()[0].tensor.device();
  const std::vector<ShardMetadata>& shards = metadata().shards;
  if (shards.empty() || !shards[0].placement) return Device();
  return shards[0].placement->device();
}

bool ShardedTensor::requires_grad() const {
  return state().metadata.properties.requires_grad;
}

bool ShardedTensor::is_floating_point() const {
  return IsFloatingPoint(dtype());
}

bool ShardedTensor::is_complex() const { return IsComplex(dtype()); }

bool ShardedTensor::is_contiguous() const {
  const absl::Span<const Shard> shards = local_shards();
  return std::all_of(shards.begin(), shards.end(), [](const Shard& shard) {
    return shard.tensor.is_contiguous();
  });
}

bool ShardedTensor::is_pinned() const {
  return state().metadata.properties.pin_memory;
}

bool ShardedTensor::is_meta() const {
  const std::vector<ShardMetadata>& shards = metadata().shards;
  return std::all_of(
      shards.begin(), shards.end(), [](const ShardMetadata& shard) {
        return shard.placement && shard.placement->device().is_meta();
      });
}

void ShardedTensor::SetRequiresGrad(bool requires_grad) {
  if (this->requires_grad() == requires_grad) return;
  TensorProperties properties = metadata().properties;
  properties.requires_grad = requires_grad;
  state_ = internal::WithProperties(state(), properties);
}

ShardedTensor ShardedTensor::Detach() const {
  ShardedTensor detached = *this;
  if (defined()) detached.SetRequiresGrad(false);
  return detached;
}

absl::Span<const Shard> ShardedTensor::local_shards() const {
  if (local_shards_ == nullptr) return {};
  return *local_shards_;
}

absl::Span<const int> ShardedTensor::local_shard_indices() const {
  return state().local_indices;
}

absl::Span<const PlacedBox> ShardedTensor::placed_boxes() const {
  if (state().boxes == nullptr) return {};
  return *state().boxes;
}

absl::StatusOr<Tensor> ShardedTensor::local_tensor() const {
  if (local_shards().size() != 1) {
    return absl::UnimplementedError(
        absl::StrCat("Only single local shard is supported. This rank has ",
                     local_shards().size(), ", see local_shards()"));
  }
  return local_shards()[0].tensor;
}

uint64_t ShardedTensor::fingerprint() const { return state().fingerprint; }

std::string ShardedTensor::ToString() const {
  if (!defined()) return "ShardedTensor(undefined)";
  return absl::StrCat("ShardedTensor(", metadata().ToString(), ")");
}

std::ostream& operator<<(std::ostream& out, const ShardedTensor& tensor) {
  return out << tensor.ToString();
}

}  // namespace sherd
