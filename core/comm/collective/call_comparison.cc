#include "sherd/core/comm/collective/call_comparison.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/polling_pause.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {
namespace {

constexpr char kBoardKey[] = "calls/board";

// How many calls a rank may be ahead of the slowest, at most: as many as the
// board remembers.
constexpr uint64_t kCalls = 1024;
constexpr uint64_t kCallsWithLengths = 8;

// Offsets on the board, in words. A line is a cache line.
constexpr size_t kLine = 8;
constexpr size_t kFailed = 0;
constexpr size_t kDeviatingRank = kLine;
constexpr size_t kSlots = 2 * kLine;
// In the area of a rank.
constexpr size_t kDone = 0;
constexpr size_t kLeft = 1;
constexpr size_t kDoneWithLengths = kLine;
constexpr size_t kDoneOnDeviceWithLengths = 2 * kLine;
constexpr size_t kRing = 3 * kLine;

constexpr size_t LengthsWords(int size) { return kLine + 2 * size; }

constexpr size_t AreaWords(int size) {
  const size_t words =
      kRing + kCalls * kLine + 2 * kCallsWithLengths * LengthsWords(size);
  return (words + kLine - 1) / kLine * kLine;
}

constexpr size_t BoardWords(int size) {
  return kSlots + kCalls + size * AreaWords(size);
}

// A slot's word: the call's number above, then the type that calls of this
// number have, once one of them gave it, and their fingerprint below.
constexpr int kFingerprintBits = 35;
constexpr int kTypeBits = 5;
constexpr uint64_t kFingerprintMask = (uint64_t{1} << kFingerprintBits) - 1;
constexpr uint64_t kTypeMask = (uint64_t{1} << kTypeBits) - 1;
static_assert(kNumDTypes <= kTypeMask);

uint64_t NumberIn(uint64_t word) {
  return word >> (kFingerprintBits + kTypeBits);
}
uint64_t TypeIn(uint64_t word) { return word >> kFingerprintBits & kTypeMask; }

// A rank that waits for others in order to find the deviating one stops this
// long before its deadline: the ranks that wait for it have that deadline too.
constexpr absl::Duration kBeforeDeadline = absl::Milliseconds(200);
// Interval between two checks for a dead rank.
constexpr absl::Duration kLook = absl::Milliseconds(50);

// In place of a rank.
constexpr uint64_t kNoRank = UINT64_MAX;

// Between two looks at the board.
PollingPause MakePause() { return PollingPause(100, absl::Microseconds(100)); }

CallFields FieldsOf(const Collective& desc) {
  return {.op = static_cast<int32_t>(desc.op),
          .root = desc.root,
          .dtype = static_cast<int32_t>(desc.dtype),
          .reduction = static_cast<int32_t>(desc.reduction),
          .bytes = desc.bytes,
          .is_typed = desc.typed,
          .is_even = desc.even,
          .on_device = desc.on_device};
}

CallSignature SignatureOf(const Collective& desc) {
  CallSignature signature = internal::SignatureOf(FieldsOf(desc));
  switch (TraitsOf(desc.op).lists) {
    case OperationLists::kSameSends:
      for (ConstBytes entry : desc.sends) signature.AddLength(entry.size());
      break;
    case OperationLists::kSameRecvs:
      for (MutableBytes entry : desc.recvs) signature.AddLength(entry.size());
      break;
    default:
      break;
  }
  return signature;
}

uint64_t FingerprintOf(const CallSignature& signature) {
  uint64_t hash = signature.kind & ~CallSignature::kTypeMask;
  hash = CallSignature::Mix(0, hash);
  hash = CallSignature::Mix(hash, signature.bytes);
  return CallSignature::Mix(hash, signature.lengths) & kFingerprintMask;
}

}  // namespace

CallComparison::Line CallComparison::LineFor(const Collective& desc,
                                             int peer) const {
  const MessageLengths lengths = LengthsWith(
      peer, rank_, FieldsOf(desc),
      [&](int to) { return desc.sends[to].size(); },
      [&](int from) { return desc.recvs[from].size(); });
  return {.call = {desc.sequence, SignatureOf(desc)},
          .sent = lengths.sent,
          .wanted = lengths.expected};
}

