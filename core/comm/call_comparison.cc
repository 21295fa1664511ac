#include "sherd/core/comm/call_comparison.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "sherd/core/base/deviation.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {
namespace {

constexpr char kBoardKey[] = "calls/board";

// How many calls a rank may be ahead of the slowest, at most: as many as the
// board remembers.
constexpr uint64_t kCalls = 1024;
constexpr uint64_t kCallsWithLengths = 8;

// Where things stand, in words. A line is what processors share at once.
constexpr size_t kLine = 8;
constexpr size_t kFailed = 0;
constexpr size_t kBlamed = kLine;
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

// How a call is made.
constexpr uint64_t kEven = 1;
constexpr uint64_t kOnDevice = 2;

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

// A rank that waits for others in order to say who deviates ends before its
// deadline by so much: those who wait for it have that deadline as well.
constexpr absl::Duration kBeforeDeadline = absl::Milliseconds(200);
// Between two questions whether a rank was lost.
constexpr absl::Duration kLook = absl::Milliseconds(50);

// In place of a rank.
constexpr uint64_t kNobody = UINT64_MAX;

uint64_t Mix(uint64_t hash, uint64_t value) {
  // The multiplier and shift of SplitMix64.
  hash = (hash ^ value) * 0xbf58476d1ce4e5b9;
  return hash ^ (hash >> 29);
}

// Yields while the answer is likely near, then sleeps.
class Pause {
 public:
  void operator()() {
    if (++rounds_ <= 100) {
      sched_yield();
    } else {
      absl::SleepFor(absl::Microseconds(100));
    }
  }

 private:
  int rounds_ = 0;
};

bool HasLengthsOfItsOwn(CollectiveOp op) {
  return op == CollectiveOp::kAllToAllV || op == CollectiveOp::kGather ||
         op == CollectiveOp::kScatter;
}

// Whether desc.bytes, which is to be the same on all ranks, says it all. An
// even all_to_all is thus another call than one with lists, which spares it the
// comparison of lengths; of gather and scatter, ranks may mix the forms.
bool IsSaidByBytes(const CollectiveDesc& desc) {
  return !HasLengthsOfItsOwn(desc.op) ||
         (desc.op == CollectiveOp::kAllToAllV && desc.even);
}

}  // namespace

uint64_t CallComparison::Call::Fingerprint() const {
  uint64_t hash = 0;
  for (const uint64_t value :
       {op_and_root, type_and_reduction & 0xffffffff, form, bytes, lengths}) {
    hash = Mix(hash, value);
  }
  return hash & kFingerprintMask;
}

std::string CallComparison::Call::ToString() const {
  const auto op = static_cast<CollectiveOp>(op_and_root >> 32);
  std::vector<std::string> details;
  const absl::string_view type =
      Type() == 0 ? "" : Name(static_cast<DType>(Type() - 1));
  if (IsReduction(op)) {
    const auto reduction =
        static_cast<ReduceOp>(type_and_reduction & 0xffffffff);
    details.push_back(absl::StrCat(Name(reduction), " of ", type));
  } else if (!type.empty()) {
    details.emplace_back(type);
  }
  if (op == CollectiveOp::kBroadcast || op == CollectiveOp::kReduce ||
      op == CollectiveOp::kGather || op == CollectiveOp::kScatter) {
    details.push_back(absl::StrCat("root ", op_and_root & 0xffffffff));
  }
  if (op == CollectiveOp::kReduceScatter || op == CollectiveOp::kAllGatherV) {
    details.push_back(absl::StrCat("list of ", bytes, " bytes in all, hash ",
                                   absl::Hex(lengths)));
  } else if (op == CollectiveOp::kAllToAllV) {
    details.push_back((form & kEven) != 0
                          ? absl::StrCat(bytes, " bytes to each rank")
                          : "lists");
  } else if (op != CollectiveOp::kBarrier && !HasLengthsOfItsOwn(op)) {
    details.push_back(absl::StrCat(bytes, " bytes"));
  }
  return absl::StrCat(
      Name(op),
      details.empty() ? ""
                      : absl::StrCat("(", absl::StrJoin(details, ", "), ")"),
      (form & kOnDevice) != 0 ? " on its device" : "");
}

