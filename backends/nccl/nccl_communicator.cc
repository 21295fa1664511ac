#include "sherd/backends/nccl/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sherd/backends/nccl/nccl_error.h"
#include "sherd/backends/nccl/nccl_operations.h"
#include "sherd/backends/nccl/run_with_deadline.h"
#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

constexpr int64_t kMillisecond = 1'000'000;
// Interval of checks for failures of other ranks.
constexpr int64_t kLookInterval = 50 * kMillisecond;
// How long an abort waits for a thread to leave NCCL by itself.
constexpr int64_t kGrace = 200 * kMillisecond;
// How long destroy waits for NCCL.
constexpr int64_t kDestroyTime = 5000 * kMillisecond;

// Whether the calling thread is in a batch. For NCCL this is a group of the
// thread, on any communicator: communicators created in it exist only after it.
thread_local bool in_group = false;

sherd_code CheckNoGroup(sherd_error_v0* error) {
  if (!in_group) return SHERD_OK;
  return Fail(error, SHERD_INTERNAL, -1,
              "NCCL makes no communicator within a batch");
}

// Time between two polls: short at first.
class Pause {
 public:
  void Take() {
    if (turns_ < 100) {
      ++turns_;
      std::this_thread::yield();
      return;
    }
    std::this_thread::sleep_for(time_);
    time_ = std::min(time_ * 2, std::chrono::microseconds(2000));
  }

 private:
  int turns_ = 0;
  std::chrono::microseconds time_{50};
};

}  // namespace

NcclCommunicator::NcclCommunicator(const NcclLibrary& library,
                                   const sherd_host_v0& host,
                                   const sherd_comm_config_v0& config)
    : library_(library),
      api_(library.api),
      host_(host),
      rank_(config.rank),
      size_(config.size),
      name_(config.group != nullptr ? config.group : ""),
      context_(CurrentContext(library.cuda)) {
  std::memset(&failure_details_, 0, sizeof(failure_details_));
}

NcclConfig NcclCommunicator::ConfigOf(bool blocking) const {
  NcclConfig config;
  config.blocking = blocking ? 1 : 0;
  config.comm_name = name_.c_str();
  // Without shared resources, the end of one communicator leaves the other.
  config.split_share = 0;
  config.shrink_share = 0;
  return config;
}

sherd_code NcclCommunicator::Create(const NcclLibrary& library,
                                    const sherd_host_v0& host,
                                    const sherd_comm_config_v0& config,
                                    std::shared_ptr<NcclCommunicator>* made,
                                    sherd_error_v0* error) {
  sherd_code code = CheckNoGroup(error);
  if (code != SHERD_OK) return code;
  NcclMeeting meeting(library, config);
  code = meeting.Hold(error);
  if (code != SHERD_OK) return code;
  // The constructor is private.
  std::shared_ptr<NcclCommunicator> comm(
      new NcclCommunicator(library, host, config));
  code = comm->Init(meeting, error);
  if (code == SHERD_OK) {
    code = comm->AwaitBase(meeting, config.deadline, "ncclCommInitRankConfig",
                           kNcclInProgress, error);
  }
  if (code == SHERD_OK) code = comm->MakeWork(meeting, config.deadline, error);
  if (code == SHERD_OK) {
    *made = std::move(comm);
    return SHERD_OK;
  }
  meeting.PublishFailure(*error, code);
  meeting.Explain(error);
  comm->Destroy();
  return code;
}

sherd_code NcclCommunicator::Init(NcclMeeting& meeting, sherd_error_v0* error) {
  NcclConfig config = ConfigOf(/*blocking=*/false);
  std::vector<NcclUniqueId> ids = meeting.ids();
  const NcclResult result =
      ids.size() == 1
          ? api_.comm_init_rank_config(&base_, size_, ids[0], rank_, &config)
          : api_.comm_init_rank_scalable(&base_, size_, rank_,
                                         static_cast<int>(ids.size()),
                                         ids.data(), &config);
  if (result == kNcclSuccess || result == kNcclInProgress) return SHERD_OK;
  return FailWithNccl(api_, result, "ncclCommInitRankConfig", error);
}

