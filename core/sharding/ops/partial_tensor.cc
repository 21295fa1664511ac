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
#include "sherd/core/sharding/plan/message_rounds.h"
#include "sherd/core/sharding/plan/replica_division.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/sharding/tensor/local_shards.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/kernels/strided_copy.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"

namespace sherd {
namespace {

using internal::BoxPiece;
using internal::MessageRound;

// Replicas smaller than twice this are reduced by one of their holders.
constexpr int64_t kMinPart = 4096;

constexpr char kReshard[] = "partial_reshard";
constexpr char kAllReduce[] = "partial_all_reduce";

// What has to be the same on all ranks: of AllReduce, `on_device` says whether
// the device part of the group adds up; of Reshard, `target` is the result.
struct PartialCall {
  const PartialTensor& tensor;
  const PartialOptions& options;
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
    all.Add(options.max_staging_bytes);
    if (target->defined()) all.Add(static_cast<int64_t>(target->fingerprint()));
    return all.value();
  }

  std::string Describe() const {
    std::string text = absl::StrCat("dtype ", Name(tensor.dtype()), "\nsize ",
                                    FormatDims(tensor.size()), "\nreduction ",
                                    Name(tensor.op()), "\nsummands on ",
                                    on_device ? "the device\n" : "the host\n");
    if (target == nullptr) return text;
    return absl::StrCat(text, "max_staging_bytes ", options.max_staging_bytes,
                        "\n",
                        internal::DescribeForAgreement("result", *target));
  }
};

// The address of the element at `offsets`, where `base` is that at `origin`.
template <typename Byte>
Byte* AddressOf(Byte* base, const Dims& offsets, const Dims& origin,
                absl::Span<const int64_t> strides, size_t element_size) {
  int64_t at = 0;
  for (size_t d = 0; d < offsets.size(); ++d) {
    at += (offsets[d] - origin[d]) * strides[d];
  }
  return base + at * static_cast<int64_t>(element_size);
}

// One reduction of local summands into the shards of a sharded tensor. Each
// rank gets what the others have of its shards, a segment at a time, and
// reduces it with its own in the order of ranks.
class Reducer {
 public:
  Reducer(const Tensor& local, ReduceOp op, const ShardedTensor& result,
          const PartialOptions& options)
      : local_(local),
        op_(op),
        result_(result),
        options_(options),
        group_(*result.group()),
        rank_(static_cast<size_t>(group_.rank())) {}

  //   kInvalidArgument    The staging bound is too low.
  //   kResourceExhausted  No staging memory.
  absl::Status Plan();

  // Collective. All ranks have a plan, with the same size, spec and options.
  absl::Status Run();

  const PartialStats& stats() const { return stats_; }

 private:
  // What is reduced for one rank in one round, as this rank has it: where it
  // begins if it is one run of memory in row-major order, otherwise null.
  const std::byte* SourceRun(const MessageRound& segment) const;
  // The same in a shard of this rank.
  std::byte* DestinationRun(const MessageRound& segment) const;

  const std::byte* SourceOf(const BoxPiece& piece) const;
  std::byte* DestinationOf(const BoxPiece& piece) const;
  const Shard& TargetOf(const BoxPiece& piece) const {
    return result_.local_shards()[static_cast<size_t>(piece.dst_shard)];
  }
  // Null if `rank` has nothing to get any more.
  const MessageRound* SegmentOf(size_t rank, size_t round) const {
    const std::vector<MessageRound>& of_rank = segments_[rank];
    return round < of_rank.size() ? &of_rank[round] : nullptr;
  }
  int64_t StagedBytes(size_t round) const;
  void Pack(const MessageRound& segment, std::byte* to);
  void Unpack(const MessageRound& segment, const std::byte* from);
  absl::Status RunRound(size_t round);

