// A whole plugin in little, whose ranks are threads: a barrier and an exchange.
// Built against the header of each line that hosts still know, and of one that
// is yet to come (TINY_MINOR).

#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <vector>

#if TINY_MINOR == 1
#include "sherd/backends/testdata/backend_abi_0_1.h"
#else
#include "sherd/backends/backend_abi.h"
#endif

namespace {

sherd_code Fail(sherd_error_v0* error, sherd_code code, int peer,
                const char* text) {
  error->peer = peer;
  std::strncpy(error->text, text, sizeof(error->text) - 1);
  return code;
}

// Where the ranks of a group meet: all show their call, all copy, all leave.
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

  void Fail(int rank, sherd_code code, const char* text) {
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
  // Until all ranks are in here; otherwise, if it may fail, false.
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

  // The first rank that has not come and of which `flags` is set.
  int Missing(const std::vector<bool>& flags) const {
    for (size_t r = 0; r < calls_.size(); ++r) {
      if (calls_[r] == nullptr && flags[r]) return static_cast<int>(r);
    }
    return -1;
  }

  sherd_code Report(sherd_error_v0* error) const {
    if (code_ != SHERD_OK) return ::Fail(error, code_, peer_, text_);
    if (Missing(left_) >= 0) {
      return ::Fail(error, SHERD_PEER_LOST, Missing(left_), "left the group");
    }
    return ::Fail(error, SHERD_TIMEOUT,
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

}  // namespace

struct sherd_comm_v0 {
  int rank;
  Meeting* meeting;
};

namespace {

constexpr char kKey[] = "tiny/meeting";

sherd_code Probe(sherd_error_v0*) { return SHERD_OK; }

sherd_code Create(const sherd_comm_config_v0* config, sherd_comm_v0** comm,
                  sherd_error_v0* error) {
  const sherd_kv_v0& kv = *config->kv;
  Meeting* meeting = nullptr;
  sherd_code code;
  if (config->rank == 0) {
    meeting = new Meeting(config->size);
    code = kv.set(kv.context, kKey, &meeting, sizeof(meeting));
  } else {
    uint64_t size = 0;
    code = kv.get(kv.context, kKey, config->deadline, &meeting, sizeof(meeting),
                  &size);
  }
  if (code != SHERD_OK) return Fail(error, code, 0, "did not set up the group");
  *comm = new sherd_comm_v0{config->rank, meeting};
  return SHERD_OK;
}

void Destroy(sherd_comm_v0* comm) {
  if (comm->meeting->Leave(comm->rank)) delete comm->meeting;
  delete comm;
}

sherd_code Post(sherd_comm_v0* comm, const sherd_op_v0* op, sherd_request_v0*,
                sherd_error_v0* error) {
  return comm->meeting->Run(comm->rank, *op, error);
}

void Abort(sherd_comm_v0* comm) {
  comm->meeting->Fail(comm->rank, SHERD_PEER_LOST, "aborted the group");
}

#if TINY_MINOR >= 3
// Threads reach each other's memory by its address.
sherd_code Allocate(uint64_t bytes, uint64_t alignment, void** data,
                    sherd_error_v0* error) {
  *data =
      aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  return *data != nullptr ? SHERD_OK
                          : Fail(error, SHERD_RESOURCE, -1, "out of memory");
}

void Deallocate(void* data, uint64_t) { free(data); }

sherd_code OpenPeers(sherd_comm_v0* comm, sherd_peers_v0** peers,
                     sherd_error_v0*) {
  *peers = reinterpret_cast<sherd_peers_v0*>(new int(comm->rank));
  return SHERD_OK;
}

void ClosePeers(sherd_peers_v0* peers) { delete reinterpret_cast<int*>(peers); }

constexpr uint64_t kHandle = 0x74696e79;

sherd_code Export(sherd_peers_v0* peers, const void* data, uint64_t bytes,
                  sherd_memory_handle_v0* handle, sherd_error_v0*) {
  *handle = {{kHandle, static_cast<uint64_t>(*reinterpret_cast<int*>(peers)),
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
#endif

#if TINY_MINOR > SHERD_ABI_MINOR
// Tables as a later line may have them.
struct MemoryTable : sherd_memory_v0 {
  sherd_code (*advise)(void* data, uint64_t bytes);
};
struct Table : sherd_plugin_v0 {
  uint64_t limits[4];
  sherd_code (*reconnect)(sherd_comm_v0* comm);
};
#else
using Table = sherd_plugin_v0;
#if TINY_MINOR >= 3
using MemoryTable = sherd_memory_v0;
#endif
#endif

#define TINY_TEXT_OF(number) #number
#define TINY_NAME(number) "tiny_0_" TINY_TEXT_OF(number)

}  // namespace

extern "C" __attribute__((visibility("default"))) const sherd_plugin_v0*
sherd_get_plugin_v0(const sherd_host_v0*) {
  static Table table;
  table.struct_size = sizeof(table);
  table.major = SHERD_ABI_MAJOR;
  table.minor = TINY_MINOR;
  table.name = TINY_NAME(TINY_MINOR);
  table.operations = 1u << SHERD_BARRIER | 1u << SHERD_ALL_TO_ALL_V;
  table.flags = SHERD_COMPLETES_IN_POST | SHERD_RANKS_ARE_THREADS;
  table.probe = Probe;
  table.create = Create;
  table.destroy = Destroy;
  table.post = Post;
  table.abort = Abort;
#if TINY_MINOR == 2
  // What stands behind the table of that line is none of it.
  table.struct_size = offsetof(sherd_plugin_v0, memory);
  table.memory = reinterpret_cast<const sherd_memory_v0*>(16);
#elif TINY_MINOR >= 3
  static MemoryTable memory;
  memory.struct_size = sizeof(memory);
  memory.allocate = Allocate;
  memory.deallocate = Deallocate;
  memory.open_peers = OpenPeers;
  memory.close_peers = ClosePeers;
  memory.export_memory = Export;
  memory.import_memory = Import;
  table.memory = &memory;
#endif
#if TINY_MINOR == 3
  table.struct_size = offsetof(sherd_plugin_v0, on_device);
  table.on_device = reinterpret_cast<const sherd_on_device_v0*>(16);
#endif
#if TINY_MINOR > SHERD_ABI_MINOR
  // Operations and flags of which today's host knows nothing.
  table.operations |= uint64_t{1} << 40;
  table.flags |= 1u << 30;
  table.limits[0] = 7;
#endif
  return &table;
}
