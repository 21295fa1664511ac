// Ranks are threads of one process: each operation is a meeting at which every
// rank copies what it needs straight from the others' buffers.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/plugin_error.h"
#include "sherd/backends/static_plugin.h"

namespace {

using sherd::internal::Fail;

constexpr char kMeetingKey[] = "local/meeting";

std::chrono::steady_clock::time_point ToTimePoint(int64_t deadline) {
  if (deadline == SHERD_NO_DEADLINE) {
    return std::chrono::steady_clock::time_point::max();
  }
  return std::chrono::steady_clock::time_point(
      std::chrono::nanoseconds(deadline));
}

// Shared by the ranks of one group; the last one to leave deletes it.
//
// An operation has two phases. Ranks arrive and publish what they called; the
// last one compares the calls. Then each rank reads the others' buffers, and
// nobody returns before all have read.
class Meeting {
 public:
  explicit Meeting(int size) : calls_(size), left_(size), members_(size) {}

  sherd_code Run(int rank, const sherd_op_v0& op, sherd_error_v0* error) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (failure_.code != SHERD_OK) return Report(error);
    calls_[rank] = &op;
    const uint64_t round = round_;
    if (++arrived_ == size()) {
      CompareCalls();
      ++round_;
      changed_.notify_all();
    } else if (!AwaitRound(lock, round, op.deadline)) {
      return Report(error);
    }
    // A difference found by the last arrival is everybody's result.
    if (failure_.code != SHERD_OK) return Report(error);

    lock.unlock();
    CopyFromOthers(rank, op);
    lock.lock();

    if (++finished_ == size()) {
      arrived_ = finished_ = 0;
      std::fill(calls_.begin(), calls_.end(), nullptr);
      ++round_;
      changed_.notify_all();
    } else {
      // Not bounded: the others only copy, and returning now would let the
      // caller free what they read.
      const uint64_t copying = round + 1;
      changed_.wait(lock, [&] { return round_ != copying; });
    }
    return SHERD_OK;
  }

  void Abort(int rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    SetFailure({SHERD_ABORTED, rank, "the rank aborted the group"});
  }

  // Returns true if the caller was the last member and must delete this.
  bool Leave(int rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    left_[rank] = true;
    // Those who wait for an operation wait for this rank too.
    if (arrived_ > 0 && calls_[rank] == nullptr) {
      SetFailure({SHERD_PEER_LOST, rank, "the rank left the group"});
    }
    return --members_ == 0;
  }

 private:
  struct Failure {
    sherd_code code = SHERD_OK;
    int peer = -1;
    std::string text;
  };

  int size() const { return static_cast<int>(calls_.size()); }

  // Only the first failure counts.
  void SetFailure(Failure failure) {
    if (failure_.code != SHERD_OK) return;
    failure_ = std::move(failure);
    changed_.notify_all();
  }

  sherd_code Report(sherd_error_v0* error) const {
    return Fail(error, failure_.code, failure_.peer, failure_.text.c_str());
  }

  int FirstAbsent() const {
    return static_cast<int>(std::find(calls_.begin(), calls_.end(), nullptr) -
                            calls_.begin());
  }

  // False if the operation failed before everybody came.
  bool AwaitRound(std::unique_lock<std::mutex>& lock, uint64_t round,
                  int64_t deadline) {
    for (int rank = 0; rank < size(); ++rank) {
      if (left_[rank] && calls_[rank] == nullptr) {
        SetFailure({SHERD_PEER_LOST, rank, "the rank left the group"});
      }
    }
    const auto ended = [&] {
      return round_ != round || failure_.code != SHERD_OK;
    };
    if (deadline == SHERD_NO_DEADLINE) {
      changed_.wait(lock, ended);
    } else if (!changed_.wait_until(lock, ToTimePoint(deadline), ended)) {
      SetFailure({SHERD_TIMEOUT, FirstAbsent(), "did not come in time"});
    }
    return round_ != round;
  }

  // Finds the first rank whose call does not fit rank 0's, or whose messages
  // do not fit their receivers.
  void CompareCalls() {
    const sherd_op_v0& first = *calls_[0];
    for (int rank = 1; rank < size(); ++rank) {
      const sherd_op_v0& other = *calls_[rank];
      if (other.op == first.op && other.root == first.root &&
          other.bytes == first.bytes) {
        continue;
      }
      char text[160];
      std::snprintf(text, sizeof(text),
                    "called operation %d, root %d, %llu bytes; rank 0 called "
                    "operation %d, root %d, %llu bytes",
                    other.op, other.root,
                    static_cast<unsigned long long>(other.bytes), first.op,
                    first.root, static_cast<unsigned long long>(first.bytes));
      return SetFailure({SHERD_INVALID_ARGUMENT, rank, text});
    }
    if (first.op != SHERD_ALL_TO_ALL_V) return;
    for (int from = 0; from < size(); ++from) {
      for (int to = 0; to < size(); ++to) {
        const uint64_t sent = calls_[from]->sends[to].size;
        const uint64_t wanted = calls_[to]->recvs[from].size;
        if (sent == wanted) continue;
        char text[160];
        std::snprintf(text, sizeof(text),
                      "sends %llu bytes to rank %d, which expects %llu",
                      static_cast<unsigned long long>(sent), to,
                      static_cast<unsigned long long>(wanted));
        return SetFailure({SHERD_INVALID_ARGUMENT, from, text});
      }
    }
  }