sherd_code NcclCommunicator::MakeWork(NcclMeeting& meeting, int64_t deadline,
                                      sherd_error_v0* error) {
  NcclConfig config = ConfigOf(/*blocking=*/true);
  const NcclResult result = api_.comm_split(base_, 0, rank_, &work_, &config);
  const sherd_code code =
      AwaitBase(meeting, deadline, "ncclCommSplit", result, error);
  if (code != SHERD_OK || work_ != nullptr) return code;
  return Fail(error, SHERD_INTERNAL, -1, "ncclCommSplit: made no communicator");
}

NcclResult NcclCommunicator::StateOf(NcclComm comm) {
  NcclResult state = kNcclSuccess;
  const NcclResult result = api_.comm_get_async_error(comm, &state);
  return result != kNcclSuccess ? result : state;
}

sherd_code NcclCommunicator::AwaitBase(NcclMeeting& meeting, int64_t deadline,
                                       const char* what, NcclResult begun,
                                       sherd_error_v0* error) {
  if (begun != kNcclSuccess && begun != kNcclInProgress) {
    return FailWithNccl(api_, begun, what, error);
  }
  int64_t next_look = NcclClock() + kLookInterval;
  // The abort before a shrink ended the operations only.
  const bool was_aborted = aborted_.load();
  for (Pause pause;; pause.Take()) {
    if (aborted_.load() && !was_aborted)
      return Fail(error, SHERD_ABORTED, -1, "aborted");
    std::unique_lock<std::mutex> lock(calls_);
    const NcclResult state = StateOf(base_);
    lock.unlock();
    if (state == kNcclSuccess) return SHERD_OK;
    if (state != kNcclInProgress) {
      return FailWithNccl(api_, state, what, error);
    }
    const int64_t now = NcclClock();
    if (now >= deadline) {
      return Fail(error, SHERD_TIMEOUT, -1,
                  (std::string(what) + " did not end in time").c_str());
    }
    if (now < next_look) continue;
    next_look = now + kLookInterval;
    const sherd_code theirs = meeting.LookForFailure(error);
    if (theirs != SHERD_OK) return theirs;
  }
}

template <typename Make>
sherd_code NcclCommunicator::MakeFrom(NcclCommunicator& parent,
                                      const char* what,
                                      const sherd_comm_config_v0& config,
                                      Make make, sherd_error_v0* error) {
  sherd_code code = CheckNoGroup(error);
  if (code != SHERD_OK) return code;
  NcclMeeting meeting(library_, config);
  NcclConfig nccl_config = ConfigOf(/*blocking=*/false);
  NcclResult begun;
  {
    std::lock_guard<std::mutex> lock(parent.calls_);
    begun = make(parent.base_, &base_, &nccl_config);
  }
  code = parent.AwaitBase(meeting, config.deadline, what, begun, error);
  if (code != SHERD_OK) {
    std::lock_guard<std::mutex> lock(parent.calls_);
    parent.unfinished_.push_back(shared_from_this());
  } else if (base_ != nullptr) {
    code = MakeWork(meeting, config.deadline, error);
    if (code != SHERD_OK) Destroy();
  }
  if (code != SHERD_OK) meeting.PublishFailure(*error, code);
  return code;
}

