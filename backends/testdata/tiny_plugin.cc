// A small but complete plugin, whose ranks are threads: a barrier, an exchange,
// and memory that ranks share.

#include <stdlib.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "sherd/backends/plugin.h"

namespace {

using sherd::plugin::Fail;
using sherd::plugin::FromHandle;

// The meeting point of a group's ranks: all publish their call, copy, and
// leave.
class Meeting {
 public:
  explicit Meeting(int size) : calls_(size), left_(size), members_(size) {}

  sherd_code Run(int rank, const sherd_op_v0& op, sherd_error_v0* error) {
    std::unique_lock<std::mutex> lock(mutex_);
    calls_[rank] = &op;
    if (!AwaitAll(lock, /*may_fail=*/true, op.deadline)) {
      const sherd_code code = Report(error);
      calls_[rank] = nullptr;
      return code;
    }
    lock.unlock();
    for (size_t from = 0; from < calls_.size(); ++from) {
      if (op.op != SHERD_ALL_TO_ALL_V || op.recvs[from].size == 0) continue;
      std::memcpy(op.recvs[from].data, calls_[from]->sends[rank].data,
                  op.recvs[from].size);
    }
    lock.lock();
    // Not bounded: the others only copy.
    AwaitAll(lock, /*may_fail=*/false, SHERD_NO_DEADLINE);
    calls_[rank] = nullptr;
    return SHERD_OK;
  }

  // Ends the operations of all ranks because of `rank`.
  void Abort(int rank, sherd_code code, const char* text) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (code_ == SHERD_OK) {
      code_ = code;
      peer_ = rank;
      text_ = text;
    }
    changed_.notify_all();
  }

  // True for the last member.
  bool Leave(int rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    left_[rank] = true;
    changed_.notify_all();
    return --members_ == 0;
  }

 private:
  // Waits until all ranks have arrived; returns false on a failure, if allowed.
  bool AwaitAll(std::unique_lock<std::mutex>& lock, bool may_fail,
                int64_t deadline) {
    const uint64_t round = round_;
    if (++arrived_ == calls_.size()) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
      return true;
    }
    const auto ended = [&] {
      return round_ != round ||
             (may_fail && (code_ != SHERD_OK || Missing(left_) >= 0));
    };
    if (deadline == SHERD_NO_DEADLINE) {
      changed_.wait(lock, ended);
    } else {
      changed_.wait_until(lock,
                          std::chrono::steady_clock::time_point(
                              std::chrono::nanoseconds(deadline)),
                          ended);
    }
    if (round_ != round) return true;
    --arrived_;
    return false;
  }

  // The first rank that has not arrived and whose `flags` entry is set.
  int Missing(const std::vector<bool>& flags) const {
    for (size_t r = 0; r < calls_.size(); ++r) {
      if (calls_[r] == nullptr && flags[r]) return static_cast<int>(r);
    }
    return -1;
  }

  sherd_code Report(sherd_error_v0* error) const {
    if (code_ != SHERD_OK)
      return sherd::plugin::Fail(error, code_, peer_, text_);
    if (Missing(left_) >= 0) {
      return sherd::plugin::Fail(error, SHERD_PEER_LOST, Missing(left_),
                                 "left the group");
    }
    return sherd::plugin::Fail(error, SHERD_TIMEOUT,
                               Missing(std::vector<bool>(calls_.size(), true)),
                               "did not come in time");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<const sherd_op_v0*> calls_;
  std::vector<bool> left_;
  int members_;
  size_t arrived_ = 0;
  uint64_t round_ = 0;
  sherd_code code_ = SHERD_OK;
  int peer_ = -1;
  const char* text_ = "";
};

constexpr char kKey[] = "tiny/meeting";