  const Tensor& local_;
  const ReduceOp op_;
  const ShardedTensor& result_;
  const PartialOptions& options_;
  ProcessGroup& group_;
  const size_t rank_;
  // By rank, then by round.
  std::vector<std::vector<MessageRound>> segments_;
  size_t rounds_ = 0;
  std::shared_ptr<Storage> staging_;
  PartialStats stats_;
};

absl::Status Reducer::Plan() {
  const auto ranks = static_cast<size_t>(group_.size());
  std::vector<std::vector<BoxCopy>> boxes(ranks);
  std::vector<int> next(ranks, 0);
  for (const PlacedBox& box : result_.placed_boxes()) {
    const auto rank = static_cast<size_t>(box.rank);
    const int position = next[rank]++;
    if (IsEmpty(box)) continue;
    BoxCopy copy = {box};
    copy.dst_shard = position;
    boxes[rank].push_back(std::move(copy));
  }
  // A segment goes to each other rank, one comes from each, and one is reduced.
  const int64_t slots = 2 * group_.size() - 1;
  const auto element_size = static_cast<int64_t>(local_.element_size());
  const int64_t max_bytes = options_.max_staging_bytes / slots;
  // What exchanges replicas wants four elements for each peer.
  const int64_t least =
      std::max(slots, 4 * (int64_t{group_.size()} - 1)) * element_size;
  if (options_.max_staging_bytes < least) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_staging_bytes is ", options_.max_staging_bytes,
        ", expected at least ", least, " for ", group_.size(), " ranks"));
  }
  int64_t most = 0;
  for (const std::vector<BoxCopy>& of_rank : boxes) {
    segments_.push_back(
        internal::CutIntoRounds(of_rank, local_.element_size(), max_bytes));
    rounds_ = std::max(rounds_, segments_.back().size());
  }
  for (size_t round = 0; round < rounds_; ++round) {
    most = std::max(most, StagedBytes(round));
  }
  SHERD_ASSIGN_OR_RETURN(staging_,
                         Storage::Allocate(static_cast<size_t>(most)));
  stats_.staging_bytes = most;
  stats_.rounds = static_cast<int64_t>(rounds_);
  return absl::OkStatus();
}

int64_t Reducer::StagedBytes(size_t round) const {
  int64_t bytes = 0;
  for (size_t rank = 0; rank < segments_.size(); ++rank) {
    const MessageRound* const segment = SegmentOf(rank, round);
    if (segment == nullptr) continue;
    if (rank != rank_) {
      if (SourceRun(*segment) == nullptr) bytes += segment->bytes;
      continue;
    }
    bytes += segment->bytes * (group_.size() - 1);
    if (DestinationRun(*segment) == nullptr) bytes += segment->bytes;
  }
  return bytes;
}

const std::byte* Reducer::SourceOf(const BoxPiece& piece) const {
  return AddressOf(static_cast<const std::byte*>(local_.data()), piece.offsets,
                   Dims(piece.offsets.size(), 0), local_.strides(),
                   local_.element_size());
}

std::byte* Reducer::DestinationOf(const BoxPiece& piece) const {
  Tensor tensor = TargetOf(piece).tensor;
  return AddressOf(static_cast<std::byte*>(tensor.data()), piece.offsets,
                   TargetOf(piece).metadata.offsets, tensor.strides(),
                   tensor.element_size());
}

const std::byte* Reducer::SourceRun(const MessageRound& segment) const {
  const std::byte* const begin = SourceOf(segment.pieces[0]);
  const std::byte* end = begin;
  for (const BoxPiece& piece : segment.pieces) {
    if (SourceOf(piece) != end ||
        !IsContiguousRun(piece.sizes, local_.strides())) {
      return nullptr;
    }
    end += piece.bytes;
  }
  return begin;
}

std::byte* Reducer::DestinationRun(const MessageRound& segment) const {
  std::byte* const begin = DestinationOf(segment.pieces[0]);
  const std::byte* end = begin;
  for (const BoxPiece& piece : segment.pieces) {
    if (DestinationOf(piece) != end ||
        piece.dst_shard != segment.pieces[0].dst_shard ||
        !IsContiguousRun(piece.sizes, TargetOf(piece).tensor.strides())) {
      return nullptr;
    }
    end += piece.bytes;
  }
  return begin;
}

void Reducer::Pack(const MessageRound& segment, std::byte* to) {
  for (const BoxPiece& piece : segment.pieces) {
    StridedCopy(to, ContiguousStrides(piece.sizes), SourceOf(piece),
                local_.strides(), piece.sizes, local_.element_size());
    to += piece.bytes;
  }
  stats_.bytes_staged += segment.bytes;
}

