#include "sherd/backends/mpi/mpi_batch.h"

#include <sched.h>
#include <time.h>

#include <algorithm>

#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

// Interval of checks for notices of abortion.
constexpr int64_t kNoticeInterval = 1'000'000;
// Interval of checks of the store for ranks that left.
constexpr int64_t kStoreInterval = 100'000'000;
// After this time, everything that a rank sent before it left has arrived.
constexpr int64_t kArrivalTime = 300'000'000;
// After so long without an end the thread sleeps between polls. Not earlier,
// since a large transfer proceeds only while both sides poll.
constexpr int64_t kBusyTime = 2'000'000'000;
constexpr timespec kNap = {.tv_sec = 0, .tv_nsec = 100'000};
// Polls until a cancelled receive is complete.
constexpr int kCancelPolls = 1000;

}  // namespace

int FindAbortNotice(MPI_Comm comm) {
  if (comm == MPI_COMM_NULL) return -1;
  int found = 0;
  MPI_Status status;
  MpiLibrary::Get().Call([&] {
    return MPI_Iprobe(MPI_ANY_SOURCE, kAbortTag, comm, &found, &status);
  });
  return found ? status.MPI_SOURCE : -1;
}

std::string MpiLeftKey(int rank) { return "mpi/left/" + std::to_string(rank); }

MPI_Request* MpiBatch::Add(int peer, int bytes) {
  requests_.push_back(MPI_REQUEST_NULL);
  parts_.push_back({peer, bytes});
  return &requests_.back();
}

void MpiBatch::Note(int result) {
  if (result_ == MPI_SUCCESS) result_ = result;
}

void MpiBatch::Send(const void* data, uint64_t bytes, int peer, int tag,
                    MPI_Comm comm) {
  const char* from = static_cast<const char*>(data);
  do {
    const int size = static_cast<int>(std::min(bytes, kMaxMpiBytes));
    MPI_Request* const request = Add(peer, -1);
    Note(MpiLibrary::Get().Call([&] {
      return MPI_Isend(from, size, MPI_BYTE, peer, tag, comm, request);
    }));
    from += size;
    bytes -= size;
  } while (bytes > 0);
}

void MpiBatch::Receive(void* data, uint64_t bytes, int peer, int tag,
                       MPI_Comm comm) {
  char* to = static_cast<char*>(data);
  do {
    const int size = static_cast<int>(std::min(bytes, kMaxMpiBytes));
    MPI_Request* const request = Add(peer, size);
    Note(MpiLibrary::Get().Call([&] {
      return MPI_Irecv(to, size, MPI_BYTE, peer, tag, comm, request);
    }));
    to += size;
    bytes -= size;
  } while (bytes > 0);
}

sherd_code MpiBatch::Await(const MpiWait& wait, sherd_error_v0* error) {
  statuses_.resize(requests_.size());
  sherd_code code = SHERD_IN_PROGRESS;
  int64_t start = 0;
  while (result_ == MPI_SUCCESS && code == SHERD_IN_PROGRESS && !Poll()) {
    sched_yield();
    const int64_t now = MpiClock();
    if (start == 0) {
      start = now;
      next_notice_ = now + kNoticeInterval;
      next_store_ = now + kStoreInterval;
      left_since_ = 0;
    }
    code = Watch(wait, now, error);
    if (now - start > kBusyTime) nanosleep(&kNap, nullptr);
  }
  if (code == SHERD_IN_PROGRESS) code = Check(error);
  if (code != SHERD_OK) GiveUp();
  requests_.clear();
  parts_.clear();
  result_ = MPI_SUCCESS;
  return code;
}

// True once all requests have ended; result_ is their result.
bool MpiBatch::Poll() {
  if (requests_.empty()) return true;
  MpiLibrary& library = MpiLibrary::Get();
  for (int i = 0; i < library.polls_per_yield(); ++i) {
    int ended = 0;
    result_ = library.Call([&] {
      return MPI_Testall(static_cast<int>(requests_.size()), requests_.data(),
                         &ended, statuses_.data());
    });
    if (ended || result_ != MPI_SUCCESS) return true;
  }
  return false;
}

