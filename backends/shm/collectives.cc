#include "sherd/backends/shm/collectives.h"

#include <algorithm>
#include <cstring>

#include "sherd/backends/plugin.h"
#include "sherd/backends/shm/call.h"
#include "sherd/backends/shm/copy.h"
#include "sherd/backends/shm/direct_read.h"
#include "sherd/core/process/process_memory.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

// As long as all inputs together have no more bytes, every rank reduces
// completely, which saves a synchronization.
constexpr uint64_t kWholeBytes = 16 << 10;
// The least that is worth a synchronization when one rank fills boxes while
// others empty them.
constexpr uint64_t kPipelinedBytes = 32 << 10;

// Lengths of entries that are read out of the other process. Shorter ones cost
// less to copy twice than to call the system for. Longer ones stream through
// the boxes faster than the system finds their pages; where a rank fills as
// much as it empties, they are the last to.
struct DirectLengths {
  uint64_t least;
  uint64_t most;
};
DirectLengths DirectLengthsOf(int32_t op, int ranks) {
  constexpr uint64_t kKiB = 1 << 10;
  const bool pair = ranks == 2;
  switch (op) {
    case SHERD_BROADCAST:
      return {16 * kKiB, (pair ? 1024 : 512) * kKiB};
    case SHERD_ALL_TO_ALL_V:
      return {(pair ? 16 : 32) * kKiB, 16384 * kKiB};
    case SHERD_ALL_GATHER:
    case SHERD_ALL_GATHER_V:
      return {(pair ? 16 : 32) * kKiB, (pair ? 16384 : 1024) * kKiB};
    default:
      return {32 * kKiB, 1024 * kKiB};
  }
}

unsigned char* Bytes(void* data) { return static_cast<unsigned char*>(data); }
const unsigned char* Bytes(const void* data) {
  return static_cast<const unsigned char*>(data);
}

// Length of piece number `index` of `total` bytes cut into `chunk`s; 0 beyond.
uint64_t PieceLength(uint64_t total, uint64_t chunk, uint64_t index) {
  const uint64_t offset = index * chunk;
  return offset < total ? std::min(chunk, total - offset) : 0;
}

// That piece of the memory at `data`; null beyond its end, where `data` may be
// null as well.
unsigned char* PieceOf(void* data, uint64_t total, uint64_t chunk,
                       uint64_t index) {
  const uint64_t offset = index * chunk;
  return offset < total ? Bytes(data) + offset : nullptr;
}

// The part of a chunk of `bytes` that `rank` of `ranks` reduces. Whole cache
// lines, and thus whole elements of any type.
struct Slice {
  uint64_t begin;
  uint64_t end;
};
Slice SliceOf(uint64_t bytes, int rank, int ranks) {
  const uint64_t p = static_cast<uint64_t>(ranks);
  const uint64_t length =
      ((bytes + p - 1) / p + kCacheLine - 1) / kCacheLine * kCacheLine;
  const uint64_t begin = std::min(bytes, length * rank);
  return {begin, std::min(bytes, begin + length)};
}

uint64_t SizeOf(int32_t dtype) {
  static constexpr uint64_t kSizes[SHERD_NUM_DTYPES] = {
      1, 1, 1, 2, 2, 4, 4, 8, 8, 1, 1, 2, 2, 4, 8, 8, 16};
  return kSizes[dtype];
}

bool HasEntries(int32_t op) {
  return op == SHERD_ALL_TO_ALL_V || op == SHERD_SCATTER;
}

bool IsToOrFromRoot(int32_t op) {
  return op == SHERD_BROADCAST || op == SHERD_GATHER || op == SHERD_SCATTER;
}

}  // namespace

ShmCollectives::ShmCollectives(const ShmSegment& segment, ShmWaiting& waiting,
                               int rank, const sherd_host_v0& host)
    : segment_(segment),
      waiting_(waiting),
      rank_(rank),
      host_(host),
      inputs_(segment.ranks()) {}

