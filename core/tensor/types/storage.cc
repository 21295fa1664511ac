#include "sherd/core/tensor/storage.h"

#include <fcntl.h>
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <list>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/unique_fd.h"

namespace sherd {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kLargeBytes = size_t{1} << 20;

absl::Status OutOfMemory(size_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("out of memory: the heap cannot provide ", bytes,
                   " bytes; use smaller shards or more ranks"));
}

// Whole huge pages; above 16 MiB eight sizes per power of two, so that blocks
// of nearly equal size can stand in for one another.
size_t RoundToBlock(size_t bytes) {
  const size_t pages = RoundUp(bytes, kHugePage);
  return RoundUp(pages, std::max(kHugePage, std::bit_floor(pages) / 8));
}

// Address space that begins at a huge page, or null.
void* MapBlock(size_t size) {
  const size_t padded = size + kHugePage;
  void* const raw = mmap(nullptr, padded, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t aligned = RoundUp<uintptr_t>(begin, kHugePage);
  if (aligned > begin) munmap(raw, aligned - begin);
  const size_t tail = begin + padded - (aligned + size);
  if (tail > 0) munmap(reinterpret_cast<void*>(aligned + size), tail);
  void* const block = reinterpret_cast<void*>(aligned);
  // Without huge pages the block works all the same, only slower.
  (void)madvise(block, size, MADV_HUGEPAGE);
  return block;
}

struct Block {
  void* data;
  size_t size;
};

void UnmapBlocks(const std::vector<Block>& blocks) {
  for (const Block& block : blocks) {
    ASAN_UNPOISON_MEMORY_REGION(block.data, block.size);
    SHERD_CHECK(munmap(block.data, block.size) == 0) << "errno " << errno;
  }
}

// Large blocks, in use and waiting. System calls are made without the lock.
class BlockPool {
 public:
  BlockPool() {
    const int64_t memory =
        int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
    capacity_ = static_cast<size_t>(
        std::clamp<int64_t>(memory / 8, 0, int64_t{2} << 30));
  }

  void* Take(size_t bytes) {
    const size_t size = RoundToBlock(bytes);
    std::optional<Block> block = TakeCached(size);
    if (!block.has_value()) {
      void* data = MapBlock(size);
      if (data == nullptr) {
        UnmapBlocks(Evict(0));
        data = MapBlock(size);
      }
      if (data == nullptr) return nullptr;
      block = Block{data, size};
      absl::MutexLock lock(&mutex_);
      ++fresh_blocks_;
      AddLive(*block);
    }
    ASAN_UNPOISON_MEMORY_REGION(block->data, bytes);
    ASAN_POISON_MEMORY_REGION(static_cast<char*>(block->data) + bytes,
                              block->size - bytes);
    return block->data;
  }

  void GiveBack(void* data) {
    std::vector<Block> victims;
    {
      absl::MutexLock lock(&mutex_);
      const auto it = live_.find(data);
      SHERD_CHECK(it != live_.end()) << "not a block of this heap";
      const Block block = {data, it->second};
      live_.erase(it);
      live_bytes_ -= block.size;
      if (block.size > capacity_) {
        victims.push_back(block);
      } else {
        victims = EvictLocked(capacity_ - block.size);
        ASAN_POISON_MEMORY_REGION(block.data, block.size);
        waiting_.push_back(block);
        by_size_.emplace(block.size, std::prev(waiting_.end()));
        cached_bytes_ += block.size;
      }
    }
    UnmapBlocks(victims);
  }

  void SetCapacity(size_t bytes) {
    {
      absl::MutexLock lock(&mutex_);
      capacity_ = bytes;
    }
    UnmapBlocks(Evict(bytes));
  }

  HeapStatistics Statistics() {
    absl::MutexLock lock(&mutex_);
    return {live_bytes_, cached_bytes_, capacity_, fresh_blocks_,
            reused_blocks_};
  }

 private:
  using Waiting = std::list<Block>;

  void AddLive(const Block& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    live_.emplace(block.data, block.size);
    live_bytes_ += block.size;
  }

  std::optional<Block> TakeCached(size_t size) {
    absl::MutexLock lock(&mutex_);
    const auto it = by_size_.lower_bound(size);
    if (it == by_size_.end() || it->first > size + size / 4) {
      return std::nullopt;
    }
    const Block block = *it->second;
    waiting_.erase(it->second);
    by_size_.erase(it);
    cached_bytes_ -= block.size;
    ++reused_blocks_;
    AddLive(block);
    return block;
  }

  std::vector<Block> Evict(size_t keep_bytes) {
    absl::MutexLock lock(&mutex_);
    return EvictLocked(keep_bytes);
  }

  // Removes the blocks that waited longest until at most `keep_bytes` wait.
  std::vector<Block> EvictLocked(size_t keep_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<Block> victims;
    while (cached_bytes_ > keep_bytes) {
      const Waiting::iterator oldest = waiting_.begin();
      auto it = by_size_.lower_bound(oldest->size);
      while (it->second != oldest) ++it;
      by_size_.erase(it);
      cached_bytes_ -= oldest->size;
      victims.push_back(*oldest);
      waiting_.erase(oldest);
    }
    return victims;
  }

  absl::Mutex mutex_;
  absl::flat_hash_map<void*, size_t> live_ ABSL_GUARDED_BY(mutex_);
  // In the order in which they were returned.
  Waiting waiting_ ABSL_GUARDED_BY(mutex_);
  std::multimap<size_t, Waiting::iterator> by_size_ ABSL_GUARDED_BY(mutex_);
  size_t live_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t cached_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t capacity_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t fresh_blocks_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t reused_blocks_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Never destroyed: storage may outlive static destructors.
BlockPool& Pool() {
  static BlockPool& pool = *new BlockPool();
  return pool;
}

class Heap final : public Allocator {
 public:
  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override {
    if (bytes > PTRDIFF_MAX / 2) return OutOfMemory(bytes);
    void* data;
    if (bytes >= kLargeBytes) {
      data = Pool().Take(bytes);
    } else {
      const size_t aligned = std::max(alignment, Storage::kAlignment);
      data = std::aligned_alloc(aligned, RoundUp(bytes, aligned));
    }
    if (data == nullptr) return OutOfMemory(bytes);
    return data;
  }

  void Deallocate(void* data, size_t bytes) override {
    if (bytes >= kLargeBytes) {
      Pool().GiveBack(data);
    } else {
      std::free(data);
    }
  }

  absl::string_view name() const override { return "heap"; }
};

// Checks that the open file holds the range.
absl::Status CheckFile(int fd, const std::string& path, uint64_t offset,
                       uint64_t length) {
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "stat", path);
  const std::optional<uint64_t> end = CheckedAdd(offset, length);
  if (!end.has_value() || *end > static_cast<uint64_t>(INT64_MAX)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot map '", path, "': ", length, " bytes at offset ",
                     offset, " are beyond any file"));
  }
  if (*end > static_cast<uint64_t>(info.st_size)) {
    return absl::DataLossError(absl::StrCat(
        "'", path, "' is truncated: expected ", length, " bytes at offset ",
        offset, ", but it ends at ", info.st_size));
  }
  return absl::OkStatus();
}

