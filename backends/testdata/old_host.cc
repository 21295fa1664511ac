#include "sherd/backends/testdata/old_host.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "sherd/backends/testdata/backend_abi_0_1.h"

namespace sherd::testing {
namespace {

// A T whose next byte is a page that cannot be touched.
template <typename T>
class AtTheEdge {
 public:
  explicit AtTheEdge(const T& value) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    bytes_ = 2 * page;
    memory_ = static_cast<char*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(memory_ + page, page, PROT_NONE);
    value_ = new (memory_ + page - sizeof(T)) T(value);
  }
  ~AtTheEdge() { munmap(memory_, bytes_); }
  AtTheEdge(const AtTheEdge&) = delete;
  AtTheEdge& operator=(const AtTheEdge&) = delete;

  T* get() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  size_t bytes_;
  char* memory_;
  T* value_;
};

int64_t Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

int64_t In(int seconds) { return Now() + int64_t{seconds} * 1'000'000'000; }

void Log(int32_t, const char*) {}

class Values {
 public:
  static sherd_code Set(void* context, const char* key, const void* value,
                        uint64_t size) {
    auto& self = *static_cast<Values*>(context);
    std::lock_guard<std::mutex> lock(self.mutex_);
    self.values_[key].assign(static_cast<const char*>(value), size);
    self.changed_.notify_all();
    return SHERD_OK;
  }

  static sherd_code Get(void* context, const char* key, int64_t deadline,
                        void* value, uint64_t capacity, uint64_t* size) {
    auto& self = *static_cast<Values*>(context);
    std::unique_lock<std::mutex> lock(self.mutex_);
    const auto there = [&] { return self.values_.count(key) > 0; };
    if (!self.changed_.wait_until(lock,
                                  std::chrono::steady_clock::time_point(
                                      std::chrono::nanoseconds(deadline)),
                                  there)) {
      return SHERD_TIMEOUT;
    }
    const std::string& found = self.values_[key];
    *size = found.size();
    std::memcpy(value, found.data(), std::min<uint64_t>(capacity, *size));
    return SHERD_OK;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

// One rank of the old host.
class Rank {
 public:
  Rank(const sherd_plugin_v0& plugin, const sherd_kv_v0& kv, int rank, int size)
      : plugin_(plugin), kv_(kv), rank_(rank), size_(size) {}

  void Run() {
    const AtTheEdge<sherd_comm_config_v0> config(
        {.struct_size = sizeof(sherd_comm_config_v0),
         .rank = rank_,
         .size = size_,
         .group = "old",
         .kv = &kv_,
         .deadline = In(30)});
    sherd_error_v0 error = NoError();
    if (!Succeeded("create", plugin_.create(config.get(), &comm_, &error),
                   error)) {
      return;
    }
    for (int round = 0; round < 3 && fault_.empty(); ++round) {
      Post(NewOp(SHERD_BARRIER));
      Exchange(round);
    }
    if (fault_.empty()) Post(NewOp(SHERD_BARRIER));
    plugin_.destroy(comm_);
  }

  const std::string& fault() const { return fault_; }

 private:
  static sherd_error_v0 NoError() {
    sherd_error_v0 error = {};
    error.struct_size = sizeof(error);
    error.peer = -1;
    return error;
  }

  bool Succeeded(const char* what, sherd_code code,
                 const sherd_error_v0& error) {
    if (code == SHERD_OK) return true;
    fault_ = "rank " + std::to_string(rank_) + ", " + what + ": code " +
             std::to_string(code) + ", " + error.text;
    return false;
  }

  sherd_op_v0 NewOp(int32_t op) {
    return {.struct_size = sizeof(sherd_op_v0),
            .op = op,
            .sequence = ++sequence_,
            .deadline = In(30)};
  }

  void Post(const sherd_op_v0& op) {
    const AtTheEdge<sherd_op_v0> posted(op);
    alignas(64) sherd_request_v0 request = {};
    sherd_error_v0 error = NoError();
    sherd_code code = plugin_.post(comm_, posted.get(), &request, &error);
    while (code == SHERD_IN_PROGRESS && plugin_.test != nullptr) {
      code = plugin_.test(comm_, &request, &error);
    }
    Succeeded(op.op == SHERD_BARRIER ? "barrier" : "all_to_all_v", code, error);
  }

  void Exchange(int round) {
    const auto value = [round](int from, int to) {
      return static_cast<char>(1 + round * 50 + from * 7 + to);
    };
    constexpr size_t kBytes = 1003;
    std::vector<std::string> sent, received;
    for (int r = 0; r < size_; ++r) {
      sent.emplace_back(kBytes, value(rank_, r));
      received.emplace_back(kBytes, '\0');
    }
    std::vector<sherd_bytes_v0> sends(size_), recvs(size_);
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      sends[r] = {sent[r].data(), kBytes};
      recvs[r] = {received[r].data(), kBytes};
    }
    sherd_op_v0 op = NewOp(SHERD_ALL_TO_ALL_V);
    op.sends = sends.data();
    op.recvs = recvs.data();
    Post(op);
    for (int r = 0; r < size_ && fault_.empty(); ++r) {
      if (r == rank_ || received[r] == std::string(kBytes, value(r, rank_))) {
        continue;
      }
      fault_ = "rank " + std::to_string(rank_) + " has wrong bytes from rank " +
               std::to_string(r);
    }
  }

  const sherd_plugin_v0& plugin_;
  const sherd_kv_v0& kv_;
  const int rank_;
  const int size_;
  uint64_t sequence_ = 0;
  sherd_comm_v0* comm_ = nullptr;
  std::string fault_;
};

}  // namespace

std::string RunInOldHost(void* entry, int ranks) {
  // Lives as long as the plugin.
  static const AtTheEdge<sherd_host_v0> host(
      {.struct_size = sizeof(sherd_host_v0),
       .major = SHERD_ABI_MAJOR,
       .minor = SHERD_ABI_MINOR,
       .log = Log,
       .now = Now});
  const sherd_plugin_v0* const plugin =
      reinterpret_cast<sherd_get_plugin_v0_fn>(entry)(host.get());
  if (plugin == nullptr) return "no";
  // The table's beginning is all that this host knows of it.
  if (plugin->struct_size < sizeof(sherd_plugin_v0)) return "a short table";
  Values values;
  const AtTheEdge<sherd_kv_v0> kv({.struct_size = sizeof(sherd_kv_v0),
                                   .context = &values,
                                   .set = Values::Set,
                                   .get = Values::Get});
  std::vector<Rank> members;
  for (int r = 0; r < ranks; ++r) members.emplace_back(*plugin, *kv, r, ranks);
  std::vector<std::thread> threads;
  for (Rank& member : members)
    threads.emplace_back([&member] { member.Run(); });
  for (std::thread& thread : threads) thread.join();
  for (const Rank& member : members) {
    if (!member.fault().empty()) return member.fault();
  }
  return "";
}

}  // namespace sherd::testing
