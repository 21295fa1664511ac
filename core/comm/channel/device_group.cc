#include "sherd/core/comm/channel/device_group.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "sherd/core/base/keep_forever.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/polling_pause.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/channel/scoped_device.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/storage.h"

namespace sherd::internal {
namespace {

// The group in whose batch the calling thread is. To the vendor's library a
// batch belongs to the thread: calls on another group would run only at its
// end, and be taken for completed before.
thread_local const DeviceGroup* batch_of_thread = nullptr;

// Device memory that a barrier may overwrite.
constexpr size_t kBarrierBytes = 256;
// How long an operation must be the first in flight before the group checks for
// a dead rank, and the interval of further checks.
constexpr auto kStuck = std::chrono::milliseconds(50);
constexpr auto kStillStuck = std::chrono::milliseconds(200);

// Between two looks at a device.
PollingPause MakePause() { return PollingPause(50, absl::Microseconds(50)); }

// Names what this thread does, for profilers.
class ScopedRange {
 public:
  ScopedRange(DeviceRuntime& runtime, CollectiveOp op) : runtime_(runtime) {
    runtime_.PushRange(RangeName(op));
  }
  ~ScopedRange() { runtime_.PopRange(); }
  ScopedRange(const ScopedRange&) = delete;
  ScopedRange& operator=(const ScopedRange&) = delete;

 private:
  static const char* RangeName(CollectiveOp op) {
    static const auto* const names = [] {
      auto* const made = new std::vector<std::string>;
      for (int i = 0; i < kNumCollectiveOps; ++i) {
        made->push_back(
            absl::StrCat("sherd ", Name(static_cast<CollectiveOp>(i))));
      }
      return made;
    }();
    return (*names)[static_cast<size_t>(op)].c_str();
  }

  DeviceRuntime& runtime_;
};

}  // namespace

// An asynchronous operation on a device.
class DeviceWork final : public WorkState {
 public:
  // `captured`: part of a graph, whose runs are not observed; its event must
  // not be queried.
  DeviceWork(std::shared_ptr<DeviceGroup> group, DeviceEvent event,
             bool captured)
      : group_(std::move(group)),
        event_(event),
        captured_(captured),
        ended_(captured) {}

  ~DeviceWork() override {
    // An event whose record is still pending in the stream cannot be reused.
    if (done().HasBeenNotified() && status().ok()) {
      group_->runtime().ReturnEvent(group_->device().index, event_);
    }
  }

  DeviceEvent event() const { return event_; }

  void Keep(std::shared_ptr<const void> kept) override {
    {
      absl::MutexLock lock(&mutex_);
      if (!ended_) {
        kept_.push_back(std::move(kept));
        return;
      }
    }
    Acknowledge();
  }
  // The streams have finished with the operation, whether its end has been
  // reported or not. Returns whether the Work keeps an object.
  bool LetGo() {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    return !kept_.empty();
  }
  // Returns the objects to release now. A failure may have been reported before
  // the streams have finished with the buffers.
  std::vector<std::shared_ptr<const void>> TakeKept() {
    absl::MutexLock lock(&mutex_);
    if (!ended_) return {};
    return std::exchange(kept_, {});
  }

  // Lets the vendor's library know that this thread has observed the end and
  // may free buffers.
  void Acknowledge() {
    if (!captured_) group_->runtime().QueryEvent(event_).IgnoreError();
  }

  bool IsDone() override {
    if (!done().HasBeenNotified()) group_->Progress();
    return done().HasBeenNotified();
  }

  const absl::Status& Await() override {
    for (PollingPause pause = MakePause(); !done().HasBeenNotified(); pause())
      group_->Progress();
    Acknowledge();
    TakeKept();
    group_->Reclaim();
    return status();
  }

  absl::Status AwaitOnStream() override {
    if (done().HasBeenNotified() && !status().ok()) return status();
    return group_->runtime().WaitEvent(CurrentStream(group_->device()), event_);
  }