sherd_code ShmCollectives::Run(const sherd_op_v0& op, sherd_error_v0* error) {
  ++operation_;
  WriteCall(segment_, operation_, rank_, op);
  const sherd_code code = Dispatch(op, error);
  if (code == SHERD_OK) waiting_.SetCompleted(operation_);
  return code;
}

sherd_code ShmCollectives::Dispatch(const sherd_op_v0& op,
                                    sherd_error_v0* error) {
  switch (op.op) {
    case SHERD_BARRIER:
      return Meet(op, error);
    case SHERD_BROADCAST:
    case SHERD_ALL_GATHER:
    case SHERD_ALL_GATHER_V:
    case SHERD_GATHER:
    case SHERD_SCATTER:
    case SHERD_ALL_TO_ALL_V:
      return Move(op, error);
    case SHERD_REDUCE_SCATTER:
      return ReduceScatter(op, error);
    case SHERD_ALL_REDUCE:
    case SHERD_REDUCE:
      return op.bytes * size() <= kWholeBytes || op.bytes <= kInlineBytes
                 ? ReduceWhole(op, error)
                 : ReduceSlices(op, error);
    default:
      return Fail(error, SHERD_UNSUPPORTED, -1, "unknown operation");
  }
}

sherd_code ShmCollectives::Meet(const sherd_op_v0& op, sherd_error_v0* error) {
  segment_.arrival(operation_, rank_)
      .operation.store(operation_, std::memory_order_release);
  waiting_.Publish();
  for (int k = 1; k < size(); ++k) {
    const ShmArrival& peer = segment_.arrival(operation_, Peer(k));
    const sherd_code code = waiting_.Await(
        Peer(k), {op.deadline, operation_},
        [&] {
          return peer.operation.load(std::memory_order_acquire) == operation_;
        },
        error);
    if (code != SHERD_OK) return code;
  }
  // A rank that finds a difference fails, so check for differences before
  // failures.
  const sherd_code code = CompareCalls(segment_, operation_, rank_, op, error);
  return code == SHERD_OK ? waiting_.CheckPeers(operation_, error) : code;
}

sherd_code ShmCollectives::MeetAgain(const sherd_op_v0& op, uint64_t round,
                                     Partners partners, sherd_error_v0* error) {
  const ShmWaiting::Limits limits = {op.deadline, operation_};
  segment_.rank(rank_).round.store(round, std::memory_order_release);
  waiting_.Publish();
  const bool only_root = partners == Partners::kRoot && !IsRoot(op);
  for (int k = 1; k < size(); ++k) {
    if (only_root && Peer(k) != op.root) continue;
    const ShmRank& peer = segment_.rank(Peer(k));
    const sherd_code code = waiting_.Await(
        Peer(k), limits,
        [&] { return peer.round.load(std::memory_order_acquire) >= round; },
        error);
    if (code != SHERD_OK) return code;
  }
  return waiting_.Check(only_root ? op.root : Peer(1), limits, error);
}

template <typename Body>
sherd_code ShmCollectives::RunRounds(const sherd_op_v0& op, uint64_t chunk,
                                     Partners partners, int stages,
                                     const Body& body, sherd_error_v0* error) {
  body(0);
  sherd_code code = Meet(op, error);
  if (code != SHERD_OK) return code;
  const uint64_t longest = LongestInBoxes(segment_, operation_);
  // Also where nothing moves, and a chunk may have no bytes.
  const uint64_t rounds = longest == 0 ? 1 : (longest + chunk - 1) / chunk;
  const uint64_t meetings = rounds + stages - 1;
  for (uint64_t s = 1; s < meetings; ++s) {
    body(s);
    code = MeetAgain(op, round_ + s, partners, error);
    if (code != SHERD_OK) return code;
  }
  body(meetings);
  round_ += meetings;
  return SHERD_OK;
}