CallComparison::Call CallComparison::Describe(const CollectiveDesc& desc) {
  Call call;
  call.sequence = desc.sequence;
  call.op_and_root =
      uint64_t{static_cast<uint32_t>(desc.op)} << 32 |
      (desc.op == CollectiveOp::kBarrier ? 0
                                         : static_cast<uint32_t>(desc.root));
  if (desc.op == CollectiveOp::kAllToAllV && desc.even) call.form = kEven;
  if (desc.on_device) call.form += kOnDevice;
  const bool reduces = IsReduction(desc.op);
  if (reduces) call.type_and_reduction = static_cast<uint32_t>(desc.reduction);
  if (reduces || desc.typed) {
    call.type_and_reduction |= (1 + static_cast<uint64_t>(desc.dtype)) << 32;
  }
  const auto add_list = [&call](const auto& list) {
    for (const auto& entry : list) {
      call.bytes += entry.size();
      call.lengths = Mix(call.lengths, entry.size());
    }
  };
  switch (desc.op) {
    case CollectiveOp::kReduceScatter:
      add_list(desc.sends);
      break;
    case CollectiveOp::kAllGatherV:
      add_list(desc.recvs);
      break;
    default:
      if (IsSaidByBytes(desc)) call.bytes = desc.bytes;
  }
  return call;
}

CallComparison::Line CallComparison::LineFor(const CollectiveDesc& desc,
                                             int peer) const {
  Line line = {.call = Describe(desc)};
  const bool to_root = peer == desc.root;
  const bool from_root = rank_ == desc.root;
  switch (desc.op) {
    case CollectiveOp::kAllToAllV:
      line.sent = desc.sends[peer].size();
      line.wanted = desc.recvs[peer].size();
      break;
    case CollectiveOp::kGather:
      if (to_root) line.sent = desc.bytes;
      if (from_root) line.wanted = desc.recvs[peer].size();
      break;
    case CollectiveOp::kScatter:
      if (from_root) line.sent = desc.sends[peer].size();
      if (to_root) line.wanted = desc.bytes;
      break;
    default:
      break;
  }
  return line;
}

absl::StatusOr<std::unique_ptr<CallComparison>> CallComparison::OnBoard(
    Store& store, int rank, int size, Deadline deadline) {
  auto made = absl::WrapUnique(new CallComparison(rank, size));
  made->board_bytes_ = BoardWords(size) * sizeof(Word);
  const auto failed = [](absl::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the board on which ranks compare their calls: ", what, ": ",
        std::strerror(errno),
        "; run all ranks as the same user, or set SHERD_CHECK_CALLS=message"));
  };
  if (rank == 0) {
    made->file_ = UniqueFd(memfd_create("sherd_calls", MFD_CLOEXEC));
    if (!made->file_.is_open()) return failed("memfd_create");
    if (ftruncate(made->file_.get(), static_cast<off_t>(made->board_bytes_)) !=
        0) {
      return failed("ftruncate");
    }
    // Kept open until the group ends: others open it by this name.
    SHERD_RETURN_IF_ERROR(
        store.Set(kBoardKey,
                  absl::StrCat("/proc/", getpid(), "/fd/", made->file_.get())));
  } else {
    const absl::StatusOr<std::string> path = store.Get(kBoardKey, deadline);
    if (absl::IsDeadlineExceeded(path.status())) {
      return WithFailedRank(path.status(), 0);
    }
    SHERD_RETURN_IF_ERROR(path.status());
    made->file_ = UniqueFd(open(path->c_str(), O_RDWR | O_CLOEXEC));
    struct stat found = {};
    if (made->file_.is_open()) fstat(made->file_.get(), &found);
    // Its number may have become that of something else.
    const bool is_closed =
        made->file_.is_open()
            ? static_cast<size_t>(found.st_size) != made->board_bytes_
            : errno == ENOENT || errno == ENXIO;
    if (is_closed) {
      return WithFailedRank(absl::UnavailableError("closed its board"), 0);
    }
    if (!made->file_.is_open()) return WithRank(failed(*path), 0);
  }
  void* const memory = mmap(nullptr, made->board_bytes_, PROT_READ | PROT_WRITE,
                            MAP_SHARED, made->file_.get(), 0);
  if (memory == MAP_FAILED) return failed("mmap");
  if (rank != 0) made->file_.Reset();
  // Zeroed pages are words of value 0.
  made->board_ = static_cast<Word*>(memory);
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