absl::StatusOr<std::unique_ptr<CallComparison>> CallComparison::OnBoard(
    Store& store, int rank, int size, Deadline deadline) {
  auto made = absl::WrapUnique(new CallComparison(rank, size));
  const uint64_t bytes = BoardWords(size) * sizeof(Word);
  const auto failed = [](absl::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the board on which ranks compare their calls: ", what, ": ",
        std::strerror(errno),
        "; run all ranks as the same user, or set SHERD_CHECK_CALLS=message"));
  };
  if (rank == 0) {
    switch (made->shared_.Create("sherd_calls", bytes)) {
      case SharedSegment::Failure::kNone:
        break;
      case SharedSegment::Failure::kMake:
        return failed("memfd_create");
      case SharedSegment::Failure::kSize:
        return failed("ftruncate");
      default:
        return failed("mmap");
    }
    // Kept open until the group ends: others open it by this name.
    SHERD_RETURN_IF_ERROR(store.Set(
        kBoardKey, SharedSegment::PathOf(getpid(), made->shared_.fd())));
  } else {
    const absl::StatusOr<std::string> path = store.Get(kBoardKey, deadline);
    if (absl::IsDeadlineExceeded(path.status())) {
      return WithFailedRank(path.status(), 0);
    }
    SHERD_RETURN_IF_ERROR(path.status());
    const absl::Status closed =
        WithFailedRank(absl::UnavailableError("closed its board"), 0);
    UniqueFd file = SharedSegment::Open(*path);
    if (!file.is_open()) {
      return errno == ENOENT ? closed : WithRank(failed(*path), 0);
    }
    switch (made->shared_.Adopt(std::move(file), bytes, bytes)) {
      case SharedSegment::Failure::kNone:
        break;
      case SharedSegment::Failure::kForeign:
        // Its number has become that of something else.
        return closed;
      default:
        return failed("mmap");
    }
    made->shared_.CloseDescriptor();
  }
  // Zeroed pages are words of value 0.
  made->board_ = reinterpret_cast<Word*>(made->shared_.memory());
  return made;
}

std::unique_ptr<CallComparison> CallComparison::ByMessages(int rank, int size) {
  auto made = absl::WrapUnique(new CallComparison(rank, size));
  made->outgoing_.resize(size);
  made->incoming_.resize(size);
  for (int r = 0; r < size; ++r) {
    made->sends_.emplace_back(
        reinterpret_cast<const std::byte*>(&made->outgoing_[r]), sizeof(Line));
    made->recvs_.emplace_back(reinterpret_cast<std::byte*>(&made->incoming_[r]),
                              sizeof(Line));
  }
  return made;
}

absl::Status CallComparison::Compare(const Collective& desc,
                                     Exchange exchange) {
  if (board_ != nullptr) return CompareOnBoard(desc);
  return desc.on_device ? absl::OkStatus() : CompareByMessages(desc, exchange);
}

void CallComparison::Fail() {
  if (board_ == nullptr) return;
  uint64_t none = 0;
  board_[kFailed].compare_exchange_strong(none, rank_ + 1);
}

std::optional<int> CallComparison::FailedRank() const {
  if (board_ == nullptr) return std::nullopt;
  const uint64_t failed = board_[kFailed].load(std::memory_order_acquire);
  if (failed == 0 || failed > static_cast<uint64_t>(size_)) return std::nullopt;
  return static_cast<int>(failed) - 1;
}

void CallComparison::Leave() {
  if (board_ == nullptr) return;
  Area(rank_)[kLeft].store(1, std::memory_order_release);
}

std::optional<int> CallComparison::RankThatLeft(uint64_t sequence) const {
  for (int r = 0; board_ != nullptr && r < size_; ++r) {
    const Word* const area = Area(r);
    if (area[kLeft].load(std::memory_order_acquire) != 0 &&
        area[kDone].load(std::memory_order_acquire) < sequence) {
      return r;
    }
  }
  return std::nullopt;
}

std::vector<int> CallComparison::RanksBehind(uint64_t sequence) const {
  std::vector<int> behind;
  for (int r = 0; board_ != nullptr && r < size_; ++r) {
    if (Area(r)[kDone].load(std::memory_order_acquire) < sequence) {
      behind.push_back(r);
    }
  }
  return behind;
}

absl::Status CallComparison::CompareByMessages(const Collective& desc,
                                               Exchange exchange) {
  for (int r = 0; r < size_; ++r) outgoing_[r] = LineFor(desc, r);
  incoming_[rank_] = outgoing_[rank_];
  SHERD_RETURN_IF_ERROR(exchange(sends_, recvs_));
  std::vector<std::optional<Call>> calls;
  for (const Line& line : incoming_) calls.emplace_back(line.call);
  SHERD_RETURN_IF_ERROR(Judge(calls));
  for (int r = 0; r < size_; ++r) {
    if (incoming_[r].sent != outgoing_[r].wanted) {
      return DifferAboutLength(desc, r, incoming_[r].sent, rank_,
                               outgoing_[r].wanted);
    }
    if (outgoing_[r].sent != incoming_[r].wanted) {
      return DifferAboutLength(desc, rank_, outgoing_[r].sent, r,
                               incoming_[r].wanted);
    }
  }
  return absl::OkStatus();
}

