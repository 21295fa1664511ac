#include "sherd/testing/emulated_gpu/driver/driver.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/core/base/knobs.h"

namespace sherd::testing {
namespace {

constexpr int kMaxDevices = 16;

constexpr int kContextIsDestroyed = internal::kCudaContextIsDestroyed;
constexpr int kInvalidHandle = internal::kCudaInvalidHandle;
constexpr int kInvalidContext = internal::kCudaInvalidContext;
constexpr int kCaptureUnsupported = internal::kCudaStreamCaptureUnsupported;
constexpr int kCaptureInvalidated = 901;
constexpr int kCaptureMerge = 902;
constexpr int kCaptureIsolation = 905;
constexpr int kCaptureImplicit = internal::kCudaStreamCaptureImplicit;

// Behind an allocation: what begins there was probably meant to be in it.
constexpr uint64_t kNear = 4096;

constexpr int kCaptureGlobal = 0;
constexpr int kCaptureRelaxed = 2;

std::string Range(const MemoryAccess& access) {
  const auto [low, high] = BoundsOf(access);
  return absl::StrCat(access.writes ? "writes " : "reads ", access.bytes,
                      " bytes", access.repeats.empty() ? "" : " a time",
                      " in [0x", absl::Hex(low), ", 0x", absl::Hex(high), ")");
}

// The numbers of the machine's devices that this process sees according to
// CUDA_VISIBLE_DEVICES.
std::vector<int> VisibleDevices() {
  int count = 1;
  if (!absl::SimpleAtoi(GetKnobOr(Knob::kEmulatedGpus, "1"), &count)) count = 1;
  count = std::clamp(count, 0, kMaxDevices);
  std::vector<int> visible;
  const std::optional<std::string> text = GetKnob(Knob::kCudaVisibleDevices);
  if (!text) {
    for (int i = 0; i < count; ++i) visible.push_back(i);
    return visible;
  }
  for (const absl::string_view word : absl::StrSplit(*text, ',')) {
    int number;
    if (!absl::SimpleAtoi(word, &number) || number < 0 || number >= count) {
      break;
    }
    if (std::find(visible.begin(), visible.end(), number) != visible.end()) {
      return {};
    }
    visible.push_back(number);
  }
  return visible;
}

[[noreturn]] void HangForever() {
  for (;;) pause();
}

}  // namespace

Driver& Driver::Get() {
  static auto* const driver = new Driver;
  return *driver;
}

Driver::Driver() {
  for (const int machine_number : VisibleDevices()) {
    auto device = std::make_unique<Device>();
    device->number = static_cast<int>(devices.size());
    device->machine_number = machine_number;
    devices.push_back(std::move(device));
  }
  memory_ = std::make_unique<MemoryTable>(static_cast<int>(devices.size()));
}

// Not a thread_local variable: the memory of those of a library that was loaded
// late is freed by the dynamic linker, which ThreadSanitizer takes for a race.
ThreadState& ThisThread() {
  static const pthread_key_t key = [] {
    pthread_key_t made;
    if (pthread_key_create(&made, [](void* state) {
          delete static_cast<ThreadState*>(state);
        }) != 0) {
      std::abort();
    }
    return made;
  }();
  auto* state = static_cast<ThreadState*>(pthread_getspecific(key));
  if (state == nullptr) {
    state = new ThreadState;
    pthread_setspecific(key, state);
  }
  return *state;
}

ThreadState::~ThreadState() { Driver::Get().Publish(known); }

void Driver::Publish(const Clock& clock) {
  const std::lock_guard<std::mutex> lock(mutex);
  known_to_all_.Join(clock);
}

std::string DescribePlace(const Stream& stream, uint64_t place) {
  return absl::StrCat("no. ", place, " on ",
                      stream.is_default
                          ? std::string("the default stream")
                          : absl::StrCat("stream ", stream.number),
                      " of device ", stream.device);
}

Device* Driver::CurrentDevice() {
  const std::vector<ContextRef>& contexts = ThisThread().contexts;
  if (contexts.empty() || contexts.back().device < 0) return nullptr;
  return devices[contexts.back().device].get();
}

std::pair<size_t, uint64_t> Driver::TakeLane() {
  for (size_t& lane : free_lanes_) {
    // All of it has happened before every thread's current point.
    if (known_to_all_.Of(lane) < lanes_[lane]) continue;
    const size_t taken = lane;
    lane = free_lanes_.back();
    free_lanes_.pop_back();
    return {taken, lanes_[taken]};
  }
  lanes_.push_back(0);
  return {lanes_.size() - 1, 0};
}

StreamRef Driver::NewStream(Device& device, bool is_blocking) {
  std::erase_if(device.streams, [this](const StreamRef& old) {
    const uint64_t last = old->lane_start + old->queued;
    if (!old->is_destroyed || known_to_all_.Of(old->lane) < last) return false;
    free_lanes_.push_back(old->lane);
    return true;
  });
  static std::atomic<uint64_t> number{0};
  auto stream = std::make_shared<Stream>();
  stream->device = device.number;
  stream->number = device.next_stream++;
  stream->is_blocking = is_blocking;
  std::tie(stream->lane, stream->lane_start) = TakeLane();
  stream->worker = std::make_shared<StreamWorker>(++number);
  device.streams.push_back(stream);
  return stream;
}

void Driver::DestroyStream(void* handle) {
  const StreamRef stream = streams.Find(handle);
  if (stream->capture != nullptr) stream->capture->is_valid = false;
  streams.Remove(handle);
  stream->worker->Close();
  stream->is_destroyed = true;
}

int Driver::FindStream(void* handle, StreamRef* stream) {
  const auto special = reinterpret_cast<uintptr_t>(handle);
  if (special > 2) {
    *stream = streams.Find(handle);
    if (*stream != nullptr) return 0;
    if (streams.WasRemoved(handle)) {
      ReportFinding("a stream is used after it was destroyed");
    }
    return kInvalidHandle;
  }
  Device* const device = CurrentDevice();
  if (device == nullptr) return kInvalidContext;
  if (device->retained == 0) return kContextIsDestroyed;
  if (special < 2) {
    *stream = device->default_stream;
    return 0;
  }
  for (const auto& [number, own] : ThisThread().own_streams) {
    if (number == device->number) *stream = own;
  }
  if (*stream == nullptr) {
    *stream = NewStream(*device, /*is_blocking=*/true);
    ThisThread().own_streams.emplace_back(device->number, *stream);
  }
  return 0;
}

int Driver::FindUsableStream(void* handle, StreamRef* stream) {
  const int result = FindStream(handle, stream);
  return result != 0 ? result : devices[(*stream)->device]->broken.load();
}

int Driver::FindEvent(void* handle, EventRef* event) {
  *event = events.Find(handle);
  if (*event != nullptr) return 0;
  if (events.WasRemoved(handle)) {
    ReportFinding("an event is used after it was destroyed");
  }
  return kInvalidHandle;
}

Clock Driver::HostClock() {
  ThreadState& thread = ThisThread();
  if (!thread.is_known) {
    // The thread that started this one may have synchronized with it.
    thread.is_known = true;
    thread.known = known_to_any_;
  }
  thread.known.Join(known_to_all_);
  return thread.known;
}

void Driver::JoinHost(const Clock& clock, bool for_all) {
  HostClock();
  ThisThread().known.Join(clock);
  known_to_any_.Join(clock);
  if (for_all) known_to_all_.Join(clock);
}

void Driver::WaitOnHost(std::unique_lock<std::mutex>& lock,
                        const std::vector<StreamWorker::Place>& places,
                        const Clock& clock) {
  lock.unlock();
  for (const auto& [worker, place] : places) worker->WaitFor(place);
  lock.lock();
  JoinHost(clock, /*for_all=*/true);
}

void Driver::SynchronizeDevice(std::unique_lock<std::mutex>& lock,
                               Device& device) {
  std::vector<StreamWorker::Place> places;
  Clock clock;
  for (const StreamRef& stream : device.streams) {
    places.push_back(stream->tail());
    clock.Join(stream->clock);
  }
  WaitOnHost(lock, places, clock);
}

Capture* Driver::FindImplicitCapture(const Stream& stream) const {
  if (!stream.is_default) return nullptr;
  for (const StreamRef& other : devices[stream.device]->streams) {
    if (other->capture != nullptr && other->is_blocking) {
      return other->capture.get();
    }
  }
  return nullptr;
}

int Driver::CheckImplicitCapture(Stream& stream) {
  Capture* const capture = FindImplicitCapture(stream);
  if (capture == nullptr) return 0;
  capture->is_valid = false;
  return kCaptureImplicit;
}

int Driver::CheckUnsafeCall() {
  const int mode = ThisThread().capture_mode;
  if (mode == kCaptureRelaxed) return 0;
  int result = 0;
  for (const std::shared_ptr<Capture>& capture : captures) {
    const bool is_own = capture->owner == std::this_thread::get_id();
    if ((is_own && capture->mode != kCaptureRelaxed) ||
        (mode == kCaptureGlobal && capture->mode == kCaptureGlobal)) {
      capture->is_valid = false;
      result = kCaptureUnsupported;
    }
  }
  return result;
}

OperationRef Driver::Begin(Stream& stream, const std::string& name,
                           const Clock* order,
                           std::vector<StreamWorker::Place>* after) {
  Device& device = *devices[stream.device];
  for (const StreamRef& other : device.streams) {
    const bool is_awaited = other.get() != &stream && stream.is_blocking &&
                            other->is_blocking &&
                            (stream.is_default || other->is_default);
    if (!is_awaited || other->queued == 0) continue;
    after->push_back(other->tail());
    stream.clock.Join(other->clock);
  }
  if (order != nullptr) {
    stream.clock.Join(*order);
    stream.clock.Join(known_to_all_);
  } else {
    stream.clock.Join(HostClock());
  }
  ++stream.queued;
  auto operation = std::make_shared<OrderedOperation>();
  operation->name =
      absl::StrCat(name, " (", DescribePlace(stream, stream.queued), ")");
  operation->lane = stream.lane;
  operation->place = stream.lane_start + stream.queued;
  lanes_[stream.lane] = operation->place;
  stream.clock.Advance(operation->lane, operation->place);
  operation->clock = stream.clock;
  operation->index = NextIndex();
  operation->runs_at = stream.tail();
  return operation;
}

void Driver::CheckAccess(const OperationRef& operation, const StreamTask& task,
                         int device, const MemoryAccess& access,
                         Verdict* verdict) {
  const auto report = [&](absl::string_view text) {
    ReportFinding(
        absl::StrCat(operation->name, " ", Range(access), ", ", text));
  };
  const auto [low, high] = BoundsOf(access);
  if (low == high) return;
  const AllocationRef allocation = memory_->Find(low);
  if (!access.repeats.empty() &&
      (allocation == nullptr || high - allocation->base > allocation->bytes)) {
    // It may be several allocations at equal distances.
    const auto [count, stride] = access.repeats.front();
    MemoryAccess part = access;
    part.repeats.erase(part.repeats.begin());
    for (uint64_t i = 0; i < count && verdict->may_run; ++i) {
      part.address = static_cast<const char*>(access.address) +
                     static_cast<int64_t>(i) * stride;
      CheckAccess(operation, task, device, part, verdict);
    }
    return;
  }
  if (const std::string problem = Misses(allocation.get(), low, high);
      !problem.empty()) {
    verdict->may_run = false;
    return report(problem);
  }
  if (allocation->freed != nullptr &&
      !HappensBefore(*operation, *allocation->freed)) {
    verdict->may_run = false;
    return report(absl::StrCat("which was freed by ", allocation->freed->name));
  }
  if (!task.is_copy && !IsReachable(device, *allocation)) {
    verdict->may_run = false;
    return report(absl::StrCat("which is memory of device ", allocation->device,
                               " without access for device ", device));
  }
  if (access.writes) verdict->written.push_back(allocation);
  if (allocation->history.size() > 64 && undeclared_ == 0) {
    allocation->history.Forget(known_to_all_);
  }
  const OperationRef other =
      allocation->history.Add(operation, access, undeclared_ == 0);
  if (other != nullptr) {
    verdict->conflicts.push_back(other);
    report(absl::StrCat("and ", other->name,
                        " uses the same bytes: nothing orders the two"));
  }
}

Driver::Verdict Driver::Check(const OperationRef& operation,
                              const StreamTask& task, int device) {
  Verdict verdict;
  for (const MemoryAccess& access : task.accesses) {
    CheckAccess(operation, task, device, access, &verdict);
  }
  return verdict;
}

bool Driver::IsReachable(int device, const Allocation& allocation) const {
  if (allocation.kind != MemoryLocation::Kind::kDevice ||
      allocation.device == device) {
    return true;
  }
  // Access to pools is given for all that is and will be in them.
  for (const auto& pool : devices[allocation.device]->pools) {
    if (pool->number != allocation.pool) continue;
    return (pool->reachable >> device & 1) != 0;
  }
  return (devices[device]->peers >> allocation.device & 1) != 0;
}

std::string Driver::Misses(const Allocation* allocation, uint64_t low,
                           uint64_t high) const {
  const AllocationRef below =
      allocation == nullptr ? memory_->FindBelow(low) : nullptr;
  if (below != nullptr && low - below->base - below->bytes < kNear) {
    return absl::StrCat("which begins ", low - below->base - below->bytes,
                        " bytes behind the end of an allocation of ",
                        below->bytes, " bytes");
  }
  if (allocation == nullptr) {
    return "which is neither memory of a device nor pinned";
  }
  const uint64_t bytes = high - allocation->base;
  if (bytes <= allocation->bytes) return "";
  return absl::StrCat("which ends ", bytes - allocation->bytes,
                      " bytes behind the end of an allocation of ",
                      allocation->bytes, " bytes");
}

std::function<void()> Driver::Runner(const OperationRef& operation, int device,
                                     StreamTask task,
                                     std::vector<StreamWorker::Place>* after) {
  const bool is_late = task.late_accesses != nullptr;
  Verdict verdict;
  if (is_late) {
    ++undeclared_;
  } else {
    verdict = Check(operation, task, device);
    for (const OperationRef& other : verdict.conflicts) {
      if (other->runs_at.first != nullptr) after->push_back(other->runs_at);
    }
  }
  return [=, this, task = std::move(task)]() mutable {
    std::atomic<int>& broken = devices[device]->broken;
    if (is_late) {
      if (broken == 0) task.accesses = task.late_accesses();
      const std::lock_guard<std::mutex> lock(mutex);
      verdict = Check(operation, task, device);
      --undeclared_;
      if (!verdict.conflicts.empty()) verdict.may_run = false;
    }
    if (broken != 0 || !verdict.may_run) return;
    if (const int result = task.run ? task.run() : 0; result != 0) {
      int none = 0;
      broken.compare_exchange_strong(none, result);
    }
    for (const AllocationRef& allocation : verdict.written) {
      if (memory_->IsIntact(*allocation)) continue;
      if (allocation->is_damaged.exchange(true)) continue;
      ReportFinding(absl::StrCat(
          operation->name, " wrote next to an allocation of ",
          allocation->bytes, " bytes at 0x", absl::Hex(allocation->base)));
    }
  };
}

int Driver::Queue(Stream& stream, StreamTask task, const Clock* order) {
  if (std::optional<GpuFault> fault =
          std::exchange(ThisThread().fault, std::nullopt)) {
    if (fault->kind == GpuFault::Kind::kBreak) {
      task.run = [code = fault->code] { return code; };
    } else {
      task.run = []() -> int { HangForever(); };
    }
    task.prepare = nullptr;
  }
  if (stream.capture != nullptr) return AddNode(stream, std::move(task));
  if (const int result = CheckImplicitCapture(stream); result != 0) {
    return result;
  }
  std::vector<StreamWorker::Place> after;
  const OperationRef operation = Begin(stream, task.name, order, &after);
  std::function<void()> run =
      Runner(operation, stream.device, std::move(task), &after);
  stream.worker->Push(std::move(after), std::move(run));
  return 0;
}

int Driver::AddNode(Stream& stream, StreamTask task) {
  Capture& capture = *stream.capture;
  if (!capture.is_valid) return kCaptureInvalidated;
  capture.nodes.push_back(
      {std::move(task), stream.capture_lane, stream.capture_tail});
  stream.capture_tail = {capture.nodes.size() - 1};
  return 0;
}

int Driver::RecordEvent(Event& event, Stream& stream) {
  if (event.device != stream.device) return kInvalidHandle;
  if (stream.capture != nullptr) {
    if (!stream.capture->is_valid) return kCaptureInvalidated;
    event.capture = stream.capture;
    event.nodes = stream.capture_tail;
    return 0;
  }
  if (const int result = Queue(stream, {.name = "cuEventRecord"}, nullptr);
      result != 0) {
    return result;
  }
  event.capture = nullptr;
  event.is_recorded = true;
  event.place = stream.tail();
  event.clock = stream.clock;
  event.recorder = std::this_thread::get_id();
  return 0;
}

int Driver::WaitEvent(Stream& stream, const Event& event) {
  if (event.capture != nullptr) {
    if (!event.capture->is_valid) return kCaptureInvalidated;
    if (stream.capture == nullptr) {
      if (stream.is_default) return kCaptureImplicit;
      StreamRef joined;
      for (const StreamRef& other : devices[stream.device]->streams) {
        if (other.get() == &stream) joined = other;
      }
      stream.capture = event.capture;
      stream.capture_lane = event.capture->members.size();
      stream.capture->members.push_back(joined);
      stream.capture_tail.clear();
    } else if (stream.capture != event.capture) {
      event.capture->is_valid = false;
      stream.capture->is_valid = false;
      return kCaptureMerge;
    }
    std::vector<size_t>& tail = stream.capture_tail;
    tail.insert(tail.end(), event.nodes.begin(), event.nodes.end());
    return 0;
  }
  if (stream.capture != nullptr) {
    stream.capture->is_valid = false;
    return kCaptureIsolation;
  }
  if (const int result = CheckImplicitCapture(stream); result != 0) {
    return result;
  }
  if (!event.is_recorded) return 0;
  stream.clock.Join(event.clock);
  std::vector<StreamWorker::Place> after = {event.place};
  Begin(stream, "cuStreamWaitEvent", nullptr, &after);
  stream.worker->Push(std::move(after), [] {});
  return 0;
}

OperationRef Driver::HostOperation(const std::string& name) {
  auto operation = std::make_shared<OrderedOperation>();
  operation->name = absl::StrCat(name, " on the host");
  operation->clock = HostClock();
  operation->index = NextIndex();
  operation->is_host = true;
  return operation;
}

void Driver::FreeOnHost(Allocation& allocation, const char* function) {
  const OperationRef free = HostOperation(function);
  if (const OperationRef other = allocation.history.FindNotBefore(*free)) {
    ReportFinding(absl::StrCat(free->name, " of ", allocation.bytes,
                               " bytes, which ", other->name,
                               " may still use: nothing orders the two"));
  }
  allocation.freed = free;
  allocation.history = AccessHistory();
  memory_->Release(allocation);
}

int Planned(int value) {
  absl::string_view text = ThisThread().answer;
  int planned = 0;
  if (!absl::ConsumePrefix(&text, "value=") ||
      !absl::SimpleAtoi(text, &planned)) {
    return value;
  }
  return planned;
}

int Enter(const GpuCall& call, Needs needs, const std::function<int()>& body) {
  Driver& driver = Driver::Get();
  ThreadState& thread = ThisThread();
  thread.fault = TakeFault(call);
  thread.answer.clear();
  if (thread.fault && thread.fault->kind == GpuFault::Kind::kReturn) {
    return std::exchange(thread.fault, std::nullopt)->code;
  }
  if (thread.fault && thread.fault->kind == GpuFault::Kind::kOther) {
    thread.answer = std::exchange(thread.fault, std::nullopt)->word;
  }
  if (thread.answer == "needs_context") needs = Needs::kContext;
  Device* device = nullptr;
  if (needs != Needs::kNothing && !driver.is_initialized) {
    return internal::kCudaNotInitialized;
  }
  if (needs == Needs::kContext) {
    device = driver.CurrentDevice();
    if (device == nullptr) return kInvalidContext;
    if (const int broken = device->broken; broken != 0) return broken;
  }
  const int result = body();
  if (const std::optional<GpuFault> fault =
          std::exchange(thread.fault, std::nullopt)) {
    // The call queued nothing.
    if (fault->kind == GpuFault::Kind::kHang) HangForever();
    if (device != nullptr) device->broken = fault->code;
    return fault->code;
  }
  return result;
}

}  // namespace sherd::testing