 private:
  const std::shared_ptr<DeviceGroup> group_;
  const DeviceEvent event_;
  const bool captured_;
  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<const void>> kept_ ABSL_GUARDED_BY(mutex_);
};

DeviceGroup::Pending& DeviceGroup::Lane::Push() {
  if (count == ring.size()) {
    std::vector<Pending> larger(std::max<size_t>(64, 2 * count));
    for (size_t i = 0; i < count; ++i) larger[i] = std::move(At(i));
    ring = std::move(larger);
    head = 0;
  }
  Pending& pushed = At(count++);
  pushed = Pending();
  return pushed;
}

void DeviceGroup::Lane::Pop() {
  ring[head].work = nullptr;
  head = (head + 1) % ring.size();
  --count;
}

absl::StatusOr<std::shared_ptr<DeviceGroup>> DeviceGroup::Create(
    DeviceGroupOptions options, Owner& owner, FlightRecorder& recorder) {
  std::shared_ptr<DeviceGroup> group(
      new DeviceGroup(std::move(options), owner, recorder));
  if (absl::Status status = group->Open(); !status.ok()) {
    group->options_.communicator.reset();
    return status;
  }
  DeviceWatch::Global().Add(group);
  return group;
}

DeviceGroup::DeviceGroup(DeviceGroupOptions options, Owner& owner,
                         FlightRecorder& recorder)
    : options_(std::move(options)),
      owner_{owner},
      recorder_(recorder),
      emulation_(*options_.runtime, options_.native, options_.rank,
                 options_.size) {}

DeviceGroup::~DeviceGroup() {
  // Close or Abandon have been here, or it never was anything.
  KeepForever(std::shared_ptr<Communicator>(std::move(options_.communicator)));
}

absl::Status DeviceGroup::Open() {
  SHERD_ASSIGN_OR_RETURN(resources_.side,
                         runtime().CreateStream(device().index));
  SHERD_ASSIGN_OR_RETURN(resources_.fork, runtime().TakeEvent(device().index));
  SHERD_ASSIGN_OR_RETURN(Allocator* const allocator,
                         runtime().MemoryOf(device().index));
  {
    const ScopedStream current(resources_.side);
    SHERD_ASSIGN_OR_RETURN(resources_.barrier,
                           Storage::Allocate(kBarrierBytes, *allocator));
  }
  return runtime().Synchronize(resources_.side,
                               Deadline::After(absl::Seconds(60)));
}

absl::Status DeviceGroup::Admit(const Collective& desc) {
  SHERD_RETURN_IF_ERROR(RefuseInBatchOfAnother());
  const CollectiveOp op = MovesNothing(desc) ? CollectiveOp::kBarrier : desc.op;
  if (Emulation::PathOf(options_.native, op, desc.dtype, desc.reduction) !=
          OperationPath::kEmulated ||
      options_.size == 1) {
    return absl::OkStatus();
  }
  bool capturing = order_.batch.capturing;
  if (!IsInBatch()) {
    SHERD_ASSIGN_OR_RETURN(capturing,
                           runtime().IsCapturing(CurrentStream(device())));
    if (!capturing) return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      "the backend has no ", Name(desc.op),
      " like this; the host makes it of several operations, which cannot be "
      "part of a ",
      capturing ? "graph" : "batch"));
}

absl::StatusOr<DeviceGroup::LaunchSite> DeviceGroup::Enter(
    bool on_side_stream) {
  LaunchSite site;
  const DeviceStream current = CurrentStream(device());
  SHERD_ASSIGN_OR_RETURN(site.capturing, runtime().IsCapturing(current));
  site.stream = on_side_stream ? resources_.side : current;
  if (on_side_stream) {
    SHERD_RETURN_IF_ERROR(runtime().RecordEvent(resources_.fork, current));
    SHERD_RETURN_IF_ERROR(
        runtime().WaitEvent(resources_.side, resources_.fork));
    // Then it waits for the same work as this one.
    if (order_.last_stream == current.handle) return site;
  }
  SHERD_RETURN_IF_ERROR(OrderBehindLast(site));
  return site;
}