CallComparison::Word& CallComparison::Slot(uint64_t sequence) const {
  return board_[kSlots + sequence % kCalls];
}

CallComparison::Word* CallComparison::Area(int rank) const {
  return board_ + kSlots + kCalls + rank * AreaWords(size_);
}

CallComparison::Word* CallComparison::Lengths(bool on_device, int rank,
                                              uint64_t count) const {
  const uint64_t entry =
      (on_device ? kCallsWithLengths : 0) + count % kCallsWithLengths;
  return Area(rank) + kRing + kCalls * kLine + entry * LengthsWords(size_);
}

void CallComparison::MarkDone(Word& word, uint64_t sequence) {
  if (!has_device_calls_) {
    word.store(sequence, std::memory_order_release);
    return;
  }
  // A call on the device may be done before an earlier one on the host, which
  // waits in a queue.
  uint64_t done = word.load(std::memory_order_relaxed);
  while (done < sequence &&
         !word.compare_exchange_weak(done, sequence, std::memory_order_release,
                                     std::memory_order_relaxed)) {
  }
}

// Returns once every rank's counter at `word` is at least `least`.
absl::Status CallComparison::KeepPace(int word, uint64_t least,
                                      Deadline deadline) {
  for (int r = 0; r < size_; ++r) {
    PollingPause pause = MakePause();
    while (Area(r)[word].load(std::memory_order_acquire) < least) {
      if (deadline.HasPassed() || FailedRank()) {
        return WithFailedRank(absl::DeadlineExceededError(absl::StrCat(
                                  "is too many calls behind rank ", rank_)),
                              r);
      }
      pause();
    }
  }
  return absl::OkStatus();
}

void CallComparison::Publish(const Call& call) {
  Word* const line = Area(rank_) + kRing + call.sequence % kCalls * kLine;
  // Readers look at the number first and last.
  line[0].store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  line[1].store(call.signature.kind, std::memory_order_relaxed);
  line[2].store(call.signature.bytes, std::memory_order_relaxed);
  line[3].store(call.signature.lengths, std::memory_order_relaxed);
  line[0].store(call.sequence, std::memory_order_release);
}

std::optional<CallComparison::Call> CallComparison::Published(
    int rank, uint64_t sequence) const {
  const Word* const line = Area(rank) + kRing + sequence % kCalls * kLine;
  Call call;
  call.sequence = line[0].load(std::memory_order_acquire);
  call.signature.kind = line[1].load(std::memory_order_relaxed);
  call.signature.bytes = line[2].load(std::memory_order_relaxed);
  call.signature.lengths = line[3].load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (call.sequence != sequence ||
      line[0].load(std::memory_order_relaxed) != sequence) {
    return std::nullopt;
  }
  return call;
}

// True unless an earlier rank made another call. The first rank that gives a
// type records it for all later ones.
bool CallComparison::IsFirstOrEqual(const Call& call) {
  Word& slot = Slot(call.sequence);
  const uint64_t type = call.signature.type();
  const uint64_t mine = (call.sequence << kTypeBits | type)
                            << kFingerprintBits |
                        FingerprintOf(call.signature);
  uint64_t found = slot.load(std::memory_order_acquire);
  for (;;) {
    if (NumberIn(found) == NumberIn(mine)) {
      if (((found ^ mine) & kFingerprintMask) != 0) return false;
      if (type == 0 || TypeIn(found) == type) return true;
      if (TypeIn(found) != 0) return false;
    }
    if (slot.compare_exchange_weak(found, mine, std::memory_order_acq_rel)) {
      return true;
    }
  }
}

std::vector<std::optional<CallComparison::Call>> CallComparison::AwaitCalls(
    uint64_t sequence, Deadline deadline) const {
  std::vector<std::optional<Call>> calls(size_);
  const Deadline patience =
      Deadline::After(deadline.Remaining() - kBeforeDeadline);
  Deadline next_look = Deadline::After(kLook);
  PollingPause pause = MakePause();
  bool waits = true;
  for (int r = 0; r < size_;) {
    calls[r] = Published(r, sequence);
    if (calls[r] || !waits) {
      ++r;
      continue;
    }
    pause();
    waits = !patience.HasPassed() && !FailedRank() && !RankThatLeft(sequence);
    if (waits && has_failed_rank_ != nullptr && next_look.HasPassed()) {
      waits = !has_failed_rank_();
      next_look = Deadline::After(kLook);
    }
  }
  return calls;
}

