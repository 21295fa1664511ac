#include "sherd/testing/emulated_gpu/nccl/nccl_collectives.h"

#include <algorithm>
#include <complex>
#include <cstring>
#include <deque>
#include <type_traits>

#include "absl/types/span.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd::testing {
namespace {

// Bytes of each peer that reductions buffer at a time.
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

ReduceOp ReduceOpOf(int op) {
  switch (op) {
    case internal::kNcclProd:
      return ReduceOp::kProduct;
    case internal::kNcclMax:
      return ReduceOp::kMax;
    case internal::kNcclMin:
      return ReduceOp::kMin;
    case internal::kNcclAvg:
      return ReduceOp::kAvg;
    default:  // Made ones sum what they scaled.
      return ReduceOp::kSum;
  }
}

template <typename T>
void Scale(const char* in, const char* factor, uint64_t count, char* out) {
  T scale;
  std::memcpy(&scale, factor, sizeof(T));
  for (uint64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, in + i * sizeof(T), sizeof(T));
    if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(static_cast<uint64_t>(value) *
                             static_cast<uint64_t>(scale));
    } else if constexpr (sizeof(T) < sizeof(float)) {
      value = T(static_cast<float>(value) * static_cast<float>(scale));
    } else {
      value *= scale;
    }
    std::memcpy(out + i * sizeof(T), &value, sizeof(T));
  }
}

// 1 / `ranks` as an element of `dtype`; of floats only.
std::vector<char> Share(DType dtype, int ranks) {
  std::vector<char> bytes;
  if (!IsFloatingPoint(dtype)) return bytes;
  DispatchDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Wide = std::conditional_t<sizeof(T) < sizeof(float), float, double>;
    const T share = T(static_cast<Wide>(1.0 / ranks));
    bytes.resize(sizeof(T));
    std::memcpy(bytes.data(), &share, sizeof(T));
  });
  return bytes;
}

// One collective on one rank.
class Collective {
 public:
  Collective(const NcclTask& task, uint64_t sequence,
             const NcclWaiting& waiting)
      : task_(task),
        waiting_(waiting),
        rank_(waiting.rank),
        size_(waiting.segment->num_ranks()),
        root_(task.signature.root),
        dtype_(*DTypeOfNccl(task.signature.type)),
        element_(SizeOf(dtype_)),
        count_(task.signature.count),
        in_(static_cast<const char*>(HostView(task.in))),
        out_(static_cast<char*>(HostView(task.out))) {
    header_.signature = task.signature;
    header_.sequence = sequence;
    if (task.factor != nullptr) {
      const NcclFactor& factor = *task.factor;
      factor_ = factor.device == nullptr
                    ? factor.bytes
                    : static_cast<const char*>(HostView(factor.device));
    } else if (task.signature.op == internal::kNcclAvg) {
      // NCCL takes each rank's share before it sums, of floats; the average of
      // integers is the quotient of the sum.
      share_ = Share(dtype_, size_);
      if (!share_.empty()) factor_ = share_.data();
    }
  }

  bool Run() {
    switch (task_.function) {
      case NcclFunction::kAllReduce:
        return AllReduce();
      case NcclFunction::kReduce:
        return ReduceToRoot();
      case NcclFunction::kBroadcast:
        return Broadcast();
      case NcclFunction::kAllGather:
        return AllGather();
      case NcclFunction::kReduceScatter:
        return ReduceScatter();
      case NcclFunction::kAllToAll:
        return AllToAll();
      case NcclFunction::kGather:
        return Gather();
      case NcclFunction::kScatter:
        return Scatter();
      default:
        return false;
    }
  }

 private:
  bool Exchange(NcclTransfer& transfer) {
    ++header_.step;
    return transfer.Run(false);
  }
  NcclTransfer Begin() const { return {NcclTraffic::kCollective, waiting_}; }
  NcclMessageHeader Header(uint64_t count) const {
    NcclMessageHeader header = header_;
    header.bytes = count * element_;
    return header;
  }