absl::Status DeviceGroup::OrderBehindLast(const LaunchSite& site) {
  if (site.capturing) {
    // Only work in the same graph can be waited for.
    if (order_.captured == nullptr ||
        site.stream.handle == resources_.side.handle) {
      return absl::OkStatus();
    }
    SHERD_ASSIGN_OR_RETURN(const bool in_graph,
                           runtime().IsCapturing(resources_.side));
    if (in_graph)
      return runtime().WaitEvent(site.stream, order_.captured->event());
    order_.captured = nullptr;
    return absl::OkStatus();
  }
  if (!order_.last_stream || *order_.last_stream == site.stream.handle) {
    return absl::OkStatus();
  }
  absl::MutexLock lock(&in_flight_.mutex);
  Lane& lane = LaneOf(*order_.last_stream);
  if (lane.count > 0) {
    const DeviceEvent event = lane.At(lane.count - 1).event;
    if (event != nullptr) return runtime().WaitEvent(site.stream, event);
  } else if (lane.last_work != nullptr) {
    return runtime().WaitEvent(site.stream, lane.last_work->event());
  } else if (lane.last_event != nullptr) {
    return runtime().WaitEvent(site.stream, lane.last_event);
  }
  return absl::OkStatus();
}

absl::Status DeviceGroup::Queue(const Collective& desc,
                                const FlightTicket& ticket) {
  const ScopedRange range(runtime(), desc.op);
  const ScopedDevice current(runtime(), device());
  SHERD_RETURN_IF_ERROR(current.status());
  if (IsInBatch()) {
    Track(order_.batch, desc, ticket, nullptr);
    const absl::Status status = Launch(desc, order_.batch.stream);
    if (status.ok()) {
      ++order_.batch_calls;
      if (order_.batch.capturing) recorder_.End(ticket, absl::StatusCode::kOk);
    } else if (!order_.batch.capturing) {
      Untrack(1);
    }
    return status;
  }
  SHERD_ASSIGN_OR_RETURN(const LaunchSite site,
                         Enter(/*on_side_stream=*/false));
  return QueueAt(site, desc, ticket, nullptr);
}

absl::StatusOr<std::shared_ptr<WorkState>> DeviceGroup::EnqueueOnSideStream(
    const Collective& desc, const FlightTicket& ticket) {
  const ScopedRange range(runtime(), desc.op);
  const ScopedDevice current(runtime(), device());
  SHERD_RETURN_IF_ERROR(current.status());
  SHERD_ASSIGN_OR_RETURN(const LaunchSite site, Enter(/*on_side_stream=*/true));
  SHERD_ASSIGN_OR_RETURN(const DeviceEvent event,
                         runtime().TakeEvent(device().index));
  auto work =
      std::make_shared<DeviceWork>(shared_from_this(), event, site.capturing);
  SHERD_RETURN_IF_ERROR(QueueAt(site, desc, ticket, work));
  return work;
}

absl::Status DeviceGroup::QueueAt(const LaunchSite& site,
                                  const Collective& desc,
                                  const FlightTicket& ticket,
                                  std::shared_ptr<DeviceWork> work) {
  Track(site, desc, ticket, work);
  absl::Status status = Launch(desc, site.stream);
  if (status.ok()) status = MarkEnd(site, work.get());
  if (!status.ok()) {
    if (!site.capturing) Untrack(1);
    return status;
  }
  if (!site.capturing) {
    order_.last_stream = site.stream.handle;
    return status;
  }
  // The runs of a graph are not observed.
  recorder_.End(ticket, absl::StatusCode::kOk);
  if (work != nullptr) {
    work->Finish(absl::OkStatus());
    order_.captured = std::move(work);
  }
  return status;
}

// Before it is posted, so that a post that does not return is seen to.
void DeviceGroup::Track(const LaunchSite& site, const Collective& desc,
                        const FlightTicket& ticket,
                        std::shared_ptr<DeviceWork> work) {
  if (site.capturing) return;
  {
    absl::MutexLock lock(&in_flight_.mutex);
    Pending& pending = LaneOf(site.stream.handle).Push();
    pending.number = ++in_flight_.queued;
    pending.ticket = ticket;
    pending.op = desc.op;
    pending.root = desc.root;
    pending.sequence = desc.sequence;
    pending.deadline = desc.deadline;
    pending.work = std::move(work);
    in_flight_.posting = site.stream.handle;
  }
  DeviceWatch::Global().Wake();
}