CallComparison::~CallComparison() {
  if (board_ != nullptr) munmap(board_, board_bytes_);
}

absl::Status CallComparison::Compare(const CollectiveDesc& desc,
                                     Exchange exchange) {
  if (board_ != nullptr) return CompareOnBoard(desc);
  return desc.on_device ? absl::OkStatus() : CompareByMessages(desc, exchange);
}

void CallComparison::Fail() {
  if (board_ == nullptr) return;
  uint64_t nobody = 0;
  board_[kFailed].compare_exchange_strong(nobody, rank_ + 1);
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

absl::Status CallComparison::CompareByMessages(const CollectiveDesc& desc,
                                               Exchange exchange) {
  for (int r = 0; r < size_; ++r) outgoing_[r] = LineFor(desc, r);
  incoming_[rank_] = outgoing_[rank_];
  SHERD_RETURN_IF_ERROR(exchange(sends_, recvs_));
  std::vector<std::optional<Call>> calls;
  for (const Line& line : incoming_) calls.emplace_back(line.call);
  SHERD_RETURN_IF_ERROR(Judge(calls));
  for (int r = 0; r < size_; ++r) {
    if (incoming_[r].sent != outgoing_[r].wanted) {
      return DifferAboutLength(r, incoming_[r].sent, rank_,
                               outgoing_[r].wanted);
    }
    if (outgoing_[r].sent != incoming_[r].wanted) {
      return DifferAboutLength(rank_, outgoing_[r].sent, r,
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
    Pause pause;
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
  line[1].store(call.op_and_root, std::memory_order_relaxed);
  line[2].store(call.type_and_reduction, std::memory_order_relaxed);
  line[3].store(call.bytes, std::memory_order_relaxed);
  line[4].store(call.lengths, std::memory_order_relaxed);
  line[5].store(call.form, std::memory_order_relaxed);
  line[0].store(call.sequence, std::memory_order_release);
}

std::optional<CallComparison::Call> CallComparison::Published(
    int rank, uint64_t sequence) const {
  const Word* const line = Area(rank) + kRing + sequence % kCalls * kLine;
  Call call;
  call.sequence = line[0].load(std::memory_order_acquire);
  call.op_and_root = line[1].load(std::memory_order_relaxed);
  call.type_and_reduction = line[2].load(std::memory_order_relaxed);
  call.bytes = line[3].load(std::memory_order_relaxed);
  call.lengths = line[4].load(std::memory_order_relaxed);
  call.form = line[5].load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (call.sequence != sequence ||
      line[0].load(std::memory_order_relaxed) != sequence) {
    return std::nullopt;
  }
  return call;
}

// True unless a rank that came before made another call. The first that gives a
// type leaves it for all who come later.
bool CallComparison::IsFirstOrEqual(const Call& call) {
  Word& slot = Slot(call.sequence);
  const uint64_t mine = (call.sequence << kTypeBits | call.Type())
                            << kFingerprintBits |
                        call.Fingerprint();
  uint64_t found = slot.load(std::memory_order_acquire);
  for (;;) {
    if (NumberIn(found) == NumberIn(mine)) {
      if (((found ^ mine) & kFingerprintMask) != 0) return false;
      if (call.Type() == 0 || TypeIn(found) == call.Type()) return true;
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
  Pause pause;
  bool waits = true;
  for (int r = 0; r < size_;) {
    calls[r] = Published(r, sequence);
    if (calls[r] || !waits) {
      ++r;
      continue;
    }
    pause();
    waits = !patience.HasPassed() && !FailedRank() && !RankThatLeft(sequence);
    if (waits && is_any_lost_ != nullptr && next_look.HasPassed()) {
      waits = !is_any_lost_();
      next_look = Deadline::After(kLook);
    }
  }
  return calls;
}

absl::Status CallComparison::CompareOnBoard(const CollectiveDesc& desc) {
  if (desc.sequence % (kCalls / 2) == 0 && desc.sequence >= kCalls) {
    SHERD_RETURN_IF_ERROR(
        KeepPace(kDone, desc.sequence - kCalls / 2, desc.deadline));
  }
  const Call call = Describe(desc);
  Publish(call);
  if (!IsFirstOrEqual(call)) {
    absl::Status difference = Judge(AwaitCalls(call.sequence, desc.deadline));
    return difference.ok() ? Differ(std::nullopt,
                                    "the ranks made different "
                                    "calls")
                           : difference;
  }
  if (!IsSaidByBytes(desc)) {
    SHERD_RETURN_IF_ERROR(CompareLengths(desc));
  }
  MarkDone(Area(rank_)[kDone], desc.sequence);
  return absl::OkStatus();
}

absl::Status CallComparison::CompareLengths(const CollectiveDesc& desc) {
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
  // Of two ranks that write and then look, at least one sees the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int r = 0; r < size_; ++r) {
    const Word* const theirs = Lengths(desc.on_device, r, count);
    if (theirs[0].load(std::memory_order_acquire) != count) continue;
    const uint64_t sent = theirs[kLine + 2 * rank_];
    const uint64_t wanted = theirs[kLine + 2 * rank_ + 1];
    const uint64_t own_sent = mine[kLine + 2 * r];
    const uint64_t own_wanted = mine[kLine + 2 * r + 1];
    if (sent != own_wanted) {
      return DifferAboutLength(r, sent, rank_, own_wanted);
    }
    if (own_sent != wanted) {
      return DifferAboutLength(rank_, own_sent, r, wanted);
    }
  }
  Area(rank_)[done].store(count, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status CallComparison::Judge(
    const std::vector<std::optional<Call>>& calls) {
  std::vector<std::optional<uint64_t>> values(size_), types(size_);
  for (int r = 0; r < size_; ++r) {
    if (!calls[r]) continue;
    values[r] = calls[r]->Fingerprint();
    if (calls[r]->Type() != 0) types[r] = calls[r]->Type();
  }
  Deviation deviation = FindDeviation(values);
  if (!deviation.Exists()) deviation = FindDeviation(types);
  if (!deviation.Exists()) return absl::OkStatus();
  std::vector<int> unknown;
  for (int r = 0; r < size_; ++r) {
    if (!calls[r]) unknown.push_back(r);
  }
  return Differ(
      deviation.Rank(),
      absl::StrCat("the ranks made different calls: ",
                   deviation.ToText(
                       "called", [&](int r) { return calls[r]->ToString(); }),
                   unknown.empty() ? ""
                                   : absl::StrCat("; of ", RankList(unknown),
                                                  " nothing is known")));
}

absl::Status CallComparison::DifferAboutLength(int from, uint64_t sent, int to,
                                               uint64_t wanted) {
  return Differ(
      std::nullopt,
      absl::StrCat("the ranks made different calls: rank ", from, " sends ",
                   sent, " bytes to rank ", to, ", which expects ", wanted));
}

absl::Status CallComparison::Differ(std::optional<int> deviating,
                                    std::string what) {
  if (board_ != nullptr) {
    // The first verdict is everybody's.
    uint64_t verdict = 0;
    board_[kBlamed].compare_exchange_strong(
        verdict, deviating ? static_cast<uint64_t>(*deviating) + 1 : kNobody);
    if (verdict == kNobody) {
      deviating = std::nullopt;
    } else if (verdict != 0 && verdict <= static_cast<uint64_t>(size_)) {
      deviating = static_cast<int>(verdict) - 1;
    }
  }
  absl::Status status = absl::InvalidArgumentError(std::move(what));
  return deviating ? WithFailedRank(std::move(status), *deviating) : status;
}

}  // namespace sherd::internal