sherd_code NcclCommunicator::Split(const sherd_comm_config_v0& config,
                                   int32_t color, int32_t key,
                                   std::shared_ptr<NcclCommunicator>* made,
                                   sherd_error_v0* error) {
  std::shared_ptr<NcclCommunicator> comm(
      new NcclCommunicator(library_, host_, config));
  const int nccl_color = color < 0 ? kNcclSplitNoColor : color;
  const auto make = [&](NcclComm parent, NcclComm* child, NcclConfig* how) {
    return api_.comm_split(parent, nccl_color, key, child, how);
  };
  const sherd_code code =
      comm->MakeFrom(*this, "ncclCommSplit", config, make, error);
  if (code != SHERD_OK) return code;
  if (color >= 0 && comm->base_ == nullptr) {
    return Fail(error, SHERD_INTERNAL, -1,
                "ncclCommSplit: made no communicator");
  }
  *made = color >= 0 ? std::move(comm) : nullptr;
  return SHERD_OK;
}

sherd_code NcclCommunicator::Shrink(const sherd_comm_config_v0& config,
                                    const int32_t* excluded,
                                    int32_t num_excluded,
                                    std::shared_ptr<NcclCommunicator>* made,
                                    sherd_error_v0* error) {
  if (api_.comm_shrink == nullptr) {
    return Fail(error, SHERD_UNSUPPORTED, -1,
                ("NCCL " + library_.description +
                 " has no ncclCommShrink: need 2.27 or newer")
                    .c_str());
  }
  std::shared_ptr<NcclCommunicator> comm(
      new NcclCommunicator(library_, host_, config));
  std::vector<int> ranks(excluded, excluded + num_excluded);
  const auto make = [&](NcclComm parent, NcclComm* child, NcclConfig* how) {
    return api_.comm_shrink(parent, ranks.data(), num_excluded, child, how,
                            kNcclShrinkDefault);
  };
  const sherd_code code =
      comm->MakeFrom(*this, "ncclCommShrink", config, make, error);
  if (code != SHERD_OK) return code;
  if (comm->base_ == nullptr) {
    return Fail(error, SHERD_INTERNAL, -1,
                "ncclCommShrink: made no communicator");
  }
  *made = std::move(comm);
  return SHERD_OK;
}

sherd_code NcclCommunicator::CheckUsable(sherd_error_v0* error) {
  if (aborted_.load()) return Fail(error, SHERD_ABORTED, -1, "aborted");
  if (failure_ != SHERD_OK) {
    error->native_code = failure_details_.native_code;
    return Fail(error, failure_, failure_details_.peer, failure_details_.text);
  }
  if (!finalized_) return SHERD_OK;
  return Fail(error, SHERD_INTERNAL, -1, "the communicator was finalized");
}

sherd_code NcclCommunicator::Note(sherd_code code,
                                  const sherd_error_v0& error) {
  if (failure_ == SHERD_OK) {
    failure_ = code;
    failure_details_.native_code = error.native_code;
    Fail(&failure_details_, code, error.peer, error.text);
  }
  return code;
}

// Where NCCL_COMM_BLOCKING=0 has made `work` non-blocking.
NcclResult NcclCommunicator::AwaitState(NcclComm comm,
                                        std::unique_lock<std::mutex>& lock) {
  Pause pause;
  while (!aborted_.load()) {
    const NcclResult state = StateOf(comm);
    if (state != kNcclInProgress) return state;
    lock.unlock();
    pause.Take();
    lock.lock();
  }
  return kNcclInProgress;
}

sherd_code NcclCommunicator::Settle(NcclResult result, const char* what,
                                    std::unique_lock<std::mutex>& lock,
                                    sherd_error_v0* error) {
  if (result == kNcclInProgress && !in_batch_) {
    result = AwaitState(work_, lock);
  }
  if (aborted_.load()) return Fail(error, SHERD_ABORTED, -1, "aborted");
  if (result == kNcclSuccess || result == kNcclInProgress) return SHERD_OK;
  const sherd_code code = FailWithNccl(api_, result, what, error);
  return EndsNcclComm(result) ? Note(code, *error) : code;
}