  void CopyFromOthers(int rank, const sherd_op_v0& op) const {
    auto* const out = static_cast<char*>(op.out);
    for (int k = 1; k < size(); ++k) {
      // Each rank starts at its neighbour, so that not all read the same one.
      const int from = (rank + k) % size();
      const sherd_op_v0& theirs = *calls_[from];
      switch (op.op) {
        case SHERD_BROADCAST:
          if (from == op.root) std::memcpy(out, theirs.out, op.bytes);
          break;
        case SHERD_ALL_GATHER:
          std::memcpy(out + from * op.bytes, theirs.in, op.bytes);
          break;
        case SHERD_ALL_TO_ALL_V:
          if (op.recvs[from].size > 0) {
            std::memcpy(op.recvs[from].data, theirs.sends[rank].data,
                        op.recvs[from].size);
          }
          break;
        default:
          break;
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  // Read without the lock while ranks copy: nobody writes then.
  std::vector<const sherd_op_v0*> calls_;
  std::vector<bool> left_;
  int members_;
  int arrived_ = 0;
  int finished_ = 0;
  // Odd while ranks copy.
  uint64_t round_ = 0;
  Failure failure_;
};

sherd_code Probe(sherd_error_v0*) { return SHERD_OK; }

// Where rank 0 made the meeting. Only meaningful in its own process.
struct MeetingAddress {
  int64_t pid;
  Meeting* meeting;
};

}  // namespace

struct sherd_comm_v0 {
  int rank;
  Meeting* meeting;
};

namespace {

sherd_code Create(const sherd_comm_config_v0* config, sherd_comm_v0** comm,
                  sherd_error_v0* error) {
  MeetingAddress address = {getpid(), nullptr};
  if (config->rank == 0) {
    address.meeting = new (std::nothrow) Meeting(config->size);
    if (address.meeting == nullptr) {
      return Fail(error, SHERD_RESOURCE, -1, "out of memory");
    }
    const sherd_code code = config->kv->set(config->kv->context, kMeetingKey,
                                            &address, sizeof(address));
    if (code != SHERD_OK) {
      delete address.meeting;
      return Fail(error, code, -1, "the store failed");
    }
  } else {
    uint64_t size = 0;
    const sherd_code code =
        config->kv->get(config->kv->context, kMeetingKey, config->deadline,
                        &address, sizeof(address), &size);
    if (code != SHERD_OK || size != sizeof(address)) {
      return Fail(error, code == SHERD_OK ? SHERD_INTERNAL : code, 0,
                  "did not set up the group");
    }
    if (address.pid != getpid()) {
      return Fail(error, SHERD_INVALID_ARGUMENT, 0,
                  "is in another process, but ranks of the backend \"local\" "
                  "are threads of one; use gloo between processes");
    }
  }
  *comm = new (std::nothrow) sherd_comm_v0{config->rank, address.meeting};
  if (*comm != nullptr) return SHERD_OK;
  if (address.meeting->Leave(config->rank)) delete address.meeting;
  return Fail(error, SHERD_RESOURCE, -1, "out of memory");
}

void Destroy(sherd_comm_v0* comm) {
  if (comm->meeting->Leave(comm->rank)) delete comm->meeting;
  delete comm;
}

sherd_code Post(sherd_comm_v0* comm, const sherd_op_v0* op, sherd_request_v0*,
                sherd_error_v0* error) {
  return comm->meeting->Run(comm->rank, *op, error);
}

void Abort(sherd_comm_v0* comm) { comm->meeting->Abort(comm->rank); }

const sherd_plugin_v0 kPlugin = {
    .struct_size = sizeof(sherd_plugin_v0),
    .major = SHERD_ABI_MAJOR,
    .minor = SHERD_ABI_MINOR,
    .next = nullptr,
    .name = "local",
    .operations = 1u << SHERD_BARRIER | 1u << SHERD_BROADCAST |
                  1u << SHERD_ALL_GATHER | 1u << SHERD_ALL_TO_ALL_V,
    .flags = SHERD_COMPLETES_IN_POST | SHERD_RANKS_ARE_THREADS,
    .reserved = 0,
    .library_version = nullptr,
    .probe = Probe,
    .create = Create,
    .destroy = Destroy,
    .post = Post,
    .test = nullptr,
    .abort = Abort};

const sherd_plugin_v0* GetPlugin(const sherd_host_v0*) { return &kPlugin; }

}  // namespace

SHERD_BACKEND_PLUGIN(GetPlugin)