absl::Status CallComparison::CompareOnBoard(const Collective& desc) {
  if (desc.sequence % (kCalls / 2) == 0 && desc.sequence >= kCalls) {
    SHERD_RETURN_IF_ERROR(
        KeepPace(kDone, desc.sequence - kCalls / 2, desc.deadline));
  }
  const Call call = {desc.sequence, SignatureOf(desc)};
  Publish(call);
  if (!IsFirstOrEqual(call)) {
    absl::Status difference = Judge(AwaitCalls(call.sequence, desc.deadline));
    // The calls of the other ranks can no longer be obtained.
    return difference.ok() ? Differ({std::nullopt,
                                     "the ranks made different "
                                     "calls"})
                           : difference;
  }
  if (ComparesMessages(FieldsOf(desc))) {
    SHERD_RETURN_IF_ERROR(CompareLengths(desc));
  }
  MarkDone(Area(rank_)[kDone], desc.sequence);
  return absl::OkStatus();
}

absl::Status CallComparison::CompareLengths(const Collective& desc) {
  const uint64_t count = ++with_lengths_[desc.on_device ? 1 : 0];
  const size_t done =
      desc.on_device ? kDoneOnDeviceWithLengths : kDoneWithLengths;
  constexpr uint64_t kHalf = kCallsWithLengths / 2;
  if (count % kHalf == 0 && count >= kCallsWithLengths) {
    SHERD_RETURN_IF_ERROR(KeepPace(done, count - kHalf, desc.deadline));
  }
  Word* const mine = Lengths(desc.on_device, rank_, count);
  mine[0].store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (int r = 0; r < size_; ++r) {
    const Line line = LineFor(desc, r);
    mine[kLine + 2 * r].store(line.sent, std::memory_order_relaxed);
    mine[kLine + 2 * r + 1].store(line.wanted, std::memory_order_relaxed);
  }
  mine[0].store(count, std::memory_order_release);
  // If two ranks write and then read, at least one sees the other's value.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int r = 0; r < size_; ++r) {
    const Word* const theirs = Lengths(desc.on_device, r, count);
    if (theirs[0].load(std::memory_order_acquire) != count) continue;
    const uint64_t sent = theirs[kLine + 2 * rank_];
    const uint64_t wanted = theirs[kLine + 2 * rank_ + 1];
    const uint64_t own_sent = mine[kLine + 2 * r];
    const uint64_t own_wanted = mine[kLine + 2 * r + 1];
    if (sent != own_wanted) {
      return DifferAboutLength(desc, r, sent, rank_, own_wanted);
    }
    if (own_sent != wanted) {
      return DifferAboutLength(desc, rank_, own_sent, r, wanted);
    }
  }
  Area(rank_)[done].store(count, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status CallComparison::Judge(
    const std::vector<std::optional<Call>>& calls) {
  std::vector<std::optional<CallSignature>> signatures(calls.size());
  for (size_t r = 0; r < calls.size(); ++r) {
    if (calls[r]) signatures[r] = calls[r]->signature;
  }
  std::optional<CallDifference> difference = FindDifference(signatures);
  return difference ? Differ(*std::move(difference)) : absl::OkStatus();
}

absl::Status CallComparison::DifferAboutLength(const Collective& desc, int from,
                                               uint64_t sent, int to,
                                               uint64_t wanted) {
  return Differ(DifferenceOfLengths(static_cast<int32_t>(desc.op), from, sent,
                                    to, wanted));
}

absl::Status CallComparison::Differ(CallDifference difference) {
  if (board_ != nullptr) {
    uint64_t deviating = 0;
    board_[kDeviatingRank].compare_exchange_strong(
        deviating, difference.rank ? static_cast<uint64_t>(*difference.rank) + 1
                                   : kNoRank);
    if (deviating == kNoRank) {
      difference.rank = std::nullopt;
    } else if (deviating != 0 && deviating <= static_cast<uint64_t>(size_)) {
      difference.rank = static_cast<int>(deviating) - 1;
    }
  }
  absl::Status status = absl::InvalidArgumentError(difference.text);
  return difference.rank ? WithFailedRank(std::move(status), *difference.rank)
                         : status;
}

}  // namespace sherd::internal
