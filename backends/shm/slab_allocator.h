#ifndef SHERD_BACKENDS_SHM_SLAB_ALLOCATOR_H_
#define SHERD_BACKENDS_SHM_SLAB_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/shm/free_ranges.h"
#include "sherd/backends/shm/slab_arena.h"

namespace sherd::internal {

struct SlabOptions {
  // Addresses of an arena; larger blocks get one of their size. They cost
  // nothing until they are used.
  uint64_t arena_bytes = uint64_t{4} << 30;
  // How much freed memory may wait. Unset: an eighth of the machine's, 2 GiB at
  // most.
  std::optional<uint64_t> pool_bytes = {};
  // For tests: false makes it fail to get fresh pages.
  std::function<bool(uint64_t bytes)> may_populate = {};
};

struct SlabStatistics {
  // Blocks in use, rounded up; pages that wait, of whole blocks.
  uint64_t live_bytes = 0;
  uint64_t pooled_bytes = 0;
  size_t live_blocks = 0;
  size_t arenas = 0;
  // Requests for pages that took fresh ones, and that the pool served.
  uint64_t fresh = 0;
  uint64_t reused = 0;
};

// Memory that other processes can map: blocks in arenas.
//
// Small blocks stand on multiples of 64 bytes in chunks of 256 KiB, large ones
// on whole pages. Both take the best fit among what is free, and join again
// when freed. Freed pages stay where they are and are taken first, because
// fresh ones cost as much as five copies; what waited longest is given back to
// the system when too much waits, and all of it before an allocation fails.
//
// Fork. The child sees the parent's blocks, and writes to them are seen by the
// parent; those that it frees stay the parent's, and new ones are its own.
//
// Threads. Safe.
class SlabAllocator {
 public:
  explicit SlabAllocator(SlabOptions options = {});
  ~SlabAllocator();
  SlabAllocator(const SlabAllocator&) = delete;
  SlabAllocator& operator=(const SlabAllocator&) = delete;

  // The process's, which lives forever.
  static SlabAllocator& OfProcess();

  // bytes > 0; alignment is a power of two up to 4096. All pages are there.
  //   SHERD_RESOURCE  There is not that much.
  //
  // Cost. O(log n) of n blocks; about 0.3 µs where no page is fresh.
  sherd_code Allocate(uint64_t bytes, uint64_t alignment, void** data,
                      sherd_error_v0* error);

  // False if it did not come from here, or was freed already.
  bool Deallocate(void* data);

  // The handle of a part of a block.
  //   SHERD_UNSUPPORTED  It is not, or too many blocks were exported.
  sherd_code Export(const void* data, uint64_t bytes,
                    sherd_memory_handle_v0* handle, sherd_error_v0* error);

  // Where the memory of a handle that this allocator made stands.
  //   SHERD_INVALID_ARGUMENT  It did not make it, or the block was freed.
  sherd_code Find(const SlabHandle& handle, sherd_bytes_v0* range,
                  sherd_error_v0* error);

  SlabStatistics Statistics();

 private:
  struct Block {
    uint64_t size;
    bool in_chunk;
    // Once it was exported.
    std::optional<uint32_t> slot;
    uint64_t serial;
  };
  struct Arena {
    explicit Arena(std::unique_ptr<SlabArena> memory);
    ~Arena();

    bool IsEmpty() const { return cold.total_bytes() == memory->data().size; }

    std::unique_ptr<SlabArena> memory;
    // Whole pages: not there; there and waiting.
    FreeRanges cold;
    FreeRanges warm;
    // Where chunks begin; and free parts of them, each of one chunk.
    std::set<uint64_t> chunks;
    FreeRanges small;
    // By their offset.
    std::map<uint64_t, Block> blocks;
  };
  struct Pages {
    Arena* arena;
    SlabRange range;
  };
  using Lock = std::unique_lock<std::mutex>;

  static void RegisterForkHandlers();
  void BecomeChild();

  std::optional<Pages> TakeFrom(FreeRanges Arena::*ranges, uint64_t bytes);
  sherd_code TakeSmall(Lock& lock, uint64_t bytes, Pages* pages,
                       sherd_error_v0* error);
  // May let go of the lock for a time.
  sherd_code TakePages(Lock& lock, uint64_t bytes, Pages* pages,
                       sherd_error_v0* error);
  sherd_code TakeCold(uint64_t bytes, Pages* pages, sherd_error_v0* error);
  sherd_code Populate(const Pages& pages, sherd_error_v0* error);
  sherd_code AddArena(uint64_t bytes, sherd_error_v0* error);
  void ReturnPages(Lock& lock, const Pages& pages);
  // Gives pages back until at most `keep` bytes wait.
  void Trim(Lock& lock, uint64_t keep);
  void DropEmptyArenas();
  Arena* FindArena(const void* data);

  const SlabOptions options_;
  const uint64_t pool_bytes_;
  std::mutex mutex_;
  uint32_t pid_;
  uint64_t owner_;
  // By where they begin.
  std::map<const unsigned char*, std::unique_ptr<Arena>> arenas_;
  uint32_t arena_serial_ = 0;
  uint64_t block_serial_ = 0;
  uint64_t age_ = 0;
  uint64_t pooled_bytes_ = 0;
  SlabStatistics counted_;
  // Arenas of the process that this one was forked off.
  std::vector<SlabView> inherited_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_SHM_SLAB_ALLOCATOR_H_
