#include "sherd/core/comm/flight/flight_recorder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <limits>
#include <set>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/logging.h"

namespace sherd::internal {
namespace {

constexpr size_t kDefaultEntries = 2048;
constexpr int64_t kMostEntries = 1 << 16;
// Places that Begin looks at before it gives up.
constexpr int kMostSkipped = 64;

// The control word of a slot: id << 2 | phase. The word 0 is an empty slot.
constexpr uint64_t kPhaseMask = 3;
constexpr uint64_t kWriting = 0;
constexpr uint64_t kOutstanding = 1;
constexpr uint64_t kEnded = 2;

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr uint64_t kNone = 255;

int64_t ToNanoseconds(Deadline deadline) {
  if (deadline.IsInfinite()) return kNever;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             deadline.when().time_since_epoch())
      .count();
}

// Small numbers in one word.
uint64_t PackKind(const Collective& call, OperationPath path) {
  const bool reduces = IsReduction(call.op);
  const uint64_t dtype =
      reduces || call.typed ? static_cast<uint64_t>(call.dtype) : kNone;
  const uint64_t reduction =
      reduces ? static_cast<uint64_t>(call.reduction) : kNone;
  const int root = HasRoot(call.op) ? call.root : -1;
  return static_cast<uint64_t>(call.op) | dtype << 8 | reduction << 16 |
         static_cast<uint64_t>(path) << 24 | uint64_t{call.even} << 30 |
         uint64_t{call.on_device} << 31 |
         static_cast<uint64_t>(static_cast<uint32_t>(root)) << 32;
}

// The bytes that this rank sends.
uint64_t BytesOf(const Collective& call) {
  if (call.sends.empty()) return call.bytes;
  uint64_t bytes = 0;
  for (const ConstBytes& entry : call.sends) bytes += entry.size();
  return bytes;
}

void UnpackKind(uint64_t word, FlightEntry& entry) {
  entry.op = static_cast<CollectiveOp>(word & 255);
  const uint64_t dtype = word >> 8 & 255;
  if (dtype != kNone) entry.dtype = static_cast<DType>(dtype);
  const uint64_t reduction = word >> 16 & 255;
  if (reduction != kNone) entry.reduction = static_cast<ReduceOp>(reduction);
  entry.path = static_cast<OperationPath>(word >> 24 & 63);
  entry.is_even = (word >> 30 & 1) != 0;
  entry.on_device = (word >> 31 & 1) != 0;
  entry.root = static_cast<int32_t>(word >> 32);
}

size_t EntriesOfKnob() {
  const absl::StatusOr<std::optional<int64_t>> wanted =
      GetIntKnob(Knob::kFlightEntries, 1, kMostEntries);
  if (!wanted.ok()) {
    SHERD_LOG(kError) << wanted.status().message() << "; " << kDefaultEntries
                      << " is used";
    return kDefaultEntries;
  }
  return wanted->has_value() ? static_cast<size_t>(**wanted) : kDefaultEntries;
}

}  // namespace

absl::string_view Name(FlightState state) {
  switch (state) {
    case FlightState::kEnqueued:
      return "enqueued";
    case FlightState::kStarted:
      return "started";
    case FlightState::kCompleted:
      return "completed";
    case FlightState::kFailed:
      return "failed";
  }
  return "unknown";
}

// A sequence lock. Its writer has the slot by compare-and-swap; words are
// stored with release and loaded with acquire order, so that a reader that saw
// a word of a later owner also sees that owner's control word. The holder of
// the ticket writes `started` and the fields after it while the operation is
// outstanding, and readers ignore the fields that End writes until the
// operation has ended.
struct alignas(64) FlightRecorder::Slot {
  enum Word {
    kGroup,
    kKind,
    kSequence,
    kBytes,
    kTag,
    kDeadline,
    kEnqueued,
    kStarted,  // 0: not yet
    kEndTime,
    kStatus,
    kNumWords
  };

  std::atomic<uint64_t> control{0};
  std::array<std::atomic<uint64_t>, kNumWords> words = {};

  void Set(Word word, uint64_t value) {
    words[word].store(value, std::memory_order_release);
  }
  uint64_t Get(Word word) const {
    return words[word].load(std::memory_order_acquire);
  }
};

GroupTag::GroupTag(FlightGroupInfo info)
    : GroupTag(FlightRecorder::Global(), std::move(info)) {}

GroupTag::GroupTag(FlightRecorder& recorder, FlightGroupInfo info)
    : recorder_(recorder),
      info_(std::move(info)),
      id_(recorder.Register(*this, info_)) {}

GroupTag::~GroupTag() { recorder_.Retire(*this); }

void GroupTag::SetFailedRank(int world_rank) {
  absl::MutexLock lock(&recorder_.groups_mutex_);
  std::optional<int>& failed = recorder_.groups_.at(id_).failed_rank;
  if (!failed) failed = world_rank;
}