sherd_code NcclCommunicator::Post(const sherd_op_v0& op,
                                  sherd_error_v0* error) {
  std::unique_lock<std::mutex> lock(calls_);
  const sherd_code code = CheckUsable(error);
  if (code != SHERD_OK) return code;
  if (!IsNcclOperation(op)) {
    return Fail(error, SHERD_UNSUPPORTED, -1, "NCCL has no such operation");
  }
  const NcclResult result = QueueOperation({api_, work_, rank_, size_}, op);
  return Settle(result, NcclFunctionOf(op), lock, error);
}

sherd_code NcclCommunicator::BeginBatch(sherd_error_v0* error) {
  std::unique_lock<std::mutex> lock(calls_);
  const sherd_code code = CheckUsable(error);
  if (code != SHERD_OK) return code;
  const NcclResult result = api_.group_start();
  if (result != kNcclSuccess) {
    return Settle(result, "ncclGroupStart", lock, error);
  }
  in_batch_ = true;
  in_group = true;
  return SHERD_OK;
}

sherd_code NcclCommunicator::EndBatch(sherd_error_v0* error) {
  std::unique_lock<std::mutex> lock(calls_);
  if (!in_batch_) return CheckUsable(error);
  in_batch_ = false;
  in_group = false;
  // The end of a group launches its calls even if it was revoked meanwhile, and
  // then nothing ends them any more. After an invalid call, NCCL drops the
  // group.
  if (aborted_.load()) {
    api_.broadcast(nullptr, nullptr, 1, kNcclUint8, /*root=*/-1, work_,
                   /*stream=*/nullptr);
  }
  // Also after a failure: the calling thread must leave the group.
  const NcclResult result = api_.group_end();
  const sherd_code code = CheckUsable(error);
  if (code != SHERD_OK) return code;
  return Settle(result, "ncclGroupEnd", lock, error);
}

// Called while another thread is in NCCL, which may wait there for a peer that
// has failed.
sherd_code NcclCommunicator::PollBeside(sherd_error_v0* error) {
  std::unique_lock<std::mutex> stop(stop_, std::try_to_lock);
  if (!stop.owns_lock() || ended_ || work_is_gone_.load()) return SHERD_OK;
  const NcclResult state = StateOf(work_);
  if (!EndsNcclComm(state)) return SHERD_OK;
  return FailWithNccl(api_, state, "NCCL", error);
}

sherd_code NcclCommunicator::Poll(sherd_error_v0* error) {
  if (aborted_.load()) return Fail(error, SHERD_ABORTED, -1, "aborted");
  std::unique_lock<std::mutex> lock(calls_, std::try_to_lock);
  if (!lock.owns_lock()) return PollBeside(error);
  if (finalized_) return SHERD_OK;
  const sherd_code code = CheckUsable(error);
  if (code != SHERD_OK) return code;
  const NcclResult state = StateOf(work_);
  if (!EndsNcclComm(state)) return SHERD_OK;
  return Note(FailWithNccl(api_, state, "NCCL", error), *error);
}

NcclResult NcclCommunicator::FinalizeBoth(const char** what) {
  std::unique_lock<std::mutex> lock(calls_);
  *what = "ncclCommFinalize";
  for (NcclComm comm : {work_, base_}) {
    if (aborted_.load()) return kNcclInProgress;
    NcclResult result = api_.comm_finalize(comm);
    if (result == kNcclSuccess || result == kNcclInProgress) {
      result = AwaitState(comm, lock);
    }
    if (result != kNcclSuccess) return result;
  }
  finalized_ = true;
  return kNcclSuccess;
}