// The last `count`, which could not be posted; the caller ends their tickets.
std::vector<FlightTicket> DeviceGroup::Untrack(size_t count) {
  std::vector<FlightTicket> tickets;
  absl::MutexLock lock(&in_flight_.mutex);
  Lane& lane = LaneOf(in_flight_.posting);
  for (; count > 0 && lane.count > 0; --count) {
    Pending& last = lane.At(lane.count - 1);
    tickets.push_back(last.ticket);
    last.work = nullptr;
    --lane.count;
  }
  return tickets;
}

absl::Status DeviceGroup::MarkEnd(const LaunchSite& site, DeviceWork* work) {
  if (work != nullptr) {
    SHERD_RETURN_IF_ERROR(runtime().RecordEvent(work->event(), site.stream));
    if (site.capturing) return absl::OkStatus();
    absl::MutexLock lock(&in_flight_.mutex);
    Lane& lane = LaneOf(site.stream.handle);
    lane.At(lane.count - 1).event = work->event();
    return absl::OkStatus();
  }
  if (site.capturing) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(const DeviceEvent event,
                         runtime().TakeEvent(device().index));
  if (absl::Status status = runtime().RecordEvent(event, site.stream);
      !status.ok()) {
    runtime().ReturnEvent(device().index, event);
    return status;
  }
  absl::MutexLock lock(&in_flight_.mutex);
  Lane& lane = LaneOf(site.stream.handle);
  lane.At(lane.count - 1).event = event;
  return absl::OkStatus();
}

absl::Status DeviceGroup::Launch(const Collective& desc,
                                 const DeviceStream& stream) {
  SHERD_RETURN_IF_ERROR(Copy(OwnBlock(desc, options_.rank), stream));
  const bool alone = options_.size == 1;
  if (alone && (HasOwnBlock(desc.op) || MovesNothing(desc))) {
    return absl::OkStatus();
  }
  if (MovesNothing(desc)) return Launch(InPlaceOfNothing(desc), stream);
  if (Emulation::PathOf(options_.native, desc.op, desc.dtype, desc.reduction) ==
      OperationPath::kNative) {
    return Post(desc, stream);
  }
  if (alone) return Copy(LoneReduction(desc), stream);
  return emulation_.Run(
      desc, stream, [&](const Collective& part) { return Post(part, stream); });
}

absl::Status DeviceGroup::Post(Collective desc, const DeviceStream& stream) {
  desc.on_device = true;
  desc.stream = stream.handle;
  if (desc.op == CollectiveOp::kBarrier) {
    desc.out = resources_.barrier->data();
    desc.bytes = kBarrierBytes;
  }
  CollectiveRequest request;
  return options_.communicator->Post(desc, request).status();
}

absl::Status DeviceGroup::Copy(const BlockCopy& copy,
                               const DeviceStream& stream) {
  if (!copy.IsNeeded()) return absl::OkStatus();
  return runtime().CopyBytes(stream, copy.to.data(), copy.from.data(),
                             copy.from.size());
}

absl::Status DeviceGroup::BeginBatch() {
  SHERD_RETURN_IF_ERROR(RefuseInBatchOfAnother());
  const ScopedDevice current(runtime(), device());
  SHERD_RETURN_IF_ERROR(current.status());
  SHERD_ASSIGN_OR_RETURN(order_.batch, Enter(/*on_side_stream=*/false));
  SHERD_RETURN_IF_ERROR(options_.communicator->BeginBatch());
  order_.batch_calls = 0;
  order_.batch_thread.store(std::this_thread::get_id(),
                            std::memory_order_relaxed);
  batch_of_thread = this;
  return absl::OkStatus();
}

absl::Status DeviceGroup::EndBatch(bool keep) {
  batch_of_thread = nullptr;
  order_.batch_thread.store(std::thread::id(), std::memory_order_relaxed);
  const ScopedDevice current(runtime(), device());
  absl::Status status = options_.communicator->EndBatch();
  status.Update(current.status());
  if (status.ok() && keep && order_.batch_calls > 0) {
    status = MarkEnd(order_.batch, nullptr);
    if (status.ok() && !order_.batch.capturing)
      order_.last_stream = order_.batch.stream.handle;
  }
  if ((!status.ok() || !keep) && !order_.batch.capturing) {
    for (const FlightTicket& ticket : Untrack(order_.batch_calls)) {
      owner_.callbacks.Failed(ticket,
                              status.ok() ? absl::CancelledError() : status);
    }
  }
  return status;
}