// Returns SHERD_IN_PROGRESS if the wait may continue.
sherd_code MpiBatch::Watch(const MpiWait& wait, int64_t now,
                           sherd_error_v0* error) {
  if (wait.aborted.load(std::memory_order_relaxed)) {
    return Fail(error, SHERD_ABORTED, -1, "aborted");
  }
  if (!MpiLibrary::Get().usable()) {
    return Fail(error, SHERD_SYSTEM, -1,
                "MPI is no longer usable: an operation of another group was "
                "given up");
  }
  if (now >= wait.deadline) {
    return Fail(error, SHERD_TIMEOUT, FirstUnfinishedPeer(),
                "did not come in time");
  }
  if (now < next_notice_) return SHERD_IN_PROGRESS;
  next_notice_ = now + kNoticeInterval;
  if (const int peer = FindAbortNotice(wait.notices); peer >= 0) {
    return Fail(error, SHERD_PEER_LOST, peer, "aborted the group");
  }
  if (int peer = -1; PeerHasLeft(wait, now, &peer)) {
    return Fail(error, SHERD_PEER_LOST, peer, "left the group");
  }
  return SHERD_IN_PROGRESS;
}

bool MpiBatch::PeerHasLeft(const MpiWait& wait, int64_t now, int* peer) {
  if (wait.kv == nullptr || now < next_store_) return false;
  next_store_ = now + kStoreInterval;
  *peer = FirstUnfinishedPeer();
  if (*peer < 0) return false;
  char none;
  uint64_t size = 0;
  const sherd_code found = wait.kv->get(
      wait.kv->context, MpiLeftKey(*peer).c_str(), now, &none, 1, &size);
  if (found != SHERD_OK) return false;
  if (left_since_ == 0) left_since_ = now;
  return now - left_since_ >= kArrivalTime;
}

// Returns whether all completed requests succeeded.
sherd_code MpiBatch::Check(sherd_error_v0* error) {
  constexpr char kLength[] = "a message is not as long as its receiver expects";
  if (result_ == MPI_ERR_IN_STATUS) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const int reason = statuses_[i].MPI_ERROR;
      if (reason != MPI_SUCCESS && reason != MPI_ERR_PENDING) {
        return FailWithMpi(error, reason, parts_[i].peer, kLength);
      }
    }
  }
  if (result_ != MPI_SUCCESS) {
    return FailWithMpi(error, result_, -1, "MPI failed");
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].bytes < 0) continue;
    int bytes = 0;
    MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes);
    if (bytes != parts_[i].bytes) {
      return Fail(
          error, SHERD_INVALID_ARGUMENT, parts_[i].peer,
          ("sends " + std::to_string(bytes) + " bytes, this rank expects " +
           std::to_string(parts_[i].bytes))
              .c_str());
    }
  }
  return SHERD_OK;
}

int MpiBatch::FirstUnfinishedPeer() {
  for (size_t i = 0; i < requests_.size(); ++i) {
    int ended = 0;
    MpiLibrary::Get().Call([&] {
      return MPI_Request_get_status(requests_[i], &ended, MPI_STATUS_IGNORE);
    });
    if (!ended) return parts_[i].peer;
  }
  return -1;
}

// Cancels requests that can be cancelled: receives without a message. If any
// remain, MPI is not called again, so that nothing accesses the buffers.
void MpiBatch::GiveUp() {
  MpiLibrary& library = MpiLibrary::Get();
  library.NoteFailure();
  if (!library.usable()) return;
  bool remains = false;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    if (parts_[i].bytes >= 0) {
      library.Call([&] { return MPI_Cancel(&requests_[i]); });
    }
    int ended = 0;
    for (int k = 0; k < kCancelPolls && !ended; ++k) {
      library.Call(
          [&] { return MPI_Test(&requests_[i], &ended, MPI_STATUS_IGNORE); });
    }
    remains = remains || !ended;
  }
  if (remains) library.Abandon();
}

}  // namespace sherd::internal