sherd_code NcclCommunicator::Finalize(int64_t deadline, sherd_error_v0* error) {
  {
    std::lock_guard<std::mutex> lock(calls_);
    const sherd_code code = CheckUsable(error);
    if (code != SHERD_OK) return code;
  }
  struct Outcome {
    NcclResult result = kNcclInProgress;
    const char* what = "";
  };
  const auto outcome = std::make_shared<Outcome>();
  const auto body = [self = shared_from_this(), outcome] {
    outcome->result = self->FinalizeBoth(&outcome->what);
  };
  if (!RunWithDeadline(library_.cuda, context_, body, deadline)) {
    return Fail(error, SHERD_TIMEOUT, -1, "ncclCommFinalize did not end");
  }
  if (outcome->result == kNcclSuccess) return SHERD_OK;
  if (aborted_.load()) return Fail(error, SHERD_ABORTED, -1, "aborted");
  const sherd_code code =
      FailWithNccl(api_, outcome->result, outcome->what, error);
  std::lock_guard<std::mutex> lock(calls_);
  return Note(code, *error);
}

void NcclCommunicator::Abort() {
  if (aborted_.exchange(true)) return;
  RunWithDeadline(
      library_.cuda, context_,
      [self = shared_from_this()] { self->StopWork(); },
      /*deadline=*/0);
}

void NcclCommunicator::StopWork() {
  std::lock_guard<std::mutex> stop(stop_);
  if (ended_ || work_ == nullptr) return;
  const bool can_revoke = api_.comm_revoke != nullptr;
  std::unique_lock<std::mutex> lock(calls_, std::defer_lock);
  int64_t end = NcclClock() + kGrace;
  for (Pause pause; NcclClock() < end; pause.Take()) {
    if (!lock.try_lock()) continue;
    // ncclCommAbort leaves nothing that the end of a batch could access.
    if (can_revoke || !in_batch_) break;
    lock.unlock();
    end = NcclClock() + kGrace;
  }
  if (lock.owns_lock() && finalized_) return;
  if (!can_revoke) {
    work_is_gone_.store(true);
    api_.comm_abort(work_);
    return;
  }
  const NcclResult result = api_.comm_revoke(work_, kNcclRevokeDefault);
  if (EndsNcclComm(result)) {
    sherd_error_v0 error = {};
    FailWithNccl(api_, result, "ncclCommRevoke", &error);
    host_.log(2, error.text);
  }
}

void NcclCommunicator::EndBoth() {
  std::unique_lock<std::mutex> lock(calls_, std::try_to_lock);
  if (!lock.owns_lock()) {
    // A call that did not end in time is still in NCCL.
    if (!aborted_.exchange(true)) StopWork();
    lock.lock();
  }
  std::lock_guard<std::mutex> stop(stop_);
  if (ended_) return;
  ended_ = true;
  const auto end = finalized_ ? api_.comm_destroy : api_.comm_abort;
  // The base first: while a child is being made of it, and after that failed,
  // its end writes to the child. Until then NCCL may also finish the child.
  if (base_ != nullptr) end(base_);
  if (work_ != nullptr && !work_is_gone_.load()) end(work_);
  for (const auto& child : unfinished_) child->EndBoth();
  unfinished_.clear();
}

void NcclCommunicator::Destroy() {
  const bool ended = RunWithDeadline(
      library_.cuda, context_, [self = shared_from_this()] { self->EndBoth(); },
      NcclClock() + kDestroyTime);
  if (!ended) {
    host_.log(2, "nccl: a communicator takes long to end; left behind");
  }
}

sherd_code NcclCommunicator::Register(void* data, uint64_t bytes,
                                      void** registration,
                                      sherd_error_v0* error) {
  if (api_.comm_register == nullptr || api_.comm_deregister == nullptr) {
    return Fail(error, SHERD_UNSUPPORTED, -1, "this NCCL has no registration");
  }
  std::unique_lock<std::mutex> lock(calls_);
  const sherd_code code = CheckUsable(error);
  if (code != SHERD_OK) return code;
  const NcclResult result =
      api_.comm_register(work_, data, bytes, registration);
  return Settle(result, "ncclCommRegister", lock, error);
}

void NcclCommunicator::Deregister(void* registration) {
  std::lock_guard<std::mutex> lock(calls_);
  if (aborted_.load() || finalized_) return;
  api_.comm_deregister(work_, registration);
}

}  // namespace sherd::internal