DeviceGroup::Lane& DeviceGroup::LaneOf(void* stream) {
  constexpr size_t kMaxLanes = 8;
  for (const std::unique_ptr<Lane>& lane : in_flight_.lanes) {
    if (lane->stream == stream) return *lane;
  }
  if (in_flight_.lanes.size() >= kMaxLanes) {
    for (const std::unique_ptr<Lane>& lane : in_flight_.lanes) {
      if (lane->count > 0 || lane->stream == resources_.side.handle) continue;
      if (lane->last_event != nullptr) {
        runtime().ReturnEvent(device().index, lane->last_event);
        lane->last_event = nullptr;
      }
      lane->last_work = nullptr;
      lane->stream = stream;
      return *lane;
    }
  }
  in_flight_.lanes.push_back(std::make_unique<Lane>());
  in_flight_.lanes.back()->stream = stream;
  return *in_flight_.lanes.back();
}

void DeviceGroup::Reclaim() {
  if (!in_flight_.has_released.load(std::memory_order_acquire)) return;
  std::vector<std::shared_ptr<DeviceWork>> released;
  {
    absl::MutexLock lock(&in_flight_.mutex);
    released.swap(in_flight_.released);
    in_flight_.has_released.store(false, std::memory_order_release);
  }
  for (const std::shared_ptr<DeviceWork>& work : released) {
    work->Acknowledge();
    work->TakeKept();
  }
}

void DeviceGroup::End(Lane& lane, Completions& completed) {
  Pending& ended = lane.At(0);
  if (ended.work != nullptr) {
    if (ended.work->LetGo()) {
      in_flight_.released.push_back(ended.work);
      in_flight_.has_released.store(true, std::memory_order_release);
    }
    lane.last_work = ended.work;
  } else if (ended.event != nullptr) {
    if (lane.last_event != nullptr) {
      runtime().ReturnEvent(device().index, lane.last_event);
    }
    lane.last_event = ended.event;
    lane.last_work = nullptr;
  }
  if (!ended.reported) {
    if (ended.work == nullptr && in_flight_.failure.ok()) {
      recorder_.End(ended.ticket, absl::StatusCode::kOk);
    } else {
      completed.push_back({ended.ticket, ended.work});
    }
  }
  lane.Pop();
}

bool DeviceGroup::ProgressOn(Lane& lane, Completions& completed) {
  bool progress = false;
  // The reason for the end is set soon.
  if (in_flight_.aborting && in_flight_.failure.ok()) return false;
  while (lane.count > 0) {
    size_t marked = 0;
    while (marked < lane.count && lane.At(marked).event == nullptr) ++marked;
    if (marked == lane.count) return progress;
    const absl::StatusOr<bool> done =
        runtime().QueryEvent(lane.At(marked).event);
    if (!done.ok()) {
      if (in_flight_.broken.ok()) in_flight_.broken = done.status();
      // Nothing runs any more, so nothing uses the buffers.
      if (in_flight_.failure.ok()) return progress;
    } else if (!*done) {
      return progress;
    }
    for (size_t i = 0; i <= marked; ++i) End(lane, completed);
    progress = true;
  }
  return progress;
}

bool DeviceGroup::Progress(Continue where) {
  Completions completed;
  bool progress = false;
  {
    absl::MutexLock lock(&in_flight_.mutex);
    for (const std::unique_ptr<Lane>& lane : in_flight_.lanes) {
      progress |= ProgressOn(*lane, completed);
    }
  }
  Report(completed, where);
  return progress;
}

void DeviceGroup::Report(const Completions& completed, Continue where) {
  if (completed.empty()) return;
  absl::Status status;
  {
    absl::MutexLock lock(&in_flight_.mutex);
    status = in_flight_.failure;
  }
  {
    // Before any continuation, which may let go of the owner.
    absl::ReaderMutexLock lock(&owner_.mutex);
    for (const Completion& one : completed) {
      if (status.ok() || !owner_.is_there) {
        recorder_.End(one.ticket, status.code());
      } else {
        owner_.callbacks.Failed(one.ticket, status);
      }
    }
  }
  for (const Completion& one : completed) {
    if (one.work == nullptr) continue;
    WorkState::Continuations all = one.work->Complete(status);
    if (all.empty()) continue;
    auto run = [all = std::move(all), status]() mutable {
      for (const WorkState::Continuation& next : all) next(status);
      all.clear();
    };
    if (where == Continue::kInBackground) {
      owner_.callbacks.RunInBackground(std::move(run));
    } else {
      run();
    }
  }
}