  // This rank's input of in[first, first + count) to a reduction, valid until
  // the next piece.
  // next piece.
  const char* Part(uint64_t first, uint64_t count) {
    const char* const in = in_ + first * element_;
    if (factor_ == nullptr) return in;
    std::vector<char>& scaled = parts_.emplace_back(count * element_);
    DispatchDType(dtype_, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (!std::is_same_v<T, std::complex<float>> &&
                    !std::is_same_v<T, std::complex<double>>) {
        Scale<T>(in, factor_, count, scaled.data());
      }
    });
    return scaled.data();
  }
  // Memory for the `count` elements of another rank.
  char* Room(uint64_t count) {
    return parts_.emplace_back(std::max<uint64_t>(1, count * element_)).data();
  }
  void ReduceParts(const std::vector<const void*>& parts, uint64_t count,
                   char* out) const {
    if (count == 0) return;
    const ReduceOp op =
        factor_ != nullptr ? ReduceOp::kSum : ReduceOpOf(task_.signature.op);
    sherd::Reduce(op, dtype_, out, parts, count, size_);
  }
  void CopyOwn(char* to, const char* from) const {
    if (to != from) std::memmove(to, from, count_ * element_);
  }

  // Receives all others' parts of `count` elements and reduces them with this
  // rank's.
  bool ReduceInto(NcclTransfer& transfer, const char* own, uint64_t count,
                  char* out) {
    std::vector<const void*> parts(size_);
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) {
        parts[r] = own;
      } else {
        char* const room = Room(count);
        parts[r] = room;
        transfer.Receive(r, Header(count), room);
      }
    }
    if (!Exchange(transfer)) return false;
    ReduceParts(parts, count, out);
    return true;
  }

  // Calls piece(first, count) for pieces of [0, count_).
  template <typename Piece>
  bool ForPieces(uint64_t elements, const Piece& piece) {
    for (uint64_t first = 0; first < count_; first += elements) {
      parts_.clear();
      if (!piece(first, std::min(elements, count_ - first))) return false;
    }
    return true;
  }

  bool AllReduce() {
    return ForPieces(
        kPieceBytes / element_ * size_, [&](uint64_t first, uint64_t count) {
          const auto begin = [&](int r) { return first + count * r / size_; };
          const auto length = [&](int r) { return begin(r + 1) - begin(r); };
          const char* const part = Part(first, count) - first * element_;
          NcclTransfer reduce = Begin();
          for (int r = 0; r < size_; ++r) {
            if (r == rank_) continue;
            reduce.Send(r, Header(length(r)), part + begin(r) * element_);
          }
          const uint64_t own = begin(rank_) * element_;
          if (!ReduceInto(reduce, part + own, length(rank_), out_ + own)) {
            return false;
          }
          NcclTransfer gather = Begin();
          for (int r = 0; r < size_; ++r) {
            if (r == rank_) continue;
            gather.Send(r, Header(length(rank_)), out_ + own);
            gather.Receive(r, Header(length(r)), out_ + begin(r) * element_);
          }
          return Exchange(gather);
        });
  }

  bool ReduceToRoot() {
    return ForPieces(
        kPieceBytes / element_, [&](uint64_t first, uint64_t count) {
          const char* const part = Part(first, count);
          NcclTransfer transfer = Begin();
          if (rank_ == root_) {
            return ReduceInto(transfer, part, count, out_ + first * element_);
          }
          transfer.Send(root_, Header(count), part);
          return Exchange(transfer);
        });
  }

  bool ReduceScatter() {
    return ForPieces(
        kPieceBytes / element_, [&](uint64_t first, uint64_t count) {
          NcclTransfer transfer = Begin();
          for (int r = 0; r < size_; ++r) {
            if (r == rank_) continue;
            transfer.Send(r, Header(count), Part(r * count_ + first, count));
          }
          return ReduceInto(transfer, Part(rank_ * count_ + first, count),
                            count, out_ + first * element_);
        });
  }

  bool Broadcast() {
    NcclTransfer transfer = Begin();
    if (rank_ == root_) {
      CopyOwn(out_, in_);
      for (int r = 0; r < size_; ++r) {
        if (r != rank_) transfer.Send(r, Header(count_), in_);
      }
    } else {
      transfer.Receive(root_, Header(count_), out_);
    }
    return Exchange(transfer);
  }

  char* Block(char* base, int r) const { return base + r * count_ * element_; }
  const char* Block(const char* base, int r) const {
    return base + r * count_ * element_;
  }

  bool AllGather() {
    CopyOwn(Block(out_, rank_), in_);
    NcclTransfer transfer = Begin();
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      transfer.Send(r, Header(count_), Block(out_, rank_));
      transfer.Receive(r, Header(count_), Block(out_, r));
    }
    return Exchange(transfer);
  }

  bool AllToAll() {
    CopyOwn(Block(out_, rank_), Block(in_, rank_));
    NcclTransfer transfer = Begin();
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      transfer.Send(r, Header(count_), Block(in_, r));
      transfer.Receive(r, Header(count_), Block(out_, r));
    }
    return Exchange(transfer);
  }

  bool Gather() {
    NcclTransfer transfer = Begin();
    if (rank_ == root_) {
      CopyOwn(Block(out_, rank_), in_);
      for (int r = 0; r < size_; ++r) {
        if (r != rank_) transfer.Receive(r, Header(count_), Block(out_, r));
      }
    } else {
      transfer.Send(root_, Header(count_), in_);
    }
    return Exchange(transfer);
  }

  bool Scatter() {
    NcclTransfer transfer = Begin();
    if (rank_ == root_) {
      CopyOwn(out_, Block(in_, rank_));
      for (int r = 0; r < size_; ++r) {
        if (r != rank_) transfer.Send(r, Header(count_), Block(in_, r));
      }
    } else {
      transfer.Receive(root_, Header(count_), out_);
    }
    return Exchange(transfer);
  }

  const NcclTask& task_;
  const NcclWaiting& waiting_;
  const int rank_;
  const int size_;
  const int root_;
  const DType dtype_;
  const uint64_t element_;
  const uint64_t count_;
  const char* const in_;
  char* const out_;
  const char* factor_ = nullptr;
  std::vector<char> share_;
  NcclMessageHeader header_;
  std::deque<std::vector<char>> parts_;
};

