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
  // Addresses of an arena; a larger block gets an arena of its own. They cost
  // nothing until they are used.
  uint64_t arena_bytes = uint64_t{4} << 30;
  // The most freed memory that is kept. Unset: an eighth of the machine's
  // memory, 2 GiB at most.
  std::optional<uint64_t> pool_bytes = {};
  // For tests: returning false makes the allocation of fresh pages fail.
  std::function<bool(uint64_t bytes)> may_populate = {};
};

struct SlabStatistics {
  // Blocks in use, rounded up; pages of whole blocks that are kept for reuse.
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
// Small blocks are aligned to 64 bytes in chunks of 256 KiB, large ones to
// pages. Both take the best fit among free ranges, which are merged when freed.
// Freed pages are kept and taken first, because fresh ones cost as much as five
// copies. The oldest are returned to the system when too much is kept, and all
// of them before an allocation fails.
//
// Fork. The child sees the parent's blocks, and the parent sees writes to them;
// blocks of the parent that the child frees stay allocated, and new blocks
// belong to the child alone.
//
// Threads. Safe.
class SlabAllocator {
 public:
  explicit SlabAllocator(SlabOptions options = {});
  ~SlabAllocator();
  SlabAllocator(const SlabAllocator&) = delete;
  SlabAllocator& operator=(const SlabAllocator&) = delete;

  // The process's allocator, which lives forever.
  static SlabAllocator& OfProcess();

  // bytes > 0; alignment is a power of two up to 4096. All pages are committed.
  //   SHERD_RESOURCE  There is not enough memory.
  //
  // Cost. O(log n) of n blocks; about 0.3 µs where no page is fresh.
  sherd_code Allocate(uint64_t bytes, uint64_t alignment, void** data,
                      sherd_error_v0* error);

  // False if `data` is not a block of this allocator, or was freed already.
  bool Deallocate(void* data);

  // Makes the handle of a part of a block.
  //   SHERD_UNSUPPORTED  It is not part of a block, or too many blocks were
  //                      exported.
  sherd_code Export(const void* data, uint64_t bytes,
                    sherd_memory_handle_v0* handle, sherd_error_v0* error);

  // The memory of a handle that this allocator made.
  //   SHERD_INVALID_ARGUMENT  This allocator did not make it, or the block was
  //                           freed.
  sherd_code Find(const SlabHandle& handle, sherd_bytes_v0* range,
                  sherd_error_v0* error);

  SlabStatistics Statistics();

 private:
  struct Block {
    uint64_t size;
    bool in_chunk;
    // Set once the block was exported.
    std::optional<uint32_t> slot;
    uint64_t serial;
  };
  struct Arena {
    explicit Arena(std::unique_ptr<SlabArena> memory);
    ~Arena();

    bool IsEmpty() const { return cold.total_bytes() == memory->data().size; }

    std::unique_ptr<SlabArena> memory;
    // Ranges of whole pages: without memory; with memory, kept for reuse.
    FreeRanges cold;
    FreeRanges warm;
    // Where chunks begin; and free parts of them, each within one chunk.
    std::set<uint64_t> chunks;
    FreeRanges small;
    // Keyed by offset.
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
  // May release the lock temporarily.
  sherd_code TakePages(Lock& lock, uint64_t bytes, Pages* pages,
                       sherd_error_v0* error);
  sherd_code TakeCold(uint64_t bytes, Pages* pages, sherd_error_v0* error);
  sherd_code Populate(const Pages& pages, sherd_error_v0* error);
  sherd_code AddArena(uint64_t bytes, sherd_error_v0* error);
  void ReturnPages(Lock& lock, const Pages& pages);
  // Returns pages to the system until at most `keep` bytes are kept.
  void Trim(Lock& lock, uint64_t keep);
  void DropEmptyArenas();
  Arena* FindArena(const void* data);

  const SlabOptions options_;
  const uint64_t pool_bytes_;
  std::mutex mutex_;
  uint32_t pid_;
  uint64_t owner_;
  // Keyed by their first address.
  std::map<const unsigned char*, std::unique_ptr<Arena>> arenas_;
  uint32_t arena_serial_ = 0;
  uint64_t block_serial_ = 0;
  uint64_t age_ = 0;
  uint64_t pooled_bytes_ = 0;
  SlabStatistics counted_;
  // Arenas of the process from which this one was forked.
  std::vector<SlabView> inherited_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_SHM_SLAB_ALLOCATOR_H_