absl::Status CheckBorrowed(const void* data, size_t bytes,
                           const Device& device) {
  if (data == nullptr && bytes > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot borrow ", bytes, " bytes at a null pointer"));
  }
  if (device.is_meta() || (!device.is_cpu() && device.index < 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot borrow memory of ", device.ToString(),
                     ": expected the CPU, or a device with its index"));
  }
  return absl::OkStatus();
}

}  // namespace

Allocator& HeapAllocator() {
  static Heap& heap = *new Heap();
  return heap;
}

HeapStatistics GetHeapStatistics() { return Pool().Statistics(); }

void SetHeapPoolCapacity(size_t bytes) { Pool().SetCapacity(bytes); }

absl::StatusOr<std::shared_ptr<Storage>> Storage::Allocate(
    size_t bytes, Allocator& allocator) {
  void* data = nullptr;
  if (bytes > 0) {
    SHERD_RETURN_IF_ERROR(MaybeInjectFault({.point = FaultPoint::kAllocate,
                                            .subject = allocator.name(),
                                            .bytes = bytes}));
    absl::StatusOr<void*> memory = allocator.Allocate(bytes, kAlignment);
    if (!memory.ok()) return memory.status();
    data = *memory;
  }
  std::shared_ptr<Storage> storage(new Storage(
      Kind::kAllocated, data, bytes, /*writable=*/true, allocator.device()));
  storage->allocator_ = &allocator;
  return storage;
}

absl::StatusOr<std::shared_ptr<Storage>> Storage::Borrow(
    void* data, size_t bytes, std::shared_ptr<const void> keep_alive,
    const Device& device) {
  SHERD_RETURN_IF_ERROR(CheckBorrowed(data, bytes, device));
  std::shared_ptr<Storage> storage(
      new Storage(Kind::kBorrowed, data, bytes, /*writable=*/true, device));
  storage->keep_alive_ = std::move(keep_alive);
  return storage;
}

absl::StatusOr<std::shared_ptr<Storage>> Storage::BorrowReadOnly(
    const void* data, size_t bytes, std::shared_ptr<const void> keep_alive,
    const Device& device) {
  SHERD_RETURN_IF_ERROR(CheckBorrowed(data, bytes, device));
  std::shared_ptr<Storage> storage(new Storage(Kind::kBorrowed,
                                               const_cast<void*>(data), bytes,
                                               /*writable=*/false, device));
  storage->keep_alive_ = std::move(keep_alive);
  return storage;
}

absl::StatusOr<std::shared_ptr<Storage>> Storage::MapFile(
    const std::string& path, uint64_t offset, uint64_t length, bool read_only) {
  SHERD_ASSIGN_OR_RETURN(
      const UniqueFd file,
      OpenRegularFile(path, read_only ? O_RDONLY : O_RDWR, 0, "mapping"));
  const int fd = file.get();
  SHERD_RETURN_IF_ERROR(CheckFile(fd, path, offset, length));
  void* mapping = nullptr;
  uint64_t lead = 0;
  if (length > 0) {
    lead = offset % static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    mapping =
        mmap(nullptr, lead + length, PROT_READ | (read_only ? 0 : PROT_WRITE),
             MAP_SHARED, fd, static_cast<off_t>(offset - lead));
    if (mapping == MAP_FAILED) return ErrnoStatus(errno, "map", path);
  }
  std::shared_ptr<Storage> storage(
      new Storage(Kind::kMapped, static_cast<std::byte*>(mapping) + lead,
                  length, !read_only, Device()));
  storage->mapping_ = mapping;
  storage->mapping_size_ = lead + length;
  return storage;
}

Storage::~Storage() {
  if (kind_ == Kind::kAllocated && data_ != nullptr) {
    allocator_->Deallocate(data_, size_);
  }
  if (mapping_ != nullptr) munmap(mapping_, mapping_size_);
}

}  // namespace sherd
