#include "sherd/core/comm/collective/emulation.h"

#include <algorithm>

#include "sherd/core/base/status_macros.h"

namespace sherd::internal {
namespace {

// Contributions of all ranks that together are at most this long go to
// all ranks at once: one round instead of two.
constexpr size_t kSmallTotal = size_t{64} << 10;

bool IsSumDividedInPlace(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 ||
         dtype == DType::kComplex64 || dtype == DType::kComplex128;
}

}  // namespace

OperationPath Emulation::PathOf(const NativeOperations& native, CollectiveOp op,
                                DType dtype, ReduceOp reduction) {
  const bool is_reduction = IsReduction(op);
  if (is_reduction && !CheckReduction(reduction, dtype).ok()) {
    return OperationPath::kUnsupported;
  }
  const bool has =
      is_reduction ? native.Has(op, dtype, reduction) : native.Has(op);
  if (has) return OperationPath::kNative;
  if (IsPointToPoint(op) || !native.Has(CollectiveOp::kAllToAllV)) {
    return OperationPath::kUnsupported;
  }
  return OperationPath::kEmulated;
}

Emulation::Emulation(NativeOperations native, int rank, int size)
    : native_(native),
      rank_(rank),
      size_(size),
      sends_(size),
      recvs_(size),
      inputs_(size) {}

absl::Status Emulation::Run(const Collective& desc, Post post) {
  if (!IsReduction(desc.op)) return Move(desc, post);
  if (desc.reduction == ReduceOp::kAvg && IsSumDividedInPlace(desc.dtype) &&
      native_.Has(desc.op, desc.dtype, ReduceOp::kSum)) {
    return DivideNativeSum(desc, post);
  }
  if (desc.op == CollectiveOp::kReduceScatter) return ReduceBlocks(desc, post);
  if (desc.bytes * size_ <= kSmallTotal) return ReduceSmall(desc, post);
  const size_t piece_bytes = SliceBytes(desc) * size_;
  for (size_t piece = 0; piece < desc.bytes; piece += piece_bytes) {
    SHERD_RETURN_IF_ERROR(ReducePiece(desc, piece, post));
  }
  return absl::OkStatus();
}

absl::Status Emulation::Exchange(const Collective& desc, Post post) {
  sends_[rank_] = {};
  recvs_[rank_] = {};
  Collective exchange;
  exchange.op = CollectiveOp::kAllToAllV;
  exchange.sends = sends_;
  exchange.recvs = recvs_;
  exchange.deadline = desc.deadline;
  return post(exchange);
}

void Emulation::ClearLists() {
  std::fill(sends_.begin(), sends_.end(), ConstBytes());
  std::fill(recvs_.begin(), recvs_.end(), MutableBytes());
}

ConstBytes Emulation::In(const Collective& desc) const {
  return {static_cast<const std::byte*>(desc.in), desc.bytes};
}

MutableBytes Emulation::Out(const Collective& desc) const {
  return {static_cast<std::byte*>(desc.out), desc.bytes};
}

absl::StatusOr<std::byte*> Emulation::Scratch(size_t bytes) {
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  return scratch_.data();
}

absl::Status Emulation::Reduce(ReduceOp op, DType dtype, void* out,
                               absl::Span<const void* const> ins, size_t count,
                               int divisor) {
  sherd::Reduce(op, dtype, out, ins, count, divisor);
  return absl::OkStatus();
}

absl::Status Emulation::Move(const Collective& desc, Post post) {
  ClearLists();
  const bool is_root = desc.root == rank_;
  const auto to_all = [this](ConstBytes bytes) {
    std::fill(sends_.begin(), sends_.end(), bytes);
  };
  switch (desc.op) {
    case CollectiveOp::kBarrier: {
      SHERD_ASSIGN_OR_RETURN(std::byte* const received, Scratch(size_ + 1));
      to_all({received + size_, 1});
      for (int r = 0; r < size_; ++r) recvs_[r] = {received + r, 1};
      break;
    }
    case CollectiveOp::kBroadcast:
      if (is_root) {
        to_all(Out(desc));
      } else {
        recvs_[desc.root] = Out(desc);
      }
      break;
    case CollectiveOp::kAllGather:
      to_all(In(desc));
      for (int r = 0; r < size_; ++r) {
        recvs_[r] = {static_cast<std::byte*>(desc.out) + r * desc.bytes,
                     desc.bytes};
      }
      break;
    case CollectiveOp::kAllGatherV:
      to_all(In(desc));
      std::copy(desc.recvs.begin(), desc.recvs.end(), recvs_.begin());
      break;
    case CollectiveOp::kGather:
      if (is_root) {
        std::copy(desc.recvs.begin(), desc.recvs.end(), recvs_.begin());
      } else {
        sends_[desc.root] = In(desc);
      }
      break;
    case CollectiveOp::kScatter:
      if (is_root) {
        std::copy(desc.sends.begin(), desc.sends.end(), sends_.begin());
      } else {
        recvs_[desc.root] = Out(desc);
      }
      break;
    default:
      return absl::InternalError("no move");
  }
  return Exchange(desc, post);
}

absl::Status Emulation::DivideNativeSum(const Collective& desc, Post post) {
  Collective sum = desc;
  sum.reduction = ReduceOp::kSum;
  SHERD_RETURN_IF_ERROR(post(sum));
  if (desc.op == CollectiveOp::kReduce && desc.root != rank_) {
    return absl::OkStatus();
  }
  const void* const total = desc.out;
  return Reduce(ReduceOp::kAvg, desc.dtype, desc.out, {&total, 1},
                desc.bytes / SizeOf(desc.dtype), size_);
}

absl::Status Emulation::ReduceSmall(const Collective& desc, Post post) {
  ClearLists();
  const bool receives =
      desc.op == CollectiveOp::kAllReduce || desc.root == rank_;
  SHERD_ASSIGN_OR_RETURN(std::byte* const scratch, Scratch(desc.bytes * size_));
  for (int r = 0; r < size_; ++r) {
    if (desc.op == CollectiveOp::kAllReduce || r == desc.root) {
      sends_[r] = In(desc);
    }
    if (receives) recvs_[r] = {scratch + r * desc.bytes, desc.bytes};
  }
  SHERD_RETURN_IF_ERROR(Exchange(desc, post));
  if (!receives) return absl::OkStatus();
  return Combine(desc, In(desc), scratch, desc.bytes, desc.out);
}

size_t Emulation::SliceBytes(const Collective& desc) const {
  // Whole elements, and cache lines where there is enough.
  constexpr size_t kAlignment = 64;
  const size_t element = SizeOf(desc.dtype);
  const size_t limit = kMaxScratch / size_;
  const size_t even = (desc.bytes / element + size_ - 1) / size_ * element;
  const size_t rounded = (even + kAlignment - 1) / kAlignment * kAlignment;
  return std::max(kAlignment,
                  std::min(rounded, limit / kAlignment * kAlignment));
}

Emulation::Slice Emulation::SliceOf(const Collective& desc, size_t piece,
                                    int rank) const {
  const size_t slice = SliceBytes(desc);
  const size_t begin = std::min<size_t>(desc.bytes, piece + rank * slice);
  const size_t end = std::min<size_t>(desc.bytes, begin + slice);
  return {begin, end - begin};
}

absl::Status Emulation::ReducePiece(const Collective& desc, size_t piece,
                                    Post post) {
  const size_t stride = SliceBytes(desc);
  const Slice own = SliceOf(desc, piece, rank_);
  SHERD_ASSIGN_OR_RETURN(std::byte* const scratch, Scratch(stride * size_));
  ClearLists();
  for (int r = 0; r < size_; ++r) {
    const Slice slice = SliceOf(desc, piece, r);
    sends_[r] = In(desc).subspan(slice.offset, slice.size);
    recvs_[r] = {scratch + r * stride, own.size};
  }
  SHERD_RETURN_IF_ERROR(Exchange(desc, post));

  const bool to_all = desc.op == CollectiveOp::kAllReduce;
  const bool receives = to_all || desc.root == rank_;
  std::byte* const result = receives
                                ? static_cast<std::byte*>(desc.out) + own.offset
                                : scratch + rank_ * stride;
  SHERD_RETURN_IF_ERROR(Combine(desc, In(desc).subspan(own.offset, own.size),
                                scratch, stride, result));

  ClearLists();
  for (int r = 0; r < size_; ++r) {
    if (to_all || r == desc.root) sends_[r] = {result, own.size};
    if (receives) {
      const Slice slice = SliceOf(desc, piece, r);
      recvs_[r] = Out(desc).subspan(slice.offset, slice.size);
    }
  }
  return Exchange(desc, post);
}

absl::Status Emulation::ReduceBlocks(const Collective& desc, Post post) {
  size_t longest = 0;
  for (const ConstBytes& block : desc.sends) {
    longest = std::max(longest, block.size());
  }
  constexpr size_t kAlignment = 64;
  const size_t stride =
      std::min((longest + kAlignment - 1) / kAlignment * kAlignment,
               kMaxScratch / size_ / kAlignment * kAlignment);
  SHERD_ASSIGN_OR_RETURN(std::byte* const scratch, Scratch(stride * size_));
  for (size_t offset = 0; offset < longest; offset += stride) {
    const auto part = [&](ConstBytes block) {
      return block.subspan(std::min(offset, block.size()), stride);
    };
    const ConstBytes own = part(desc.sends[rank_]);
    ClearLists();
    for (int r = 0; r < size_; ++r) {
      sends_[r] = part(desc.sends[r]);
      recvs_[r] = {scratch + r * stride, own.size()};
    }
    SHERD_RETURN_IF_ERROR(Exchange(desc, post));
    if (own.empty()) continue;
    SHERD_RETURN_IF_ERROR(Combine(desc, own, scratch, stride,
                                  static_cast<std::byte*>(desc.out) + offset));
  }
  return absl::OkStatus();
}

absl::Status Emulation::Combine(const Collective& desc, ConstBytes own,
                                const std::byte* scratch, size_t stride,
                                void* out) {
  if (own.empty()) return absl::OkStatus();
  for (int r = 0; r < size_; ++r) {
    inputs_[r] = r == rank_ ? static_cast<const void*>(own.data())
                            : scratch + r * stride;
  }
  return Reduce(desc.reduction, desc.dtype, out, inputs_,
                own.size() / SizeOf(desc.dtype), size_);
}

}  // namespace sherd::internal