std::optional<Collective> DeviceGroup::FirstInFlight(bool& overdue) {
  const Clock::time_point now = Clock::now();
  const Pending* first = nullptr;
  const Pending* late = nullptr;
  absl::MutexLock lock(&in_flight_.mutex);
  for (const std::unique_ptr<Lane>& lane : in_flight_.lanes) {
    for (size_t i = 0; i < lane->count; ++i) {
      const Pending& pending = lane->At(i);
      if (pending.reported) continue;
      if (first == nullptr || pending.number < first->number) first = &pending;
      if (pending.deadline.when() <= now &&
          (late == nullptr || pending.number < late->number)) {
        late = &pending;
      }
    }
  }
  overdue = late != nullptr;
  if (first == nullptr) return std::nullopt;
  const Pending& chosen = overdue ? *late : *first;
  Collective desc;
  desc.op = chosen.op;
  desc.root = chosen.root;
  desc.sequence = chosen.sequence;
  desc.deadline = chosen.deadline;
  desc.on_device = true;
  return desc;
}

absl::Status DeviceGroup::Symptom(const Collective& call, bool overdue) {
  SHERD_RETURN_IF_ERROR(owner_.callbacks.PeerError());
  {
    absl::MutexLock lock(&in_flight_.mutex);
    if (!in_flight_.broken.ok()) return in_flight_.broken;
  }
  {
    absl::MutexLock lock(&connection_.mutex);
    if (options_.communicator != nullptr && !connection_.aborted) {
      SHERD_RETURN_IF_ERROR(options_.communicator->Poll());
    }
  }
  if (overdue) return owner_.callbacks.TimeoutError(call);
  const Clock::time_point now = Clock::now();
  if (watch_.stuck != call.sequence) {
    watch_.stuck = call.sequence;
    watch_.next_look = now + kStuck;
  } else if (now >= watch_.next_look) {
    watch_.next_look = now + kStillStuck;
    return owner_.callbacks.DeadPeer(call);
  }
  return absl::OkStatus();
}

DeviceWatch::Watched::Sight DeviceGroup::Look() {
  const bool progress = Progress(Continue::kInBackground);
  bool overdue = false;
  const std::optional<Collective> call = FirstInFlight(overdue);
  if (!call) {
    if (progress) return Sight::kProgress;
    // No thread may call or wait any more, because of the kept objects.
    if (in_flight_.has_released.load(std::memory_order_acquire) &&
        !in_flight_.reclaiming.exchange(true)) {
      owner_.callbacks.RunInBackground([this] {
        in_flight_.reclaiming.store(false);
        Reclaim();
      });
    }
    return Sight::kNothing;
  }
  if (HasFailed()) {
    if (Clock::now() - watch_.failed_at >= absl::ToChronoNanoseconds(kGrace)) {
      ReportAll(Continue::kInBackground);
    }
    return Sight::kWaiting;
  }
  absl::Status symptom = Symptom(*call, overdue);
  if (symptom.ok()) return progress ? Sight::kProgress : Sight::kWaiting;
  // Operations that completed before are reported as successful.
  Progress(Continue::kInBackground);
  absl::Status failure = owner_.callbacks.Fail(*call, std::move(symptom));
  watch_.failed_at = Clock::now();
  absl::MutexLock lock(&in_flight_.mutex);
  in_flight_.failure = std::move(failure);
  return Sight::kProgress;
}

bool DeviceGroup::HasFailed() {
  absl::MutexLock lock(&in_flight_.mutex);
  return !in_flight_.failure.ok();
}

