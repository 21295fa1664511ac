#include <algorithm>
#include <ctime>
#include <string>
#include <utility>

#include "sherd/testing/emulated_gpu/nccl/nccl_communicator.h"

namespace sherd::testing {

using internal::kNcclInProgress;
using internal::kNcclInternalError;
using internal::kNcclInvalidUsage;
using internal::kNcclSuccess;
using internal::kNcclUnhandledCudaError;

// A launch's place among those of its communicator. It is given up at the end,
// whatever the outcome.
class NcclCommunicator::Turn {
 public:
  Turn(NcclCommunicatorPtr communicator, uint64_t number)
      : communicator_(std::move(communicator)), number_(number) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() { Leave(); }

  // Returns once all earlier launches are through.
  void Await() {
    std::unique_lock<std::mutex> lock(communicator_->mutex_);
    communicator_->changed_.wait(lock, [this] {
      return communicator_->turn_ == number_ || communicator_->Ended();
    });
  }

  void Leave() {
    if (left_) return;
    left_ = true;
    NcclCommunicator& own = *communicator_;
    {
      const std::lock_guard<std::mutex> lock(own.mutex_);
      own.ended_early_.insert(number_);
      while (own.ended_early_.erase(own.turn_) == 1) ++own.turn_;
    }
    own.changed_.notify_all();
  }

 private:
  const NcclCommunicatorPtr communicator_;
  const uint64_t number_;
  bool left_ = false;
};

void NcclCommunicator::ReportMismatch(const std::string& text) {
  if (settings_.mismatch_hangs || mismatch_reported_.exchange(true)) return;
  const std::string name =
      settings_.name.empty() ? "" : " '" + settings_.name + "'";
  const std::string report =
      "calls on the NCCL communicator" + name + " do not match: " + text;
  segment_->SetMismatch(report);
  ReportFinding(report);
}

bool NcclCommunicator::GivesUp() {
  if (Ended()) return true;
  if (!settings_.mismatch_hangs && !mismatch_reported_.load()) {
    const std::string found = segment_->mismatch();
    if (!found.empty() && !mismatch_reported_.exchange(true)) {
      ReportFinding(found);
    }
  }
  return false;
}

bool NcclCommunicator::Announce(const NcclTask& task, uint64_t sequence) {
  constexpr uint64_t kEntries = NcclRankBlock::kBoardEntries;
  NcclRankBlock& own = segment_->rank(rank_);
  own.collective.store(sequence);
  if (sequence >= kEntries) {
    // No rank may still read the entry's previous contents.
    if (sequence % (kEntries / 4) == 0) segment_->RingAll();
    const bool caught_up = segment_->Await(
        rank_,
        [&] {
          for (int r = 0; r < size_; ++r) {
            if (segment_->rank(r).collective.load() + kEntries <= sequence) {
              return false;
            }
          }
          return true;
        },
        [this] { return GivesUp(); });
    if (!caught_up) return false;
  }
  NcclBoardEntry& entry = own.board[sequence % kEntries];
  entry.signature = task.signature;
  entry.sequence.store(sequence);
  for (int r = 0; r < size_; ++r) {
    const NcclBoardEntry& other = segment_->rank(r).board[sequence % kEntries];
    if (other.sequence.load() != sequence ||
        other.signature == task.signature) {
      continue;
    }
    ReportMismatch("collective " + std::to_string(sequence) + " is " +
                   Describe(task.signature) + " on rank " +
                   std::to_string(rank_) + " and " + Describe(other.signature) +
                   " on rank " + std::to_string(r));
    return false;
  }
  return true;
}

int NcclCommunicator::RunLaunch(Turn& turn, const std::vector<NcclTask>& tasks,
                                uint64_t first_collective) {
  turn.Await();
  NcclWaiting waiting;
  waiting.segment = segment_.get();
  waiting.rank = rank_;
  waiting.ended = [this] { return GivesUp(); };
  waiting.mismatch = [this](const std::string& text) { ReportMismatch(text); };
  const auto hang = [&] {
    segment_->Await(
        rank_, [] { return false; }, waiting.ended);
  };
  std::vector<NcclTask> point_to_point;
  for (const NcclTask& task : tasks) {
    if (Ended()) return 0;
    if (task.hangs) hang();
    if (task.breaks != 0) return task.breaks;
    waiting.die_after = task.dies ? task.bytes() / 2 : UINT64_MAX;
    if (task.function == NcclFunction::kSend ||
        task.function == NcclFunction::kRecv) {
      point_to_point.push_back(task);
      continue;
    }
    const uint64_t sequence = first_collective++;
    if (size_ > 1 && !Announce(task, sequence)) {
      hang();
      return 0;
    }
    if (!RunCollective(task, sequence, waiting)) return 0;
  }
  if (!point_to_point.empty()) RunPointToPoint(point_to_point, waiting);
  return 0;
}

std::function<int()> NcclCommunicator::PrepareLaunch(
    const std::shared_ptr<const std::vector<NcclTask>>& tasks) {
  uint64_t number = 0, first = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    number = launches_++;
    first = collectives_ + 1;
    for (const NcclTask& task : *tasks) {
      if (task.function < NcclFunction::kSend) ++collectives_;
    }
  }
  auto turn = std::make_shared<Turn>(shared_from_this(), number);
  return [self = shared_from_this(), turn, tasks, first] {
    const int result = self->RunLaunch(*turn, *tasks, first);
    turn->Leave();
    return result;
  };
}

