#ifndef SHERD_BACKENDS_CUDA_BLOCK_CACHE_H_
#define SHERD_BACKENDS_CUDA_BLOCK_CACHE_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace sherd::internal {

// Unused blocks of memory, by size, kept for reuse: for memory that is slow to
// allocate and to free, such as pinned memory.
//
// Threads. Safe.
class BlockCache {
 public:
  // Sizes are multiples of `granularity`, a power of two.
  explicit BlockCache(uint64_t granularity) : granularity_(granularity) {}

  // The size of the blocks that serve `bytes`, at most an eighth more beyond
  // the granularity; 0 if `bytes` is too large to be valid.
  uint64_t SizeFor(uint64_t bytes) const {
    if (bytes > kMaxBytes) return 0;
    const uint64_t step = std::max(granularity_, std::bit_floor(bytes) / 8);
    return (std::max<uint64_t>(bytes, 1) + step - 1) / step * step;
  }

  // A block of exactly that size, or null.
  void* Take(uint64_t size) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(size);
    if (found == blocks_.end() || found->second.empty()) return nullptr;
    void* const data = found->second.back();
    found->second.pop_back();
    cached_bytes_ -= size;
    return data;
  }

  void Put(void* data, uint64_t size) {
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_[size].push_back(data);
    cached_bytes_ += size;
  }

  // Removes and returns all blocks.
  std::vector<void*> TakeAll() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<void*> all;
    for (auto& [size, blocks] : blocks_) {
      all.insert(all.end(), blocks.begin(), blocks.end());
    }
    blocks_.clear();
    cached_bytes_ = 0;
    return all;
  }

  uint64_t cached_bytes() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return cached_bytes_;
  }

 private:
  static constexpr uint64_t kMaxBytes = uint64_t{1} << 47;

  const uint64_t granularity_;
  mutable std::mutex mutex_;
  std::map<uint64_t, std::vector<void*>> blocks_;  // guarded by mutex_
  uint64_t cached_bytes_ = 0;                      // guarded by mutex_
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_BLOCK_CACHE_H_
