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

// A large stretch of addresses of which pages are there where somebody asked
// for them, in a segment that peers map: one descriptor and one mapping however
// many blocks stand in it.
//
// Threads. One at a time, but for Populate and GiveBack of ranges that do not
// overlap.
class SlabArena {
 public:
  // `bytes`: of blocks, a multiple of the page size. `owner` and `serial` as in
  // SlabHeader.
  //   SHERD_RESOURCE  No descriptor or address space, or the process may not
  //                   have a file so large.
  static sherd_code Create(uint64_t bytes, uint64_t owner, uint32_t serial,
                           std::unique_ptr<SlabArena>* arena,
                           sherd_error_v0* error);

  // Gives its pages back, also where peers still map it.
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

  // Makes all pages of the range exist and maps them; ranges are whole pages.
  //   SHERD_RESOURCE  There are not so many; none of them stays.
  sherd_code Populate(SlabRange range, sherd_error_v0* error);

  // Hands the pages back to the system; what was in them is gone.
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