void DeviceGroup::ReportAll(Continue where) {
  Completions completed;
  {
    absl::MutexLock lock(&in_flight_.mutex);
    for (const std::unique_ptr<Lane>& lane : in_flight_.lanes) {
      // The operation being posted reports to its caller.
      size_t posted = lane->count;
      while (posted > 0 && lane->At(posted - 1).event == nullptr) --posted;
      for (size_t i = 0; i < posted; ++i) {
        Pending& pending = lane->At(i);
        if (pending.reported) continue;
        pending.reported = true;
        completed.push_back({pending.ticket, pending.work});
      }
    }
    if (!completed.empty() && in_flight_.failure.ok()) {
      in_flight_.failure = absl::CancelledError(
          "the group ended while the operation was under way: wait for it "
          "before, by its Work or by Synchronize");
    }
  }
  Report(completed, where);
}

void DeviceGroup::Disown() {
  absl::MutexLock lock(&owner_.mutex);
  owner_.is_there = false;
}

bool DeviceGroup::IsInFlight(uint64_t last) {
  absl::MutexLock lock(&in_flight_.mutex);
  for (const std::unique_ptr<Lane>& lane : in_flight_.lanes) {
    for (size_t i = 0; i < lane->count; ++i) {
      const Pending& pending = lane->At(i);
      if (pending.number <= last && !pending.reported) return true;
    }
  }
  return false;
}

absl::Status DeviceGroup::RefuseInBatch() const {
  if (!IsInBatch()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "called within a batch of the group, which it would wait for");
}

absl::Status DeviceGroup::RefuseInBatchOfAnother() const {
  if (batch_of_thread == nullptr || batch_of_thread == this) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      "called within a batch of another group, at whose end it would run");
}

absl::Status DeviceGroup::Synchronize() {
  SHERD_RETURN_IF_ERROR(RefuseInBatch());
  if (abandoned_.load()) return absl::OkStatus();
  uint64_t last;
  {
    absl::MutexLock lock(&in_flight_.mutex);
    last = in_flight_.queued;
  }
  for (PollingPause pause = MakePause(); IsInFlight(last); pause()) {
    Progress();
  }
  Reclaim();
  absl::MutexLock lock(&in_flight_.mutex);
  // Lets the vendor's library know that this thread has observed the end.
  absl::Status known;
  for (const std::unique_ptr<Lane>& lane : in_flight_.lanes) {
    const DeviceEvent event = lane->last_work != nullptr
                                  ? lane->last_work->event()
                                  : lane->last_event;
    if (event != nullptr) known.Update(runtime().QueryEvent(event).status());
  }
  return in_flight_.failure.ok() ? known : in_flight_.failure;
}

absl::StatusOr<std::shared_ptr<const void>> DeviceGroup::Register(
    MutableBytes buffer) {
  SHERD_RETURN_IF_ERROR(RefuseInBatch());
  absl::MutexLock lock(&call_mutex_);
  const Registered key = {buffer.data(), buffer.size()};
  std::weak_ptr<const void>& known = registrations_.shared[key];
  if (std::shared_ptr<const void> shared = known.lock()) return shared;
  if (options_.communicator == nullptr) {
    return absl::FailedPreconditionError("the group was destroyed");
  }
  const ScopedDevice current(runtime(), device());
  SHERD_RETURN_IF_ERROR(current.status());
  SHERD_ASSIGN_OR_RETURN(void* const handle,
                         options_.communicator->Register(buffer));
  if (handle != nullptr) registrations_.handles.insert(handle);
  std::shared_ptr<const void> shared(
      buffer.data(), [self = shared_from_this(), key, handle](const void*) {
        self->Deregister(key, handle);
      });
  known = shared;
  return shared;
}

void DeviceGroup::Deregister(const Registered& buffer, void* handle) {
  std::optional<absl::MutexLock> guard;
  if (!IsInBatch()) guard.emplace(&call_mutex_);
  // Another thread may have registered it anew.
  const auto known = registrations_.shared.find(buffer);
  if (known != registrations_.shared.end() && known->second.expired()) {
    registrations_.shared.erase(known);
  }
  const auto it = registrations_.handles.find(handle);
  if (it == registrations_.handles.end() || options_.communicator == nullptr)
    return;
  registrations_.handles.erase(it);
  const ScopedDevice current(runtime(), device());
  options_.communicator->Deregister(handle);
}