unsigned char* ShmCollectives::Box(uint64_t s, int rank, uint64_t bytes) const {
  return bytes <= kInlineBytes ? segment_.arrival(operation_, rank).payload
                               : segment_.outbox(round_ + s, rank);
}

uint64_t ShmCollectives::entry_bytes() const {
  // A group of one moves nothing.
  // NOLINTNEXTLINE(clang-analyzer-core.DivideZero)
  return segment_.box_bytes() / (size() - 1) / kCacheLine * kCacheLine;
}

unsigned char* ShmCollectives::Entry(uint64_t s, int from, int to) const {
  const int index = to < from ? to : to - 1;
  return segment_.outbox(round_ + s, from) + index * entry_bytes();
}

sherd_bytes_v0 ShmCollectives::Given(const sherd_op_v0& op) const {
  switch (op.op) {
    case SHERD_BROADCAST:
      return {op.out, IsRoot(op) ? op.bytes : 0};
    case SHERD_GATHER:
      return {const_cast<void*>(op.in), IsRoot(op) ? 0 : op.bytes};
    default:
      return {const_cast<void*>(op.in), op.bytes};
  }
}

sherd_bytes_v0 ShmCollectives::Given(const sherd_op_v0& op, int to) const {
  if (!HasEntries(op.op)) return Given(op);
  if (op.op == SHERD_SCATTER && !IsRoot(op)) return {nullptr, 0};
  return op.sends[to];
}

sherd_bytes_v0 ShmCollectives::Wanted(const sherd_op_v0& op, int from) const {
  switch (op.op) {
    case SHERD_BROADCAST:
    case SHERD_SCATTER:
      return {op.out, from == op.root ? op.bytes : 0};
    case SHERD_ALL_GATHER:
      return {Bytes(op.out) + from * op.bytes, op.bytes};
    case SHERD_GATHER:
      return IsRoot(op) ? op.recvs[from] : sherd_bytes_v0{nullptr, 0};
    default:
      return op.recvs[from];
  }
}

uint64_t ShmCollectives::ChunkOf(const sherd_op_v0& op) const {
  if (HasEntries(op.op)) return entry_bytes();
  if (op.op == SHERD_GATHER) return segment_.box_bytes() / 4;
  if (op.op != SHERD_BROADCAST) return segment_.box_bytes();
  // Some eight pieces, so that the root fills one box while the others empty
  // the one before.
  const uint64_t eighth = (op.bytes / 8 / kCacheLine + 1) * kCacheLine;
  return std::clamp<uint64_t>(eighth, kPipelinedBytes, segment_.box_bytes());
}

sherd_code ShmCollectives::Move(const sherd_op_v0& op, sherd_error_v0* error) {
  const Partners partners =
      IsToOrFromRoot(op.op) ? Partners::kRoot : Partners::kAll;
  const uint64_t chunk = ChunkOf(op);
  uint64_t all = 0;
  for (int k = 1; k < size(); ++k) all += Wanted(op, Peer(k)).size;
  const bool gives = !OfferDirectly(op);
  const uint64_t first_round = round_;
  const auto body = [&](uint64_t s) {
    if (s > 0) Take(op, s - 1, chunk, all >= kStreamedBytes);
    if (gives) Give(op, s, chunk);
  };
  const sherd_code code = RunRounds(op, chunk, partners, 1, body, error);
  return code == SHERD_OK ? TakeDirectly(op, first_round, partners, error)
                          : code;
}

void ShmCollectives::Give(const sherd_op_v0& op, uint64_t s, uint64_t chunk) {
  if (HasEntries(op.op)) {
    for (int k = 1; k < size(); ++k) {
      const sherd_bytes_v0 given = Given(op, Peer(k));
      Copy(Entry(s, rank_, Peer(k)), PieceOf(given.data, given.size, chunk, s),
           PieceLength(given.size, chunk, s), false);
    }
    return;
  }
  const sherd_bytes_v0 given = Given(op);
  Copy(Box(s, rank_, given.size), PieceOf(given.data, given.size, chunk, s),
       PieceLength(given.size, chunk, s), false);
}

