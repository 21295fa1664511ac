#ifndef SHERD_BACKENDS_SHM_SLAB_ARENA_H_
#define SHERD_BACKENDS_SHM_SLAB_ARENA_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/shm/slab_layout.h"
#include "sherd/core/process/shared_segment.h"

namespace sherd::internal {

// A large range of addresses, in a segment that peers map, whose pages are
// committed on request: one descriptor and one mapping for any number of
// blocks.
//
// Threads. One at a time, except for Populate and GiveBack of ranges that do
// not overlap.
class SlabArena {
 public:
  // `bytes` is the size of all blocks, a multiple of the page size. `owner` and
  // `serial` as in SlabHeader.
  //   SHERD_RESOURCE  No descriptor or address space, or the process may not
  //                   have a file so large.
  static sherd_code Create(uint64_t bytes, uint64_t owner, uint32_t serial,
                           std::unique_ptr<SlabArena>* arena,
                           sherd_error_v0* error);

  // Returns the pages to the system, also if peers still map them.
  ~SlabArena();
  SlabArena(const SlabArena&) = delete;
  SlabArena& operator=(const SlabArena&) = delete;

  const SlabView& view() const { return view_; }
  int fd() const { return shared_.fd(); }
  uint32_t serial() const { return serial_; }
  unsigned char* begin() const { return view_.memory; }
  unsigned char* at(uint64_t offset) const { return view_.memory + offset; }
  SlabRange data() const {
    return {kSlabDataBegin, view_.size - kSlabDataBegin};
  }

  // Commits and maps all pages of the range; ranges are whole pages.
  //   SHERD_RESOURCE  There is not enough memory; the range stays uncommitted.
  sherd_code Populate(SlabRange range, sherd_error_v0* error);

  // Returns the pages, and with them their contents, to the system.
  void GiveBack(SlabRange range);

  // A slot for the block, or none if all are taken.
  std::optional<uint32_t> Publish(SlabRange block, uint64_t block_serial);
  void Retract(uint32_t slot);

 private:
  SlabArena(SharedSegment shared, uint32_t serial)
      : shared_(std::move(shared)),
        view_{shared_.memory(), shared_.bytes()},
        serial_(serial) {}

  const SharedSegment shared_;
  const SlabView view_;
  const uint32_t serial_;
  // Slots from here on were never used; of the others these are free.
  uint32_t fresh_slot_ = 0;
  std::vector<uint32_t> free_slots_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_SHM_SLAB_ARENA_H_