absl::StatusOr<std::unique_ptr<Communicator>> DeviceGroup::Split(
    const CommunicatorOptions& options, int color, int key) {
  SHERD_RETURN_IF_ERROR(RefuseInBatch());
  absl::MutexLock lock(&call_mutex_);
  if (options_.communicator == nullptr) {
    return absl::FailedPreconditionError("the group was destroyed");
  }
  const ScopedDevice current(runtime(), device());
  SHERD_RETURN_IF_ERROR(current.status());
  return options_.communicator->Split(options, color, key);
}

absl::StatusOr<std::unique_ptr<Communicator>> DeviceGroup::Shrink(
    const CommunicatorOptions& options, absl::Span<const int> excluded) {
  SHERD_RETURN_IF_ERROR(RefuseInBatch());
  absl::MutexLock lock(&call_mutex_);
  if (options_.communicator == nullptr) {
    return absl::FailedPreconditionError("the group was destroyed");
  }
  const ScopedDevice current(runtime(), device());
  SHERD_RETURN_IF_ERROR(current.status());
  return options_.communicator->Shrink(options, excluded);
}

void DeviceGroup::Abort() {
  {
    // Operations that end from here on may have ended because of the abort.
    absl::MutexLock lock(&in_flight_.mutex);
    in_flight_.aborting = true;
  }
  absl::MutexLock lock(&connection_.mutex);
  connection_.aborted = true;
  if (options_.communicator != nullptr) options_.communicator->Abort();
}

void DeviceGroup::Close(absl::FunctionRef<bool()> all_leave,
                        Deadline deadline) {
  if (abandoned_.load()) return;
  DeviceWatch::Global().Remove(this);
  Progress();
  Reclaim();
  if (!CloseCommunicator(all_leave, deadline)) return;
  ReportAll(Continue::kHere);
  Disown();
  GiveBack();
}

bool DeviceGroup::CloseCommunicator(absl::FunctionRef<bool()> all_leave,
                                    Deadline deadline) {
  absl::MutexLock call(&call_mutex_);
  if (options_.communicator == nullptr) return false;
  bool healthy = false;
  {
    absl::MutexLock lock(&in_flight_.mutex);
    healthy = in_flight_.failure.ok() && in_flight_.broken.ok();
  }
  const ScopedDevice current(runtime(), device());
  for (void* const handle : registrations_.handles) {
    options_.communicator->Deregister(handle);
  }
  registrations_.handles.clear();
  if (healthy && all_leave()) {
    const absl::Status status = options_.communicator->Finalize(deadline);
    if (!status.ok()) {
      SHERD_LOG(kWarning) << "a group's communicator on " << device().ToString()
                          << " was not finalized: " << status.message();
    }
  }
  absl::MutexLock lock(&connection_.mutex);
  options_.communicator.reset();
  return true;
}

void DeviceGroup::GiveBack() {
  const ScopedDevice current(runtime(), device());
  absl::MutexLock call(&call_mutex_);
  order_.captured = nullptr;
  resources_.barrier = nullptr;
  absl::MutexLock lock(&in_flight_.mutex);
  bool idle = true;
  for (std::unique_ptr<Lane>& lane : in_flight_.lanes) {
    idle = idle && lane->count == 0;
    if (lane->last_event != nullptr) {
      runtime().ReturnEvent(device().index, lane->last_event);
      lane->last_event = nullptr;
    }
    lane->last_work = nullptr;
    // Operations that still run keep their buffers and events forever.
    if (lane->count > 0) KeepForever(std::shared_ptr<Lane>(std::move(lane)));
  }
  in_flight_.lanes.clear();
  runtime().ReturnEvent(device().index, resources_.fork);
  if (idle) runtime().DestroyStream(resources_.side);
}

void DeviceGroup::Abandon() {
  abandoned_.store(true);
  DeviceWatch::Global().Remove(this);
  {
    absl::MutexLock call(&call_mutex_);
    absl::MutexLock lock(&connection_.mutex);
    KeepForever(
        std::shared_ptr<Communicator>(std::move(options_.communicator)));
  }
  ReportAll(Continue::kHere);
  Disown();
  // Keep everything as it is: a destructor may call the vendor's library.
  KeepForever(shared_from_this());
}

}  // namespace sherd::internal