void ShmCollectives::Take(const sherd_op_v0& op, uint64_t s, uint64_t chunk,
                          bool streamed) {
  for (int k = 1; k < size(); ++k) {
    const int from = Peer(k);
    if (IsReadDirectly(from)) continue;
    const sherd_bytes_v0 wanted = Wanted(op, from);
    const unsigned char* const box =
        HasEntries(op.op) ? Entry(s, from, rank_) : Box(s, from, wanted.size);
    Copy(PieceOf(wanted.data, wanted.size, chunk, s), box,
         PieceLength(wanted.size, chunk, s), streamed);
  }
}

bool ShmCollectives::IsReadDirectly(int rank) const {
  return (segment_.arrival(operation_, rank).longest & kReadDirectly) != 0;
}

bool ShmCollectives::OfferDirectly(const sherd_op_v0& op) {
  ShmArrival& arrival = segment_.arrival(operation_, rank_);
  const uint64_t longest = arrival.longest & kLengthMask;
  const DirectLengths lengths = DirectLengthsOf(op.op, size());
  if (longest < lengths.least || longest > lengths.most ||
      !segment_.RanksReadEachOther()) {
    return false;
  }
  auto* const addresses =
      reinterpret_cast<uint64_t*>(segment_.outbox(round_, rank_));
  for (int k = 1; k < size(); ++k) {
    const sherd_bytes_v0 given = Given(op, Peer(k));
    if (!readable_.Contains(given.data, given.size)) return false;
    const auto address = reinterpret_cast<uintptr_t>(given.data);
    if (HasEntries(op.op)) {
      addresses[Peer(k)] = address;
    } else {
      std::memcpy(arrival.payload, &address, sizeof(address));
    }
  }
  arrival.longest |= kReadDirectly;
  return true;
}

sherd_code ShmCollectives::TakeDirectly(const sherd_op_v0& op,
                                        uint64_t first_round, Partners partners,
                                        sherd_error_v0* error) {
  bool any = false;
  for (int k = 1; k < size(); ++k) {
    const int from = Peer(k);
    if (!IsReadDirectly(from)) continue;
    any = true;
    uint64_t address;
    if (HasEntries(op.op)) {
      address = reinterpret_cast<const uint64_t*>(
          segment_.outbox(first_round, from))[rank_];
    } else {
      std::memcpy(&address, segment_.arrival(operation_, from).payload,
                  sizeof(address));
    }
    const sherd_code code = ReadFrom(op, from, address, error);
    if (code != SHERD_OK) return code;
  }
  if (!any && !IsReadDirectly(rank_)) return SHERD_OK;
  const sherd_code code = MeetAgain(op, ++round_, partners, error);
  // A rank that went on earlier may have changed the data that others read.
  return code == SHERD_OK ? waiting_.CheckPeers(operation_, error) : code;
}

sherd_code ShmCollectives::ReadFrom(const sherd_op_v0& op, int from,
                                    uint64_t address, sherd_error_v0* error) {
  const sherd_bytes_v0 wanted = Wanted(op, from);
  if (wanted.size == 0) return SHERD_OK;
  const int number = ReadProcessMemory(segment_.rank(from).pid, address,
                                       wanted.data, wanted.size);
  sherd_code code = waiting_.Check(from, {op.deadline, operation_}, error);
  if (code == SHERD_OK && number != 0) {
    // The peer may have failed, and its caller freed the memory.
    code = waiting_.CheckPeers(operation_, error);
  }
  if (code != SHERD_OK || number == 0) return code;
  return FailToRead(error, from, number);
}