// How many times the task's count this rank has of `in` and of `out`.
struct Extents {
  uint64_t in = 0;
  uint64_t out = 0;
};

Extents ExtentsOf(const NcclTask& task, int rank, int size) {
  const bool is_root = rank == task.signature.root;
  const uint64_t all = static_cast<uint64_t>(size);
  switch (task.function) {
    case NcclFunction::kAllReduce:
      return {1, 1};
    case NcclFunction::kReduce:
      return {1, is_root ? 1u : 0u};
    case NcclFunction::kBroadcast:
      return {is_root ? 1u : 0u, 1};
    case NcclFunction::kAllGather:
      return {1, all};
    case NcclFunction::kReduceScatter:
      return {all, 1};
    case NcclFunction::kAllToAll:
      return {all, all};
    case NcclFunction::kGather:
      return {1, is_root ? all : 0};
    case NcclFunction::kScatter:
      return {is_root ? all : 0, 1};
    case NcclFunction::kSend:
      return {1, 0};
    case NcclFunction::kRecv:
      return {0, 1};
  }
  return {};
}

}  // namespace

uint64_t NcclTask::bytes() const {
  return signature.count * SizeOf(*DTypeOfNccl(signature.type));
}

std::vector<MemoryAccess> AccessesOf(const NcclTask& task, int rank, int size) {
  const Extents extents = ExtentsOf(task, rank, size);
  const uint64_t bytes = task.bytes();
  std::vector<MemoryAccess> accesses;
  if (bytes == 0) return accesses;
  if (extents.in > 0) accesses.push_back(Reads(task.in, extents.in * bytes));
  if (extents.out > 0) {
    accesses.push_back(Writes(task.out, extents.out * bytes));
  }
  if (task.factor != nullptr && task.factor->device != nullptr) {
    accesses.push_back(
        Reads(task.factor->device, SizeOf(*DTypeOfNccl(task.factor->type))));
  }
  return accesses;
}

std::string BadOverlap(const NcclTask& task, int rank, int size) {
  const Extents extents = ExtentsOf(task, rank, size);
  const uint64_t bytes = task.bytes();
  const auto in = reinterpret_cast<uintptr_t>(task.in);
  const auto out = reinterpret_cast<uintptr_t>(task.out);
  if (bytes == 0 || in + extents.in * bytes <= out ||
      out + extents.out * bytes <= in || extents.in == 0 || extents.out == 0) {
    return "";
  }
  // Where the smaller buffer may lie in the larger.
  const uint64_t place = bytes * static_cast<uint64_t>(rank);
  const bool in_place = extents.in == extents.out ? in == out && extents.in == 1
                        : extents.in < extents.out ? in == out + place
                                                   : out == in + place;
  if (in_place) return "";
  return Describe(task.signature) + " as rank " + std::to_string(rank) +
         " of " + std::to_string(size) +
         ": what it reads and what it writes overlap, but not in the way that "
         "is called in place";
}

bool RunCollective(const NcclTask& task, uint64_t sequence,
                   const NcclWaiting& waiting) {
  return Collective(task, sequence, waiting).Run();
}

bool RunPointToPoint(const std::vector<NcclTask>& tasks,
                     const NcclWaiting& waiting) {
  NcclTransfer transfer(NcclTraffic::kPointToPoint, waiting);
  std::deque<const NcclTask*> to_self;
  for (const NcclTask& task : tasks) {
    if (task.function == NcclFunction::kSend &&
        task.signature.root == waiting.rank) {
      to_self.push_back(&task);
    }
  }
  for (const NcclTask& task : tasks) {
    const int peer = task.signature.root;
    NcclMessageHeader header;
    header.signature = task.signature;
    header.signature.root = 0;
    header.bytes = task.bytes();
    if (peer != waiting.rank) {
      if (task.function == NcclFunction::kSend) {
        transfer.Send(peer, header, HostView(task.in));
      } else {
        transfer.Receive(peer, header, HostView(task.out));
      }
      continue;
    }
    if (task.function != NcclFunction::kRecv) continue;
    const NcclTask& send = *to_self.front();
    to_self.pop_front();
    if (send.bytes() != task.bytes()) {
      waiting.mismatch("rank " + std::to_string(peer) + " sends itself " +
                       Describe(send.signature) + " and expects " +
                       Describe(task.signature));
      continue;
    }
    if (task.bytes() > 0) {
      std::memmove(HostView(task.out), HostView(send.in), task.bytes());
    }
  }
  return transfer.Run(true);
}

}  // namespace sherd::testing