class Communicator {
 public:
  static sherd_code Create(const sherd_comm_config_v0& config,
                           std::unique_ptr<Communicator>* made,
                           sherd_error_v0* error) {
    const sherd_kv_v0& kv = *config.kv;
    Meeting* meeting = nullptr;
    sherd_code code;
    if (config.rank == 0) {
      meeting = new Meeting(config.size);
      // NOLINTNEXTLINE(bugprone-sizeof-expression): the pointer is sent.
      code = kv.set(kv.context, kKey, &meeting, sizeof(meeting));
    } else {
      uint64_t size = 0;
      code = kv.get(kv.context, kKey, config.deadline, &meeting,
                    sizeof(meeting),  // NOLINT(bugprone-sizeof-expression)
                    &size);
    }
    if (code != SHERD_OK) {
      return Fail(error, code, 0, "did not set up the group");
    }
    *made = std::make_unique<Communicator>(config.rank, *meeting);
    return SHERD_OK;
  }

  Communicator(int rank, Meeting& meeting) : rank_(rank), meeting_(meeting) {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator() {
    if (meeting_.Leave(rank_)) delete &meeting_;
  }

  sherd_code Run(const sherd_op_v0& op, sherd_error_v0* error) {
    return meeting_.Run(rank_, op, error);
  }
  void Abort() { meeting_.Abort(rank_, SHERD_PEER_LOST, "aborted the group"); }

  int rank() const { return rank_; }

 private:
  const int rank_;
  Meeting& meeting_;
};

// A rank's view of its peers.
struct Peers {
  int rank;
};

// Threads access each other's memory by its address.
sherd_code Allocate(uint64_t bytes, uint64_t alignment, void** data,
                    sherd_error_v0* error) {
  *data =
      aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  return *data != nullptr ? SHERD_OK
                          : Fail(error, SHERD_RESOURCE, -1, "out of memory");
}

void Deallocate(void* data, uint64_t) { free(data); }

sherd_code OpenPeers(sherd_comm_v0* comm, sherd_peers_v0** peers,
                     sherd_error_v0* error) {
  return sherd::plugin::MakeHandle<Peers>(
      peers, error, [&](std::unique_ptr<Peers>* made) {
        *made = std::make_unique<Peers>(
            Peers{FromHandle<Communicator>(comm).rank()});
        return SHERD_OK;
      });
}

constexpr uint64_t kHandle = 0x74696e79;

sherd_code Export(sherd_peers_v0* peers, const void* data, uint64_t bytes,
                  sherd_memory_handle_v0* handle, sherd_error_v0*) {
  *handle = {{kHandle, static_cast<uint64_t>(FromHandle<Peers>(peers).rank),
              reinterpret_cast<uintptr_t>(data), bytes}};
  return SHERD_OK;
}

sherd_code Import(sherd_peers_v0*, int32_t peer,
                  const sherd_memory_handle_v0* handle, sherd_bytes_v0* range,
                  sherd_error_v0* error) {
  if (handle->words[0] != kHandle ||
      handle->words[1] != static_cast<uint64_t>(peer)) {
    return Fail(error, SHERD_INVALID_ARGUMENT, peer, "not its handle");
  }
  *range = {reinterpret_cast<void*>(handle->words[2]), handle->words[3]};
  return SHERD_OK;
}

constexpr sherd_memory_v0 kMemory = sherd::plugin::WithHeader(sherd_memory_v0{
    .allocate = Allocate,
    .deallocate = Deallocate,
    .open_peers = OpenPeers,
    .close_peers = sherd::plugin::DeleteHandle<Peers, sherd_peers_v0>,
    .export_memory = Export,
    .import_memory = Import});

constexpr sherd_plugin_v0 kPlugin = sherd::plugin::BackendTable<Communicator>(
    {.name = "tiny",
     .operations = 1u << SHERD_BARRIER | 1u << SHERD_ALL_TO_ALL_V,
     .flags = SHERD_RANKS_ARE_THREADS,
     .memory = &kMemory});

}  // namespace

SHERD_BACKEND_PLUGIN(kPlugin)
