#ifndef SHERD_BACKENDS_SHM_SLAB_LAYOUT_H_
#define SHERD_BACKENDS_SHM_SLAB_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/shm/free_ranges.h"

namespace sherd::internal {

// The contents of the beginning of an arena, for the processes that map it, and
// of the handle of a block.
//
// Layout. SlabHeader in the first page; slots up to kSlabDataBegin; blocks from
// there on. Only the owner writes header and slots. Readers trust neither:
// bounds come from the size of the segment, which is sealed.

inline constexpr uint64_t kSlabPage = 4096;
inline constexpr uint64_t kSlabDataBegin = uint64_t{2} << 20;

// "sherdslb", with the version of the layout in the last byte.
inline constexpr uint64_t kSlabMagic = 0x7368'6572'6473'6c01;
inline constexpr uint64_t kSlabHandleMagic = 0x51ab;

struct SlabHeader {
  uint64_t magic;
  // A random number of the owning process.
  uint64_t owner;
  // The number of the arena among its owner's.
  uint64_t serial;
  // How often pages were returned to the system: a reader's mapped pages may
  // have lost their contents.
  std::atomic<uint64_t> holes;
};

// A block that was exported. Found by its index, and identified by its serial,
// which no other block of the owner ever has: 0 once it is freed.
struct SlabSlot {
  std::atomic<uint64_t> serial;
  std::atomic<uint64_t> begin;
  std::atomic<uint64_t> size;
  uint64_t reserved;
};

inline constexpr uint32_t kSlabSlots =
    (kSlabDataBegin - kSlabPage) / sizeof(SlabSlot);
static_assert(sizeof(SlabHeader) <= kSlabPage && kSlabSlots <= 0xffff);

// The view of one arena that its owner and its readers share.
struct SlabView {
  unsigned char* memory = nullptr;
  uint64_t size = 0;

  SlabHeader& header() const { return *reinterpret_cast<SlabHeader*>(memory); }
  SlabSlot& slot(uint32_t index) const {
    return reinterpret_cast<SlabSlot*>(memory + kSlabPage)[index];
  }
};

struct SlabHandle {
  int32_t fd = -1;
  uint32_t pid = 0;
  uint32_t slot = 0;
  uint32_t arena = 0;
  uint64_t owner = 0;
  uint64_t block = 0;
  SlabRange range;

  sherd_memory_handle_v0 Pack() const {
    return {{kSlabHandleMagic << 48 | uint64_t{slot} << 32 |
                 static_cast<uint32_t>(fd),
             uint64_t{pid} << 32 | arena, owner, block, range.begin,
             range.size}};
  }

  // Returns false if `packed` is not a handle.
  static bool Unpack(const sherd_memory_handle_v0& packed, SlabHandle* handle) {
    const uint64_t* const words = packed.words;
    *handle = {.fd = static_cast<int32_t>(words[0] & 0xffff'ffff),
               .pid = static_cast<uint32_t>(words[1] >> 32),
               .slot = static_cast<uint32_t>(words[0] >> 32 & 0xffff),
               .arena = static_cast<uint32_t>(words[1] & 0xffff'ffff),
               .owner = words[2],
               .block = words[3],
               .range = {words[4], words[5]}};
    return words[0] >> 48 == kSlabHandleMagic && handle->fd >= 0 &&
           handle->slot < kSlabSlots && handle->block != 0 &&
           handle->range.size > 0;
  }
};

// Whether the handle refers to a part of an existing block.
inline bool Holds(const SlabView& view, const SlabHandle& handle) {
  const SlabRange& range = handle.range;
  if (range.begin < kSlabDataBegin || range.begin > view.size ||
      range.size > view.size - range.begin) {
    return false;
  }
  const SlabSlot& slot = view.slot(handle.slot);
  if (slot.serial.load(std::memory_order_acquire) != handle.block) return false;
  const uint64_t begin = slot.begin.load(std::memory_order_relaxed);
  const uint64_t size = slot.size.load(std::memory_order_relaxed);
  return range.begin >= begin && range.begin - begin <= size &&
         range.size <= size - (range.begin - begin);
}

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_SHM_SLAB_LAYOUT_H_
