#include "sherd/backends/local/meeting.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "sherd/backends/local/call_comparison.h"
#include "sherd/backends/local/transfer.h"
#include "sherd/backends/local/wait_limit.h"
#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

constexpr char kAborted[] = "the rank aborted the group";

// The meetings that ranks may still join.
struct OpenMeetings {
  std::mutex mutex;
  uint64_t last_serial = 0;
  std::unordered_map<uint64_t, std::shared_ptr<Meeting>> by_serial;
};

// Never destroyed: ranks may leave while the process ends.
OpenMeetings& Open() {
  static OpenMeetings* const open = new OpenMeetings;
  return *open;
}

}  // namespace

std::shared_ptr<Meeting> Meeting::Make(int size, const sherd_host_v0& host) {
  std::lock_guard<std::mutex> lock(Open().mutex);
  const uint64_t serial = ++Open().last_serial;
  std::shared_ptr<Meeting> meeting(new Meeting(size, host, serial));
  if (size > 1) Open().by_serial[serial] = meeting;
  return meeting;
}

std::shared_ptr<Meeting> Meeting::Join(uint64_t serial) {
  std::lock_guard<std::mutex> lock(Open().mutex);
  const auto found = Open().by_serial.find(serial);
  if (found == Open().by_serial.end()) return nullptr;
  std::shared_ptr<Meeting> meeting = found->second;
  if (++meeting->came_ == meeting->size()) Open().by_serial.erase(found);
  return meeting;
}

sherd_code Meeting::Run(int rank, const sherd_op_v0& op,
                        sherd_error_v0* error) {
  if (op.op == SHERD_SEND || op.op == SHERD_RECV) {
    return mailbox_.Run(rank, op, error);
  }
  return Meet(rank, op, error);
}

sherd_code Meeting::Meet(int rank, const sherd_op_v0& op,
                         sherd_error_v0* error) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (failure_.code != SHERD_OK) return Report(rank, error);
  calls_[rank] = &op;
  const uint64_t round = round_;
  if (++arrived_ == size()) {
    Begin();
  } else if (!AwaitRound(lock, round, op.deadline)) {
    return Report(rank, error);
  }
  // A tiny operation is complete, whatever happened since.
  if (round_ != round + 1) return SHERD_OK;
  // All ranks return a difference that the last arrival found. Other failures
  // are ignored from here on: all ranks do their shares or none.
  if (refused_) return Report(rank, error);

  lock.unlock();
  DoShare(calls_, rank, host_);
  lock.lock();

  if (++finished_ == size()) {
    Finish();
  } else {
    // Not bounded: the others only copy, and returning now would let the
    // caller free what they read.
    changed_.wait(lock, [&] { return round_ != round + 1; });
  }
  return SHERD_OK;
}

void Meeting::Begin() {
  ++round_;
  changed_.notify_all();
  if (std::optional<CallDifference> difference = FindDifference(calls_)) {
    refused_ = true;
    SetFailure({SHERD_INVALID_ARGUMENT, difference->rank.value_or(-1),
                std::move(difference->text)});
  } else if (IsTiny(*calls_[0], size())) {
    for (int rank = 0; rank < size(); ++rank) DoShare(calls_, rank, host_);
    Finish();
  }
}

void Meeting::Finish() {
  arrived_ = finished_ = 0;
  std::fill(calls_.begin(), calls_.end(), nullptr);
  ++round_;
  changed_.notify_all();
}

void Meeting::Abort(int rank) {
  {
    // Before the mailbox: a peer whose message this ends may leave at once, and
    // that would become the recorded failure.
    std::lock_guard<std::mutex> lock(mutex_);
    aborted_[rank] = true;
    SetFailure({SHERD_ABORTED, rank, kAborted});
  }
  mailbox_.Abort(rank);
}

void Meeting::Leave(int rank) {
  mailbox_.Leave(rank);
  std::lock_guard<std::mutex> lock(mutex_);
  left_[rank] = true;
  // Ranks that wait for an operation wait for this rank too.
  if (arrived_ > 0 && calls_[rank] == nullptr) {
    SetFailure({SHERD_PEER_LOST, rank, "the rank left the group"});
  }
}

bool Meeting::AwaitRound(std::unique_lock<std::mutex>& lock, uint64_t round,
                         int64_t deadline) {
  for (int rank = 0; rank < size(); ++rank) {
    if (left_[rank] && calls_[rank] == nullptr) {
      SetFailure({SHERD_PEER_LOST, rank, "the rank left the group"});
    }
  }
  const auto ended = [&] {
    return round_ != round || failure_.code != SHERD_OK;
  };
  if (!WaitUntil(changed_, lock, deadline, ended)) {
    SetFailure({SHERD_TIMEOUT, FirstAbsent(), "did not come in time"});
  }
  return round_ != round;
}

int Meeting::FirstAbsent() const {
  return static_cast<int>(std::find(calls_.begin(), calls_.end(), nullptr) -
                          calls_.begin());
}

void Meeting::SetFailure(Failure failure) {
  if (failure_.code != SHERD_OK) return;
  failure_ = std::move(failure);
  changed_.notify_all();
}

sherd_code Meeting::Report(int rank, sherd_error_v0* error) const {
  if (aborted_[rank]) return Fail(error, SHERD_ABORTED, -1, kAborted);
  if (failure_.code == SHERD_ABORTED) {
    return Fail(error, SHERD_PEER_LOST, failure_.peer, failure_.text.c_str());
  }
  return Fail(error, failure_.code, failure_.peer, failure_.text.c_str());
}

}  // namespace sherd::internal