void GroupTag::SetCalls(std::function<std::vector<FlightCall>()> calls) {
  absl::MutexLock lock(&recorder_.groups_mutex_);
  recorder_.groups_.at(id_).calls = std::move(calls);
}

GroupCounters GroupTag::counters() const {
  return counters_.Read(recorder_.clock().Measure());
}

FlightRecorder& FlightRecorder::Global() {
  // Leaked: operations may end while static objects are destroyed.
  static auto* const recorder = new FlightRecorder(EntriesOfKnob());
  return *recorder;
}

FlightRecorder::FlightRecorder(size_t capacity)
    : mask_(std::bit_ceil(std::max<size_t>(capacity, 1)) - 1),
      slots_(std::make_unique<Slot[]>(mask_ + 1)) {}

FlightRecorder::~FlightRecorder() = default;

// Ids are unique because a slot only ever gets greater ones, each of which
// belongs to one slot. next_ is a hint and needs no addition in one step: if
// two threads have the same number, one gets the slot and the other continues;
// if a preempted thread sets next_ back, others continue from there.
FlightRecorder::Slot* FlightRecorder::Claim(uint64_t& id) {
  id = next_.load(std::memory_order_relaxed);
  for (int i = 0; i < kMostSkipped; ++i, ++id) {
    Slot& slot = slots_[id & mask_];
    uint64_t control = slot.control.load(std::memory_order_relaxed);
    const bool is_free = control == 0 || (control & kPhaseMask) == kEnded;
    if (!is_free || control >> 2 >= id) continue;
    if (slot.control.compare_exchange_strong(control, id << 2 | kWriting,
                                             std::memory_order_acq_rel,
                                             std::memory_order_relaxed)) {
      next_.store(id + 1, std::memory_order_relaxed);
      return &slot;
    }
  }
  next_.store(id, std::memory_order_relaxed);
  return nullptr;
}

FlightTicket FlightRecorder::Begin(const GroupTag& group,
                                   const Collective& call, OperationPath path,
                                   bool started) {
  FlightTicket ticket = {.group = &group,
                         .op = call.op,
                         .bytes = BytesOf(call),
                         .begun = clock_.Now()};
  Slot* const slot = Claim(ticket.id);
  if (slot == nullptr) [[unlikely]] {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    ticket.id = 0;
    return ticket;
  }
  slot->Set(Slot::kGroup, group.id());
  slot->Set(Slot::kKind, PackKind(call, path));
  slot->Set(Slot::kSequence, call.sequence);
  slot->Set(Slot::kBytes, ticket.bytes);
  slot->Set(Slot::kTag, static_cast<uint64_t>(call.tag));
  slot->Set(Slot::kDeadline,
            static_cast<uint64_t>(ToNanoseconds(call.deadline)));
  const uint64_t now = static_cast<uint64_t>(ticket.begun);
  slot->Set(Slot::kEnqueued, now);
  slot->Set(Slot::kStarted, started ? now : 0);
  slot->control.store(ticket.id << 2 | kOutstanding, std::memory_order_release);
  return ticket;
}

void FlightRecorder::MarkStarted(const FlightTicket& ticket) {
  if (ticket.id == 0) return;
  slots_[ticket.id & mask_].Set(Slot::kStarted,
                                static_cast<uint64_t>(clock_.Now()));
}

void FlightRecorder::End(const FlightTicket& ticket, absl::StatusCode code) {
  if (ticket.group == nullptr) return;
  const int64_t now = clock_.Now();
  ticket.group->counters_.Add(ticket.op, ticket.bytes, now - ticket.begun,
                              code == absl::StatusCode::kOk);
  if (ticket.id == 0) return;
  Slot& slot = slots_[ticket.id & mask_];
  slot.Set(Slot::kEndTime, static_cast<uint64_t>(now));
  slot.Set(Slot::kStatus, static_cast<uint64_t>(code));
  slot.control.store(ticket.id << 2 | kEnded, std::memory_order_release);
}

// Times of `entry` are ticks afterwards.
bool FlightRecorder::ReadSlot(const Slot& slot, FlightEntry& entry) const {
  const uint64_t control = slot.control.load(std::memory_order_acquire);
  const uint64_t phase = control & kPhaseMask;
  if (phase == kWriting) return false;
  std::array<uint64_t, Slot::kNumWords> words;
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = slot.Get(static_cast<Slot::Word>(i));
  }
  if (slot.control.load(std::memory_order_relaxed) != control) return false;
  entry = FlightEntry();
  entry.id = control >> 2;
  entry.group = static_cast<uint32_t>(words[Slot::kGroup]);
  UnpackKind(words[Slot::kKind], entry);
  entry.sequence = words[Slot::kSequence];
  entry.bytes = words[Slot::kBytes];
  entry.tag = static_cast<int64_t>(words[Slot::kTag]);
  const int64_t deadline = static_cast<int64_t>(words[Slot::kDeadline]);
  if (deadline != kNever) entry.deadline = deadline;
  entry.enqueued = static_cast<int64_t>(words[Slot::kEnqueued]);
  if (words[Slot::kStarted] != 0) {
    entry.started = static_cast<int64_t>(words[Slot::kStarted]);
    entry.state = FlightState::kStarted;
  }
  if (phase == kEnded) {
    entry.ended = static_cast<int64_t>(words[Slot::kEndTime]);
    entry.status = static_cast<absl::StatusCode>(words[Slot::kStatus]);
    entry.state = entry.status == absl::StatusCode::kOk
                      ? FlightState::kCompleted
                      : FlightState::kFailed;
  }
  return true;
}