void Reducer::Unpack(const MessageRound& segment, const std::byte* from) {
  for (const BoxPiece& piece : segment.pieces) {
    StridedCopy(DestinationOf(piece), TargetOf(piece).tensor.strides(), from,
                ContiguousStrides(piece.sizes), piece.sizes,
                local_.element_size());
    from += piece.bytes;
  }
  stats_.bytes_staged += segment.bytes;
}

absl::Status Reducer::RunRound(size_t round) {
  auto* free = static_cast<std::byte*>(staging_->data());
  const auto take = [&](int64_t bytes) {
    return std::exchange(free, free + bytes);
  };
  const MessageRound* const own = SegmentOf(rank_, round);
  std::vector<ConstBytes> sends(segments_.size());
  std::vector<MutableBytes> recvs(segments_.size());
  for (size_t rank = 0; rank < segments_.size(); ++rank) {
    if (rank == rank_) continue;
    if (own != nullptr) {
      recvs[rank] =
          MutableBytes(take(own->bytes), static_cast<size_t>(own->bytes));
    }
    const MessageRound* const segment = SegmentOf(rank, round);
    if (segment == nullptr) continue;
    const std::byte* from = SourceRun(*segment);
    if (from == nullptr) {
      std::byte* const packed = take(segment->bytes);
      Pack(*segment, packed);
      from = packed;
    }
    sends[rank] = ConstBytes(from, static_cast<size_t>(segment->bytes));
    stats_.bytes_sent += segment->bytes;
  }
  SHERD_RETURN_IF_ERROR(
      group_.AllToAllV(sends, recvs, {.timeout = options_.timeout}));
  if (own == nullptr) return absl::OkStatus();

  std::byte* to = DestinationRun(*own);
  const bool in_place = to != nullptr;
  if (!in_place) to = take(own->bytes);
  const std::byte* mine = SourceRun(*own);
  if (mine == nullptr) {
    // The result may stand where an input stood.
    Pack(*own, to);
    mine = to;
  }
  std::vector<const void*> inputs;
  for (const MutableBytes& received : recvs) inputs.push_back(received.data());
  inputs[rank_] = mine;
  Reduce(op_, local_.dtype(), to, inputs,
         static_cast<size_t>(own->bytes) / local_.element_size(),
         group_.size());
  stats_.bytes_received += own->bytes * (group_.size() - 1);
  if (!in_place) Unpack(*own, to);
  return absl::OkStatus();
}

absl::Status Reducer::Run() {
  for (size_t round = 0; round < rounds_; ++round) {
    SHERD_RETURN_IF_ERROR(RunRound(round));
  }
  return absl::OkStatus();
}

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
  Tensor local;
  std::optional<Reducer> reducer;
  const auto prepare = [&]() -> absl::Status {
    SHERD_ASSIGN_OR_RETURN(
        target, ShardedTensor::Empty(spec, size(),
                                     {.dtype = dtype(), .group = group_}));
    SHERD_RETURN_IF_ERROR(internal::CheckHasData(target.local_shards()));
    SHERD_ASSIGN_OR_RETURN(reduced, WithoutReplicas(target));
    SHERD_ASSIGN_OR_RETURN(local, internal::OnHost(local_));
    reducer.emplace(local, op_, reduced, options);
    return reducer->Plan();
  };
  const absl::Status status = prepare();
  const PartialCall call = {
      .tensor = *this, .options = options, .target = &target};
  SHERD_RETURN_IF_ERROR(
      Agree(*group_, kReshard, status,
            {call.fingerprint(), [&] { return call.Describe(); }},
            {.timeout = options.timeout}));
  SHERD_RETURN_IF_ERROR(InOperation(kReshard, reducer->Run()));
  if (reduced.fingerprint() != target.fingerprint()) {
    SHERD_RETURN_IF_ERROR(InOperation(
        kReshard, reduced.ReshardInto(
                      target, {.max_staging_bytes = options.max_staging_bytes,
                               .timeout = options.timeout})));
  }
  if (options.stats != nullptr) *options.stats = reducer->stats();
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
  const PartialCall call = {
      .tensor = *this, .options = options, .on_device = on_device};
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