sherd_code ShmCollectives::ReduceScatter(const sherd_op_v0& op,
                                         sherd_error_v0* error) {
  const uint64_t chunk = entry_bytes();
  const auto body = [&](uint64_t s) {
    const uint64_t length = s > 0 ? PieceLength(op.bytes, chunk, s - 1) : 0;
    if (length > 0) {
      for (int r = 0; r < size(); ++r) {
        inputs_[r] = r == rank_ ? Bytes(op.sends[r].data) + (s - 1) * chunk
                                : Entry(s - 1, r, rank_);
      }
      Reduce(op, Bytes(op.out) + (s - 1) * chunk, length);
    }
    for (int k = 1; k < size(); ++k) {
      const sherd_bytes_v0& send = op.sends[Peer(k)];
      Copy(Entry(s, rank_, Peer(k)), PieceOf(send.data, send.size, chunk, s),
           PieceLength(send.size, chunk, s), false);
    }
  };
  return RunRounds(op, chunk, Partners::kAll, 1, body, error);
}

sherd_code ShmCollectives::ReduceWhole(const sherd_op_v0& op,
                                       sherd_error_v0* error) {
  const bool reads = op.op == SHERD_ALL_REDUCE || IsRoot(op);
  const auto body = [&](uint64_t s) {
    if (s == 0) {
      Copy(Box(0, rank_, op.bytes), op.in, op.bytes, false);
    } else if (reads) {
      for (int r = 0; r < size(); ++r) {
        inputs_[r] = r == rank_ ? op.in : Box(0, r, op.bytes);
      }
      Reduce(op, op.out, op.bytes);
    }
  };
  return RunRounds(op, op.bytes, Partners::kAll, 1, body, error);
}

sherd_code ShmCollectives::ReduceSlices(const sherd_op_v0& op,
                                        sherd_error_v0* error) {
  const uint64_t chunk = segment_.box_bytes();
  const auto body = [&](uint64_t s) {
    if (s > 1) CollectSlices(op, s - 2, chunk);
    if (s > 0) ReduceSlice(op, s - 1, chunk);
    const uint64_t length = PieceLength(op.bytes, chunk, s);
    const Slice own = SliceOf(length, rank_, size());
    unsigned char* const box = segment_.outbox(round_ + s, rank_);
    const unsigned char* const in = Bytes(op.in) + s * chunk;
    Copy(box, in, own.begin, false);
    Copy(box + own.end, in + own.end, length - own.end, false);
  };
  return RunRounds(op, chunk, Partners::kAll, 2, body, error);
}

void ShmCollectives::ReduceSlice(const sherd_op_v0& op, uint64_t s,
                                 uint64_t chunk) {
  const Slice own = SliceOf(PieceLength(op.bytes, chunk, s), rank_, size());
  if (own.begin == own.end) return;
  for (int r = 0; r < size(); ++r) {
    inputs_[r] = own.begin + (r == rank_ ? Bytes(op.in) + s * chunk
                                         : segment_.outbox(round_ + s, r));
  }
  Reduce(op, segment_.result(round_ + s, rank_), own.end - own.begin);
}

void ShmCollectives::CollectSlices(const sherd_op_v0& op, uint64_t s,
                                   uint64_t chunk) const {
  if (op.op == SHERD_REDUCE && !IsRoot(op)) return;
  const uint64_t length = PieceLength(op.bytes, chunk, s);
  for (int k = 0; k < size(); ++k) {
    const Slice slice = SliceOf(length, Peer(k), size());
    Copy(Bytes(op.out) + s * chunk + slice.begin,
         segment_.result(round_ + s, Peer(k)), slice.end - slice.begin,
         op.bytes >= kStreamedBytes);
  }
}

void ShmCollectives::Reduce(const sherd_op_v0& op, void* out, uint64_t bytes) {
  host_.reduce(op.dtype, op.reduction, out, inputs_.data(), size(),
               bytes / SizeOf(op.dtype), size());
}

}  // namespace sherd::internal