FlightSnapshot FlightRecorder::Snapshot() const {
  FlightSnapshot snapshot;
  snapshot.capacity = capacity();
  for (size_t i = 0; i < capacity(); ++i) {
    FlightEntry entry;
    // Again if it changed under the reader's eyes; then it is being replaced.
    if (ReadSlot(slots_[i], entry) || ReadSlot(slots_[i], entry)) {
      snapshot.entries.push_back(entry);
    }
  }
  std::sort(
      snapshot.entries.begin(), snapshot.entries.end(),
      [](const FlightEntry& a, const FlightEntry& b) { return a.id < b.id; });
  const FlightClock::Scale scale = clock_.Measure();
  for (FlightEntry& entry : snapshot.entries) {
    entry.enqueued = scale.ToMonotonic(entry.enqueued);
    if (entry.started) entry.started = scale.ToMonotonic(*entry.started);
    if (entry.ended) entry.ended = scale.ToMonotonic(*entry.ended);
  }
  snapshot.monotonic_ns = FlightClock::MonotonicNow();
  snapshot.wall_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
  snapshot.clock = clock_.source();
  snapshot.dropped = dropped_.load(std::memory_order_relaxed);
  absl::MutexLock lock(&groups_mutex_);
  for (const auto& [id, group] : groups_) {
    FlightGroup& record = snapshot.groups.emplace_back();
    record.id = id;
    record.instance = group.instance;
    record.info = group.info;
    record.alive = group.tag != nullptr;
    record.failed_rank = group.failed_rank;
    if (record.alive) record.counters = group.tag->counters_.Read(scale);
    if (group.calls) record.calls = group.calls();
  }
  return snapshot;
}

void FlightRecorder::VisitOutstanding(
    absl::FunctionRef<void(const FlightEntry&)> visit) const {
  for (size_t i = 0; i < capacity(); ++i) {
    const uint64_t control = slots_[i].control.load(std::memory_order_relaxed);
    if ((control & kPhaseMask) != kOutstanding) continue;
    FlightEntry entry;
    if (ReadSlot(slots_[i], entry) && entry.outstanding()) visit(entry);
  }
}

std::vector<int> FlightRecorder::LiveWorldRanks() const {
  std::set<int> ranks;
  absl::MutexLock lock(&groups_mutex_);
  for (const auto& [id, group] : groups_) {
    if (group.tag != nullptr) ranks.insert(group.info.world_rank());
  }
  return std::vector<int>(ranks.begin(), ranks.end());
}

uint32_t FlightRecorder::Register(const GroupTag& tag,
                                  const FlightGroupInfo& info) {
  SHERD_CHECK(info.rank >= 0 && info.rank < info.size);
  SHERD_CHECK(info.world_ranks.empty() ||
              info.world_ranks.size() == static_cast<size_t>(info.size));
  absl::MutexLock lock(&groups_mutex_);
  Instances& instances = instances_[{info.name, info.world_rank()}];
  ++instances.known;
  groups_[++last_group_] = {&tag, info, instances.next++};
  return last_group_;
}

void FlightRecorder::Retire(const GroupTag& tag) {
  for (size_t i = 0; i < capacity(); ++i) {
    Slot& slot = slots_[i];
    const uint64_t control = slot.control.load(std::memory_order_acquire);
    if ((control & kPhaseMask) != kOutstanding) continue;
    if (slot.Get(Slot::kGroup) != tag.id()) continue;
    // No other thread has the ticket any more, and none overwrites an operation
    // that has not ended.
    FlightTicket ticket;
    ticket.id = control >> 2;
    ticket.group = &tag;
    ticket.op = static_cast<CollectiveOp>(slot.Get(Slot::kKind) & 255);
    ticket.bytes = slot.Get(Slot::kBytes);
    ticket.begun = static_cast<int64_t>(slot.Get(Slot::kEnqueued));
    End(ticket, absl::StatusCode::kCancelled);
  }
  absl::MutexLock lock(&groups_mutex_);
  groups_.at(tag.id()).tag = nullptr;
  groups_.at(tag.id()).calls = nullptr;
  retired_.push_back(tag.id());
  if (retired_.size() <= capacity()) return;
  const auto oldest = groups_.find(retired_.front());
  const auto instances = instances_.find(
      {oldest->second.info.name, oldest->second.info.world_rank()});
  if (--instances->second.known == 0) instances_.erase(instances);
  groups_.erase(oldest);
  retired_.pop_front();
}

}  // namespace sherd::internal