NcclResult NcclCommunicator::QueueLaunch(const std::vector<NcclTask>& tasks,
                                         const HostOrder& order) {
  std::vector<StreamHandle> streams;
  QueuedOperation operation;
  for (const NcclTask& task : tasks) {
    if (std::find(streams.begin(), streams.end(), task.stream) ==
        streams.end()) {
      streams.push_back(task.stream);
    }
    for (MemoryAccess& access : AccessesOf(task, rank_, size_)) {
      operation.accesses.push_back(std::move(access));
    }
  }
  operation.name = Describe(tasks[0].signature);
  if (tasks.size() > 1) {
    operation.name += " and " + std::to_string(tasks.size() - 1) + " more";
  }
  const auto shared = std::make_shared<const std::vector<NcclTask>>(tasks);
  operation.prepare = [self = shared_from_this(), shared] {
    return self->PrepareLaunch(shared);
  };
  int code = 0;
  for (size_t i = 1; i < streams.size() && code == 0; ++i) {
    code = OrderStreams(streams[i], streams[0]);
  }
  if (code == 0) code = Queue(streams[0], std::move(operation), order);
  for (size_t i = 1; i < streams.size() && code == 0; ++i) {
    code = OrderStreams(streams[0], streams[i]);
  }
  if (code == 0) return kNcclSuccess;
  return NcclFail(kNcclUnhandledCudaError,
                  "Cuda failure " + std::to_string(code));
}

void NcclCommunicator::StartConnecting() {
  NcclRankBlock& own = segment_->rank(rank_);
  if (own.connecting.exchange(1) == 0) segment_->RingAll();
}

bool NcclCommunicator::IsConnected() const {
  for (int r = 0; r < size_ && !settings_.eager; ++r) {
    if (segment_->rank(r).connecting.load() == 0) return false;
  }
  return true;
}

namespace {

bool HasCollective(const std::vector<NcclTask>& tasks) {
  return std::any_of(tasks.begin(), tasks.end(), [](const NcclTask& task) {
    return task.function < NcclFunction::kSend;
  });
}

}  // namespace

NcclResult NcclCommunicator::Launch(const std::vector<NcclTask>& tasks) {
  if (HasCollective(tasks)) {
    StartConnecting();
    const bool connected = segment_->Await(
        rank_, [this] { return IsConnected(); }, [this] { return Ended(); });
    if (!connected) {
      return NcclFail(kNcclInternalError, "aborted while it was connecting");
    }
  }
  return QueueLaunch(tasks, nullptr);
}

// Queues operations that no caller polls for.
struct NcclHelper {
  std::mutex mutex;
  bool runs = false;
  std::vector<std::weak_ptr<NcclCommunicator>> waiting;

  static NcclHelper& Get() {
    static NcclHelper* const helper = new NcclHelper;
    return *helper;
  }

  static void Run() {
    NcclHelper& own = Get();
    for (;;) {
      const timespec time = {0, 5'000'000};
      nanosleep(&time, nullptr);
      std::vector<std::weak_ptr<NcclCommunicator>> waiting;
      {
        const std::lock_guard<std::mutex> lock(own.mutex);
        waiting.swap(own.waiting);
        own.runs = !waiting.empty();
        if (!own.runs) return;
      }
      for (const auto& member : waiting) {
        const NcclCommunicatorPtr communicator = member.lock();
        if (communicator == nullptr || communicator->TryPending(true)) continue;
        const std::lock_guard<std::mutex> lock(own.mutex);
        own.waiting.push_back(member);
      }
    }
  }
};

void NcclCommunicator::LaunchLater(const std::vector<NcclTask>& tasks) {
  if (HasCollective(tasks)) StartConnecting();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    pending_ = std::make_unique<PendingLaunch>(
        PendingLaunch{tasks, OrderOfThisThread(), std::this_thread::get_id()});
    busy_ = true;
    polls_ = 0;
  }
  NcclHelper& helper = NcclHelper::Get();
  const std::lock_guard<std::mutex> lock(helper.mutex);
  helper.waiting.push_back(weak_from_this());
  if (helper.runs) return;
  helper.runs = true;
  std::thread(NcclHelper::Run).detach();
}

bool NcclCommunicator::TryPending(bool any_thread) {
  std::unique_ptr<PendingLaunch> pending;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (pending_ == nullptr) return true;
    // A caller that does not poll before it continues must see the result.
    if (!any_thread &&
        (polls_ == 0 || pending_->caller != std::this_thread::get_id())) {
      return false;
    }
    if (!Ended() && HasCollective(pending_->tasks) && !IsConnected()) {
      return false;
    }
    pending = std::move(pending_);
  }
  const NcclResult result =
      Ended() ? NcclFail(kNcclInternalError, "aborted while it was connecting")
              : QueueLaunch(pending->tasks, pending->order);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (result != kNcclSuccess && error_ == kNcclSuccess) error_ = result;
  busy_ = false;
  return true;
}

}  // namespace sherd::testing
