#ifndef SHERD_BACKENDS_NCCL_MEMORY_KV_H_
#define SHERD_BACKENDS_NCCL_MEMORY_KV_H_

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/nccl/run_with_deadline.h"

namespace sherd::internal {

// A group's store in memory, for tests whose ranks are threads.
class MemoryKv {
 public:
  MemoryKv()
      : table_{.struct_size = sizeof(table_),
               .context = this,
               .set = Set,
               .get = Get,
               .add = nullptr,
               .remove = nullptr} {}
  MemoryKv(const MemoryKv&) = delete;
  MemoryKv& operator=(const MemoryKv&) = delete;

  const sherd_kv_v0* table() const { return &table_; }

  void Put(const std::string& key, const std::string& value) {
    std::lock_guard<std::mutex> lock(mutex_);
    entries_[key] = value;
    changed_.notify_all();
  }
  // Returns "" if the key does not exist.
  std::string Find(const std::string& key) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = entries_.find(key);
    return found != entries_.end() ? found->second : "";
  }

 private:
  static sherd_code Set(void* context, const char* key, const void* value,
                        uint64_t size) {
    static_cast<MemoryKv*>(context)->Put(
        key, std::string(static_cast<const char*>(value), size));
    return SHERD_OK;
  }

  static sherd_code Get(void* context, const char* key, int64_t deadline,
                        void* value, uint64_t capacity, uint64_t* size) {
    MemoryKv& kv = *static_cast<MemoryKv*>(context);
    std::unique_lock<std::mutex> lock(kv.mutex_);
    const auto is_there = [&] { return kv.entries_.count(key) != 0; };
    if (deadline == SHERD_NO_DEADLINE) {
      kv.changed_.wait(lock, is_there);
    } else {
      kv.changed_.wait_until(
          lock,
          std::chrono::system_clock::now() +
              std::chrono::nanoseconds(deadline - NcclClock()),
          is_there);
    }
    if (!is_there()) return SHERD_TIMEOUT;
    const std::string& found = kv.entries_[key];
    *size = found.size();
    std::memcpy(value, found.data(),
                found.size() < capacity ? found.size() : capacity);
    return SHERD_OK;
  }

  const sherd_kv_v0 table_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> entries_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_NCCL_MEMORY_KV_H_
